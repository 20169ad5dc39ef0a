// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"sync"
	"weak"
)

// HFTokenizer turns text into the token ids of a tokenizer.json of Hugging Face
// tokenizers. It is immutable and safe for concurrent use.
//
// Ids equal those of the tokenizers library as long as no piece is longer than
// maxMergePiece or maxUnigramPiece bytes where the model has no faster way (see
// merger and unigram); longer pieces are cut there. The file's truncation,
// padding and decoder are ignored: engines turn the first two off, and nothing
// is decoded here.
type HFTokenizer struct {
	normalizers []normalizer
	model       textModel
	added       addedTokens
	before      []uint32
	after       []uint32
	scratches   sync.Pool // of *hfScratch
}

// textModel appends the ids of a normalized text between added tokens, which is
// not empty. First tells that it stands at the beginning of the whole text.
type textModel interface {
	appendText(s *hfScratch, dst []uint32, text []byte, first bool) []uint32
}

// hfScratch is what one call works with.
type hfScratch struct {
	normal, other []byte // of the normalizers, in turns
	spaced        []byte // of metaspace
	merge         mergeScratch
	unigram       unigramScratch
}

// hfKept bounds, in bytes, what text goes back to the pool.
const hfKept = 1 << 20

// loaded are the tokenizers in use by the SHA-256 of their files. An entry goes
// when nobody holds its tokenizer any more. The mutex guards the map and is held
// while a file is parsed, so that two users of one file parse it once.
var loaded struct {
	sync.Mutex
	byContent map[[sha256.Size]byte]weak.Pointer[HFTokenizer]
}

// LoadHF returns the tokenizer that the file describes. Files of the same
// content share one tokenizer for as long as any of its users keeps it. A
// tokenizer that is not understood to the letter is refused; the error is a
// [*HFError], or that of opening or reading the file.
func LoadHF(path string) (*HFTokenizer, error) {
	file, err := readHFFile(path)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(file)
	loaded.Lock()
	defer loaded.Unlock()
	if t := loaded.byContent[sum].Value(); t != nil {
		return t, nil
	}
	t, refusal := parseHF(file)
	if refusal != nil {
		refusal.Path = path
		return nil, refusal
	}
	if loaded.byContent == nil {
		loaded.byContent = make(map[[sha256.Size]byte]weak.Pointer[HFTokenizer])
	}
	loaded.byContent[sum] = weak.Make(t)
	runtime.AddCleanup(t, forget, sum)
	return t, nil
}

// forget drops the entry of a tokenizer that is gone, unless it was loaded anew.
func forget(sum [sha256.Size]byte) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.byContent[sum].Value() == nil {
		delete(loaded.byContent, sum)
	}
}

func readHFFile(path string) ([]byte, error) {
	// Opening a pipe would wait for who writes to it.
	info, err := os.Stat(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("opening the tokenizer: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, &HFError{path, "file", "not a regular file", "name the tokenizer.json itself"}
	case info.Size() > maxHFFile:
		return nil, &HFError{path, "file", fmt.Sprintf("%d bytes, more than %d", info.Size(), maxHFFile), "no known tokenizer.json is so large; check the path"}
	}
	f, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("opening the tokenizer: %w", err)
	}
	defer f.Close()
	file := make([]byte, info.Size()+1)
	n, err := readFull(f, file)
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer %s: %w", path, err)
	}
	if int64(n) > info.Size() {
		return nil, &HFError{path, "file", "it grew while it was read", "put the file in place with a rename"}
	}
	return file[:n], nil
}

// Append appends the ids of text to dst and returns it. What looks like an added
// or special token is plain text. Text should be valid UTF-8.
func (t *HFTokenizer) Append(dst []uint32, text []byte) []uint32 {
	s := t.getScratch()
	if text = t.normalized(s, text); len(text) > 0 {
		dst = t.model.appendText(s, dst, text, true)
	}
	t.putScratch(s)
	return dst
}

// AppendSpecial appends the ids of text, in which added tokens, special or not,
// are recognised wherever they stand, as the library does with
// add_special_tokens=False. It is how engines encode a rendered chat template.
func (t *HFTokenizer) AppendSpecial(dst []uint32, text []byte) []uint32 {
	s := t.getScratch()
	dst = t.added.raw.split(dst, text, func(dst []uint32, section []byte, start int) []uint32 {
		normal := t.normalized(s, section)
		return t.added.normalized.split(dst, normal, func(dst []uint32, part []byte, at int) []uint32 {
			return t.model.appendText(s, dst, part, start == 0 && at == 0)
		})
	})
	t.putScratch(s)
	return dst
}

// Frame returns the ids that the file's post-processor puts before and after a
// single text, such as a beginning-of-sequence token. Append and AppendSpecial
// do not apply them. The slices must not be changed.
func (t *HFTokenizer) Frame() (before, after []uint32) { return t.before, t.after }

func (t *HFTokenizer) normalized(s *hfScratch, text []byte) []byte {
	for _, n := range t.normalizers {
		out := n.normalize(&s.other, text)
		if len(out) > 0 && len(s.other) > 0 && &out[0] == &s.other[0] {
			// What was written is not to be written over by the next one.
			s.normal, s.other = s.other, s.normal
		}
		text = out
	}
	return text
}

func (t *HFTokenizer) getScratch() *hfScratch {
	if s, ok := t.scratches.Get().(*hfScratch); ok {
		return s
	}
	return new(hfScratch)
}

func (t *HFTokenizer) putScratch(s *hfScratch) {
	for _, b := range []*[]byte{&s.normal, &s.other, &s.spaced} {
		if cap(*b) > hfKept {
			*b = nil
		}
	}
	t.scratches.Put(s)
}
