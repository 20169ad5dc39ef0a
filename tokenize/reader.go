// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math/rand/v2"
	"sync"
	"unicode/utf8"
)

// Reader reads request bodies. It owns the memory that reading needs, so that a
// reader in use for a while allocates nothing. It is not safe for concurrent
// use; take one with [AcquireReader] for each request.
type Reader struct {
	secret uint64
	salter func(given, nested string) string // nil: salts are as they are given
	salted string                            // what the salter gave; "" if nothing

	scanner scanner
	pieces  []piece
	text    []byte // text that is not in the body as it stands: unescaped, compacted
	ids     []uint32
	begun   []uint32 // those behind the last whole block of the prompt that was chained last, if they are known
	blocks  []uint64
	req     Request
	names   map[string]string

	// For the prompts being laid out.
	root     uint64 // what those without an adapter of their own are chained to
	keepLast int
}

// processSecret keys the hashes of readers that are given no secret: hashes of
// two processes cannot be compared, and no client can aim at a collision.
var processSecret = rand.Uint64()

// NewReader returns a reader whose hashes are keyed by the process's own random
// secret.
func NewReader() *Reader {
	return &Reader{secret: processSecret, names: make(map[string]string)}
}

// SetSecret keys the hashes from the next Read on, so that processes which
// share a secret get the same hashes (on machines of one byte order).
func (rd *Reader) SetSecret(secret uint64) { rd.secret = secret }

var readers = sync.Pool{New: func() any { return NewReader() }}

// AcquireReader returns a reader from a pool, with the process's own secret.
func AcquireReader() *Reader { return readers.Get().(*Reader) }

// What a reader may keep when it goes back to the pool, in elements. A request
// of 128k tokens stays below; the memory of a monster is dropped.
const (
	keptNodes   = 1 << 16 // 1 MiB
	keptPieces  = 1 << 16 // 1.5 MiB
	keptText    = 1 << 20
	keptIDs     = 1 << 18 // 1 MiB
	keptBlocks  = 1 << 16 // 512 KiB
	keptPrompts = 1 << 12
	keptNames   = 64
)

// Release puts the reader back into the pool. The reader and its last Request
// must not be used after it.
func (rd *Reader) Release() {
	prompts := rd.req.Prompts[:0]
	clear(prompts[:cap(prompts)])
	rd.req = Request{Prompts: kept(prompts, keptPrompts)}
	rd.scanner = scanner{
		nodes: kept(rd.scanner.nodes, keptNodes),
		stack: rd.scanner.stack,
	}
	rd.pieces = kept(rd.pieces, keptPieces)
	rd.text = kept(rd.text, keptText)
	rd.ids, rd.begun = kept(rd.ids, keptIDs), nil
	rd.blocks = kept(rd.blocks, keptBlocks)
	rd.secret, rd.salter, rd.salted = processSecret, nil, ""
	readers.Put(rd)
}

func kept[T any](s []T, most int) []T {
	if cap(s) > most {
		return nil
	}
	return s[:0]
}

// Read reads the body of a request of the kind that [KindOfPath] gave for the
// path. A body of KindNone is read only if it is plainly a chat; what speaks
// another API than its path says (TGI at SGLang's path) gets that one's kind.
//
// The body is read as the engines' Python readers would: the last of duplicate
// keys counts, keys may be escaped, surrogate pairs are joined, a byte-order
// mark may come first, NaN and Infinity are numbers, and 256.0 is an integer.
// Lone surrogates and bytes that are no UTF-8 become U+FFFD.
//
// The Request is never nil. With an error (always an *[Error]) it has no
// prompts, but the model, if that could be read.
func (rd *Reader) Read(kind Kind, path string, body []byte) (*Request, error) {
	rd.pieces, rd.text, rd.blocks, rd.salted = rd.pieces[:0], rd.text[:0], rd.blocks[:0], ""
	req := &rd.req
	*req = Request{Kind: kind, Choices: 1, MaxOutput: -1, WholePrompt: true, Prompts: req.Prompts[:0]}

	reason, at := rd.scanner.scan(body)
	var f fields
	if len(rd.scanner.nodes) > 0 {
		rd.collect(0, &f)
		req.Model = rd.name(f[keyModel])
	}
	req.Namespace = rd.hashString(tagModel, req.Model)
	if reason == "" {
		req.Kind = rd.kindByShape(kind, &f)
	}
	if req.Kind == Unlisted || req.Kind == KindNone && reason == "" {
		reason, at = ReasonUnlisted, 0
	}
	if reason != "" {
		return req, &Error{Reason: reason, Offset: at}
	}

	rd.parameters(&f, path)
	rd.identity(&f)
	if reason = rd.shape(&f); reason == "" && len(req.Prompts) == 0 {
		reason = ReasonNoPrompt
	}
	if reason != "" {
		req.Prompts = req.Prompts[:0]
		return req, &Error{Reason: reason}
	}
	return req, nil
}

// fields are the members of an object by key: indexes of nodes, 0 for none
// (the root is nobody's member).
type fields [keyCount]uint32

// collect finds an object's members; the last of duplicate keys stays.
func (rd *Reader) collect(object uint32, f *fields) {
	nodes := rd.scanner.nodes
	for c := object + 1; c < nodes[object].next; c = nodes[c].next {
		f[nodes[c].key] = c
	}
	f[keyOther] = 0
}

// kindOf returns a node's kind; an absent one is null.
func (rd *Reader) kindOf(n uint32) valueKind {
	if n == 0 {
		return nullValue
	}
	return rd.scanner.nodes[n].kind
}

func (rd *Reader) isNull(n uint32) bool { return rd.kindOf(n) == nullValue }

// member returns an object's member, or 0.
func (rd *Reader) member(object uint32, k key) (found uint32) {
	if rd.kindOf(object) != objectValue {
		return 0
	}
	nodes := rd.scanner.nodes
	for c := object + 1; c < nodes[object].next; c = nodes[c].next {
		if nodes[c].key == k {
			found = c
		}
	}
	return found
}

// span returns a node's bytes as they stand in the body.
func (rd *Reader) span(n uint32) []byte {
	nd := &rd.scanner.nodes[n]
	return rd.scanner.body[nd.start:nd.end]
}

// stringOf returns a string's text, which is valid until the next call that
// uses the reader's text memory; nil for what is no string.
func (rd *Reader) stringOf(n uint32) []byte {
	if rd.kindOf(n) != stringValue {
		return nil
	}
	nd := &rd.scanner.nodes[n]
	return rd.plain(rd.scanner.body[nd.start:nd.end], nd.flags)
}

// plain returns the text of a string's raw bytes: those bytes themselves where
// they are the text.
func (rd *Reader) plain(raw []byte, flags uint8) []byte {
	if flags&escaped != 0 {
		rd.text = appendUnescaped(rd.text[:0], raw)
		raw = rd.text
	}
	if flags&nonASCII != 0 {
		return rd.valid(raw)
	}
	return raw
}

// valid returns text with what is no UTF-8 replaced. Text may be rd.text.
func (rd *Reader) valid(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	if len(text) == len(rd.text) && &text[0] == &rd.text[0] {
		// The replaced text is written behind the original, as it may grow.
		n := len(text)
		rd.text = appendValid(rd.text, text)
		return rd.text[n:]
	}
	rd.text = appendValid(rd.text[:0], text)
	return rd.text
}

// compact returns a value as compact JSON, valid as stringOf's result is.
func (rd *Reader) compact(value []byte) []byte {
	rd.text = appendCompact(rd.text[:0], value)
	return rd.valid(rd.text)
}

// name returns a string as one that may be kept. Model and adapter names recur,
// so a few are remembered and cost no allocation.
func (rd *Reader) name(n uint32) string {
	text := rd.stringOf(n)
	if len(text) == 0 {
		return ""
	}
	if s, ok := rd.names[string(text)]; ok {
		return s
	}
	s := string(text)
	if len(s) <= 256 {
		if len(rd.names) >= keptNames {
			clear(rd.names)
		}
		rd.names[s] = s
	}
	return s
}

// integer reads a number, or a string of one, which pydantic takes as well.
func (rd *Reader) integer(n uint32) (v int64, ok bool) {
	switch rd.kindOf(n) {
	case numberValue, stringValue:
		return integerOf(rd.span(n))
	}
	return 0, false
}

// isTrue reads a boolean with pydantic's leniency: 1 and "true" are true.
func (rd *Reader) isTrue(n uint32) bool {
	switch rd.kindOf(n) {
	case trueValue:
		return true
	case numberValue:
		v, ok := rd.integer(n)
		return ok && v == 1
	case stringValue:
		switch string(rd.span(n)) {
		case "1", "true", "True", "TRUE", "t", "y", "yes", "on":
			return true
		}
	}
	return false
}

// isFalse tells whether a boolean is given and false.
func (rd *Reader) isFalse(n uint32) bool {
	return n != 0 && !rd.isNull(n) && !rd.isTrue(n)
}
