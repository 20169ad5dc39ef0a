// SPDX-License-Identifier: Apache-2.0

package tokenize

import "slices"

// What stands for the parts of a prompt whose text is not in the body, in
// tokens. The template's share is ChatML's: <|im_start|>, role and newline
// before a message, <|im_end|> and newline after it. Media are estimates, as
// their real cost depends on size and model: an image of about a megapixel, half
// a minute of sound at 25 tokens a second, a short clip, a document of a page or two.
const (
	startTokens    = 3
	endTokens      = 2
	argumentTokens = 1
	imageTokens    = 768
	audioTokens    = 750
	videoTokens    = 2048
	fileTokens     = 1024
	opaqueTokens   = 64
)

// maxCopied is how long, in bytes, a content part of an unknown type may be to
// count as text. What is longer is taken for encoded data.
const maxCopied = 4096

type pieceKind uint8

const (
	textPiece      pieceKind = iota // a string, or a part of one
	jsonPiece                       // any value, as compact JSON
	numbersPiece                    // token ids
	syntheticPiece                  // count ids derived from seed
)

// piece is a stretch of a prompt: the bytes [start, end) of the body, or for a
// synthetic one end ids that seed determines.
type piece struct {
	seed       uint64
	start, end uint32
	kind       pieceKind
	flags      uint8
}

// encode appends the ids of a piece to rd.ids.
func (rd *Reader) encode(p *piece, enc Encoder) {
	if p.kind == syntheticPiece {
		for i := range p.end {
			rd.ids = append(rd.ids, syntheticID(p.seed, i))
		}
		return
	}
	raw := rd.scanner.body[p.start:p.end]
	switch p.kind {
	case textPiece:
		if text := rd.plain(raw, p.flags); len(text) > 0 {
			rd.ids = enc.Append(rd.ids, text)
		}
	case jsonPiece:
		rd.ids = enc.Append(rd.ids, rd.compact(raw))
	case numbersPiece:
		rd.ids = appendIDs(rd.ids, raw)
	}
}

// appendIDs appends the token ids of a run of numbers. An id that no encoder
// can give is folded below 1<<31, so that no client can write synthetic ones.
func appendIDs(dst []uint32, run []byte) []uint32 {
	for i := 0; i < len(run); {
		var v uint32
		start := i
		for i < len(run) && run[i]-'0' <= 9 {
			v = v*10 + uint32(run[i]-'0')
			i++
		}
		// Anything but a plain integer of a sane size is rare enough to be read again.
		if i < len(run) && run[i] != ',' && run[i] > ' ' || i-start > 9 {
			for i < len(run) && run[i] != ',' && run[i] > ' ' {
				i++
			}
			n, _ := integerOf(run[start:i])
			v = uint32(n)
		}
		dst = append(dst, v&(1<<31-1))
		for i < len(run) && (run[i] == ',' || run[i] <= ' ') {
			i++
		}
	}
	return dst
}

// addPiece appends a piece whose fields but the seed are these. It is given no
// piece, which would be put together elsewhere and copied.
func (rd *Reader) addPiece(kind pieceKind, start, end uint32, flags uint8) *piece {
	at := len(rd.pieces)
	if at == cap(rd.pieces) {
		rd.pieces = slices.Grow(rd.pieces, max(64, at))
	}
	rd.pieces = rd.pieces[:at+1]
	p := &rd.pieces[at]
	p.start, p.end, p.kind, p.flags = start, end, kind, flags
	return p
}

func (rd *Reader) addSynthetic(seed uint64, count uint32) {
	rd.addPiece(syntheticPiece, 0, count, 0).seed = seed
}

// addText adds a string; what is none adds nothing.
func (rd *Reader) addText(n uint32) {
	if rd.kindOf(n) != stringValue {
		return
	}
	nd := &rd.scanner.nodes[n]
	if nd.start < nd.end {
		rd.addPiece(textPiece, nd.start, nd.end, nd.flags).seed = 0
	}
}

// addValue adds a string's text, or any other value as compact JSON.
func (rd *Reader) addValue(n uint32) {
	switch rd.kindOf(n) {
	case nullValue:
	case stringValue:
		rd.addText(n)
	default:
		nd := &rd.scanner.nodes[n]
		rd.addPiece(jsonPiece, nd.start, nd.end, 0).seed = 0
	}
}

// addNumbers adds a run of token ids.
func (rd *Reader) addNumbers(n uint32) {
	nd := &rd.scanner.nodes[n]
	rd.addPiece(numbersPiece, nd.start, nd.end, 0).seed = 0
}

// addStart opens a message.
func (rd *Reader) addStart(role []byte) {
	rd.addSynthetic(rd.hash(tagMessage, role), startTokens)
}

func (rd *Reader) addEnd() { rd.addSynthetic(rd.hash(tagEnd, nil), endTokens) }

// addArgument adds an argument of the template, which changes what it renders
// and is hashed, as how it does so is the template's affair.
func (rd *Reader) addArgument(name string, n uint32) {
	if rd.isNull(n) {
		return
	}
	seed := rd.hashString(tagArgument, name) ^ rd.hashValue(tagArgument, n)
	rd.addSynthetic(seed, argumentTokens)
}

// hashValue hashes a string's text, or any other value as compact JSON.
func (rd *Reader) hashValue(tag hashTag, n uint32) uint64 {
	if rd.kindOf(n) == stringValue {
		return rd.hash(tag, rd.stringOf(n))
	}
	return rd.hash(tag, rd.compact(rd.span(n)))
}

// addMedia adds an image, sound, film or file by what identifies it.
func (rd *Reader) addMedia(source uint32, tokens uint32) {
	req := &rd.req
	switch tokens {
	case imageTokens:
		req.Images++
	case audioTokens:
		req.Audio++
	case videoTokens:
		req.Video++
	case fileTokens:
		req.Files++
	}
	seed := rd.hash(tagMedia, nil)
	if source != 0 {
		seed = rd.hashValue(tagMedia, rd.identityOf(source))
	}
	rd.addSynthetic(seed+uint64(tokens), tokens)
}

// identityKeys are the members that tell what a medium is, in the order asked.
// A uuid is what vLLM keys its cache by when the client gives one.
var identityKeys = [...]key{
	keyUUID, keyURL, keyImageURL, keyFileData, keyFileURL, keyFileID, keyData, keySource,
}

// identityOf follows a medium's value to the string that identifies it.
func (rd *Reader) identityOf(n uint32) uint32 {
	for range 4 {
		if rd.kindOf(n) != objectValue {
			return n
		}
		var next uint32
		for _, k := range identityKeys {
			if next = rd.member(n, k); !rd.isNull(next) {
				break
			}
			next = 0
		}
		if next == 0 {
			return n
		}
		n = next
	}
	return n
}

// addOpaque adds a value whose meaning is unknown or secret: as text if short,
// else by its hash.
func (rd *Reader) addOpaque(n uint32) {
	nd := &rd.scanner.nodes[n]
	if nd.kind != stringValue && nd.end-nd.start <= maxCopied {
		rd.addValue(n)
		return
	}
	rd.addSynthetic(rd.hashValue(tagOpaque, n), opaqueTokens)
}
