// SPDX-License-Identifier: Apache-2.0

package tokenize

import "unicode/utf8"

// byteModel is byte-level BPE: the units are bytes, which the file writes as
// letters (GPT-2's bytes_to_unicode).
type byteModel struct {
	pre     *preTokenizer
	classes *classTable

	// vocab and ids are set where the merges are those of a vocabulary of ranks,
	// and slow where they are not. Ids are those of the vocabulary's tokens, or
	// nil if they are the same.
	vocab *vocab
	ids   []uint32
	slow  *merger
}

// bytesOf appends the bytes that a token of a byte-level vocabulary stands for;
// ok is false for a token that is not written with letters for bytes.
func bytesOf(dst, text []byte) (_ []byte, ok bool) {
	for i := 0; i < len(text); {
		b := text[i]
		if b < utf8.RuneSelf {
			if b <= ' ' || b == 0x7f {
				return dst, false
			}
			dst = append(dst, b)
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		i += n
		switch {
		case r >= 0xa1 && r <= 0xff && r != 0xad:
			dst = append(dst, byte(r))
		case r >= 0x100 && r <= 0x120:
			dst = append(dst, byte(r-0x100))
		case r >= 0x121 && r <= 0x142:
			dst = append(dst, byte(r-0x121+0x7f))
		case r == 0x143:
			dst = append(dst, 0xad)
		default:
			return dst, false
		}
	}
	return dst, true
}

func (t *HFTokenizer) buildByteLevel(set *bpeSettings, pre *preTokenizer, tokens *hfTokens, merges []hfMerge) *HFError {
	// The bytes of every token, in the order of the list, one after another.
	all := &tokenTexts{start: make([]uint32, 0, len(tokens.list)+1)}
	written := make([]bool, len(tokens.list))
	var singles [256]uint32
	found := 0
	for i := range tokens.list {
		all.start = append(all.start, uint32(len(all.bytes)))
		before := len(all.bytes)
		var ok bool
		if all.bytes, ok = bytesOf(all.bytes, tokens.list[i].text); !ok {
			all.bytes = all.bytes[:before]
			continue
		}
		written[i] = true
		if len(all.bytes)-before == 1 {
			singles[all.bytes[before]] = uint32(i)
			found++
		}
	}
	all.start = append(all.start, uint32(len(all.bytes)))
	if found != 256 {
		return refused("model.vocab", "%d of the 256 bytes are tokens", found)
	}
	for _, m := range merges {
		if !written[m.result] {
			return broken("model.merges", "token %.40q is not written in bytes", tokens.list[m.result].text)
		}
	}
	model := &byteModel{pre: pre, classes: runeClasses()}
	t.model = model
	var late *lateTokens
	if r := newRanking(set, tokens, merges, all, written, &singles); r != nil {
		v, orphans, err := newVocabWithOrphans(r.texts)
		switch {
		case err != nil || !r.explains(v, merges):
		case r.late || orphans != nil:
			late = newLateTokens(v, r, merges)
		default:
			model.vocab, model.ids = v, r.ids
			return nil
		}
	}
	g, err := newMerger(tokens, merges)
	if err != nil {
		return err
	}
	g.late = late
	if set.IgnoreMerges {
		g.setWhole(tokens, all)
	}
	g.byByte = new([256]uint32)
	for b, i := range singles {
		g.byByte[b] = tokens.list[i].id
	}
	for _, m := range merges {
		text := all.of(m.result)
		for i := 1; i < len(text); i++ {
			g.neighbours.add(uint32(text[i-1]), uint32(text[i]))
		}
	}
	model.slow = g
	return nil
}

func (m *byteModel) appendText(s *hfScratch, dst []uint32, text []byte, _ bool) []uint32 {
	if m.pre.prefixSpace && text[0] != ' ' {
		s.spaced = append(append(s.spaced[:0], ' '), text...)
		text = s.spaced
	}
	w := pieceWalk{stages: m.pre.stages}
	if m.vocab == nil {
		for p := 0; p < len(text); {
			end := w.next(m.classes, text, p)
			dst = m.slow.appendPieceOf(&s.merge, dst, text, p, end)
			p = end
		}
		return dst
	}
	from := len(dst)
	k := m.vocab.getScratch()
	for p := 0; p < len(text); {
		end := w.next(m.classes, text, p)
		dst = m.vocab.appendKnown(k, dst, text, p, end)
		p = end
	}
	m.vocab.putScratch(k)
	if m.ids != nil {
		for i, rank := range dst[from:] {
			dst[from+i] = m.ids[rank]
		}
	}
	return dst
}
