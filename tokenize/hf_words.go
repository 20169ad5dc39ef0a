// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// wordModel is a model over characters with what comes before it.
type wordModel struct {
	pre    *preTokenizer
	pieces pieceModel
}

// pieceModel appends the ids of text[p:end], a piece that pre-tokenization left
// together and that may be empty.
type pieceModel interface {
	appendPiece(s *hfScratch, dst []uint32, text []byte, p, end int) []uint32
}

func (m *wordModel) appendText(s *hfScratch, dst []uint32, text []byte, first bool) []uint32 {
	if !m.pre.words {
		return m.appendWord(s, dst, text, first)
	}
	t := runeClasses()
	for p := 0; p < len(text); {
		start := p
		var class runeClass
		for p < len(text) {
			if text[p] > ' ' && text[p] < utf8.RuneSelf {
				p++
				continue
			}
			if class = t.at(text, p); class&classSpace != 0 {
				break
			}
			p += class.bytes()
		}
		if p > start {
			dst = m.appendWord(s, dst, text[start:p], first && start == 0)
		}
		if p < len(text) {
			p += class.bytes()
		}
	}
	return dst
}

// appendWord appends the ids of a text whose spaces become marks if the file
// has Metaspace.
func (m *wordModel) appendWord(s *hfScratch, dst []uint32, text []byte, first bool) []uint32 {
	if !m.pre.metaspace {
		return m.pieces.appendPiece(s, dst, text, 0, len(text))
	}
	mark := m.pre.mark
	b := s.spaced[:0]
	if text[0] != ' ' && !bytes.HasPrefix(text, mark) && (m.pre.prepend == prependAlways || m.pre.prepend == prependFirst && first) {
		b = append(b, mark...)
	}
	if m.pre.words {
		b = append(b, text...) // a word has no spaces
	} else {
		b = appendReplaced(b, text, spaceByte, mark)
	}
	s.spaced = b
	p := 0
	if m.pre.atMarks {
		for i := 1; i < len(b); i++ {
			n := bytes.IndexByte(b[i:], mark[0])
			if n < 0 {
				break
			}
			if i += n; bytes.HasPrefix(b[i:], mark) {
				dst = m.pieces.appendPiece(s, dst, b, p, i)
				p = i
			}
		}
	}
	return m.pieces.appendPiece(s, dst, b, p, len(b))
}

var spaceByte = []byte(" ")

// appendReplaced appends text with each old, from the left, replaced by new.
func appendReplaced(dst, text, old, new []byte) []byte {
	if len(old) == 1 {
		// Words are too short for a search and a copy of each to pay.
		if n := bytes.Count(text, old); n > len(text)/16 {
			return appendByteReplaced(dst, text, old[0], n, new)
		}
	}
	for {
		i := bytes.Index(text, old)
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(append(dst, text[:i]...), new...)
		text = text[i+len(old):]
	}
}

// appendByteReplaced is appendReplaced for a byte that text holds n times.
func appendByteReplaced(dst, text []byte, old byte, n int, new []byte) []byte {
	at := len(dst)
	size := at + len(text) + n*(len(new)-1)
	dst = slices.Grow(dst, size-at)[:size]
	for _, c := range text {
		if c == old {
			at += copy(dst[at:], new)
			continue
		}
		dst[at] = c
		at++
	}
	return dst
}
