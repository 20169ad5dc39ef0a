// SPDX-License-Identifier: Apache-2.0

package tokenize

// Script is the class of scripts a prompt is mostly written in. Vocabularies
// differ little in how they take English and code, and much in the rest.
type Script uint8

// The classes. OtherScript is a prompt of which half the bytes or more are not
// ASCII; at that share a Chinese or Japanese text makes up half of the tokens.
const (
	ASCIIScript Script = iota
	OtherScript
)

// String returns the name used in logs.
func (s Script) String() string {
	if s == OtherScript {
		return "other"
	}
	return "ascii"
}

const (
	scriptSamples = 32
	sampleBytes   = 64
)

// Script tells the class of the request last read, by a few samples from all of
// the text of its prompts.
func (rd *Reader) Script() Script {
	total := 0
	for i := range rd.pieces {
		total += rd.pieces[i].textLen()
	}
	step := max(total/scriptSamples, sampleBytes)
	var ascii, other int
	at := 0 // where the next sample begins, from the start of the piece
	for i := range rd.pieces {
		p := &rd.pieces[i]
		n := p.textLen()
		for ; at < n; at += step {
			raw := rd.scanner.body[p.start:p.end][at:]
			a, o := countScripts(raw[:min(len(raw), sampleBytes)])
			ascii += a
			other += o
		}
		at -= n
	}
	if other > 0 && other >= ascii {
		return OtherScript
	}
	return ASCIIScript
}

// textLen is the length, in bytes of the body, of a piece that holds text.
func (p *piece) textLen() int {
	if p.kind != textPiece && p.kind != jsonPiece {
		return 0
	}
	return int(p.end - p.start)
}

// countScripts counts the bytes of raw JSON text, an escaped character counting
// as about what it would take unescaped.
func countScripts(raw []byte) (ascii, other int) {
	for i := 0; i < len(raw); i++ {
		switch {
		case raw[i] >= 0x80:
			other++
		case raw[i] == '\\' && i+5 < len(raw) && raw[i+1] == 'u':
			if raw[i+2] == '0' && raw[i+3] == '0' && raw[i+4] < '8' {
				ascii++
			} else {
				other += 3
			}
			i += 5
		default:
			ascii++
		}
	}
	return ascii, other
}
