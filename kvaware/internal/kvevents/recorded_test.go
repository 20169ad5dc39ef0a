// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

const recordings = "../../../testdata/kvevents/"

// wanted is an event as wire.py writes it.
type wanted struct {
	Kind      string
	Blocks    []string
	Parent    *string
	Tokens    []uint32
	BlockSize int `json:"block_size"`
	Tier      Tier
	Group     int
	Attention Attention
	LoRA      string
	Salt      string
	Others    []bool
}

// wantedKey is the Key of a hash as wire.py writes it.
func wantedKey(t *testing.T, s string) Key {
	t.Helper()
	if digits, ok := strings.CutPrefix(s, "0x"); ok {
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		return xxh3.Hash(b)
	}
	k, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (w *wanted) check(t *testing.T, e *Event) {
	t.Helper()
	kind := map[string]Kind{"stored": Stored, "removed": Removed, "cleared": Cleared}[w.Kind]
	if e.Kind != kind {
		t.Fatalf("kind %d, want %s", e.Kind, w.Kind)
	}
	if kind == Cleared {
		return
	}
	want := Event{
		Kind: kind, Tier: w.Tier, Group: w.Group, Attention: w.Attention, BlockSize: w.BlockSize, HasParent: w.Parent != nil,
		Blocks: e.Blocks, Tokens: e.Tokens, LoRA: e.LoRA, Extra: e.Extra,
	}
	if w.Parent != nil {
		want.Parent = wantedKey(t, *w.Parent)
	}
	if !reflect.DeepEqual(*e, want) || string(e.LoRA) != w.LoRA {
		t.Errorf("event %+v, want %+v, adapter %q", *e, want, w.LoRA)
	}
	if len(e.Blocks) != len(w.Blocks) || len(e.Tokens) != len(w.Tokens) {
		t.Fatalf("%d blocks, %d tokens, want %d, %d", len(e.Blocks), len(e.Tokens), len(w.Blocks), len(w.Tokens))
	}
	for i, k := range e.Blocks {
		if k != wantedKey(t, w.Blocks[i]) {
			t.Errorf("block %d: %x, want %s", i, k, w.Blocks[i])
		}
	}
	for i, id := range e.Tokens {
		if id != w.Tokens[i] {
			t.Fatalf("token %d: %d, want %d", i, id, w.Tokens[i])
		}
	}
	extra := e.Extra
	if extra == nil {
		extra = make([]Extra, len(e.Blocks))
	}
	for i, x := range extra {
		salt := ""
		if i == 0 {
			salt = w.Salt
		}
		if string(x.Salt) != salt || kind == Stored && (x.Other != 0) != w.Others[i] {
			t.Errorf("block %d: salt %q, other %x, want %q, %v", i, x.Salt, x.Other, salt, w.Others[i])
		}
	}
}

// lines calls f with each line of a recording.
func lines(t *testing.T, name string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(recordings + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var r io.Reader = file
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(file); err != nil {
			t.Fatal(err)
		}
	}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		f(s.Bytes())
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
}

func TestMessagesOfEveryVersionAreRead(t *testing.T) {
	shapes := map[string]int{}
	lines(t, "wire.jsonl", func(line []byte) {
		var l struct {
			Shape  string
			Frames [][]byte
			Want   struct {
				Time          float64
				Rank, Skipped int
				Events        []wanted
			}
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprintf("%s/%d", l.Shape, shapes[l.Shape]), func(t *testing.T) {
			var d Decoder
			var b Batch
			if err := d.Decode(l.Frames[len(l.Frames)-1], &b); err != nil {
				t.Fatal(err)
			}
			if b.Time != l.Want.Time || b.Rank != l.Want.Rank || b.Skipped != l.Want.Skipped || len(b.Events) != len(l.Want.Events) {
				t.Fatalf("time %v, rank %d, skipped %d, %d events, want %v, %d, %d, %d", b.Time, b.Rank, b.Skipped, len(b.Events),
					l.Want.Time, l.Want.Rank, l.Want.Skipped, len(l.Want.Events))
			}
			for i := range b.Events {
				l.Want.Events[i].check(t, &b.Events[i])
			}
		})
		shapes[l.Shape]++
	})
	if len(shapes) != 17 {
		t.Errorf("%d shapes, want 17", len(shapes))
	}
}

// held follows what an engine has in its GPU tier, by whole prefixes.
type held struct {
	prefixes map[Key]string // of the blocks seen, as bytes
	count    map[string]int
}

func prefixOf(before string, tokens []uint32) string {
	var b bytes.Buffer
	b.WriteString(before)
	for _, id := range tokens {
		fmt.Fprintf(&b, "%d ", id)
	}
	return b.String()
}

func (h *held) apply(t *testing.T, b *Batch) {
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case Cleared:
			clear(h.count)
		case Removed:
			for _, k := range e.Blocks {
				h.count[h.prefixes[k]]--
			}
		case Stored:
			if !e.Whole() || e.Tier != GPU || e.Attention != FullAttention || e.Group != 0 {
				t.Fatalf("store %+v", e)
			}
			prefix := ""
			if e.HasParent {
				prefix = h.prefixes[e.Parent]
			} else if e.Extra != nil {
				prefix = string(e.Extra[0].Salt)
			}
			for i, k := range e.Blocks {
				prefix = prefixOf(prefix, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
				h.prefixes[k] = prefix
				h.count[prefix]++
			}
		}
	}
}

// cached is how many of a prompt's tokens the engine finds in its cache: whole
// blocks, and never the last token.
func (h *held) cached(salt string, tokens []uint32, blockSize int) int {
	prefix, n := salt, 0
	for n+blockSize < len(tokens) {
		prefix = prefixOf(prefix, tokens[n:n+blockSize])
		if h.count[prefix] <= 0 {
			break
		}
		n += blockSize
	}
	return n
}

func TestAnEnginesEventsTellWhatItReportsAsCached(t *testing.T) {
	const blockSize = 32
	var d Decoder
	var b Batch
	engine := held{prefixes: map[Key]string{}, count: map[string]int{}}
	var published [][]byte
	predicted, reported := map[int]int{}, map[int]int{}
	tokens := map[int][]uint32{}
	kinds := map[Kind]int{}
	replays := 0
	lines(t, "engine.jsonl.gz", func(line []byte) {
		var l struct {
			Kind     string
			ID       int
			Body     string
			Tokens   []uint32
			Frames   [][]byte
			Start    int
			Messages [][][]byte
			Chunks   [][2]json.RawMessage
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		switch l.Kind {
		case "events":
			if err := d.Decode(l.Frames[2], &b); err != nil || b.Skipped > 0 || b.Rank != 0 {
				t.Fatalf("message %d: %v, %+v", len(published), err, b)
			}
			for i := range b.Events {
				kinds[b.Events[i].Kind]++
			}
			engine.apply(t, &b)
			published = append(published, bytes.Clone(l.Frames[2]))
		case "tokenize":
			tokens[l.ID] = l.Tokens
		case "request":
			var body struct {
				Salt string `json:"cache_salt"`
			}
			if err := json.Unmarshal([]byte(l.Body), &body); err != nil {
				t.Fatal(err)
			}
			predicted[l.ID] = engine.cached(body.Salt, tokens[l.ID], blockSize)
		case "reset":
			// The engine says so with its next message, which the next
			// request brings.
			clear(engine.count)
		case "response":
			var stream []byte
			for _, c := range l.Chunks {
				var part []byte
				if err := json.Unmarshal(c[1], &part); err != nil {
					t.Fatal(err)
				}
				stream = append(stream, part...)
			}
			_, usage, ok := bytes.Cut(stream, []byte(`"cached_tokens":`))
			if !ok {
				t.Fatalf("response %d tells no cached tokens", l.ID)
			}
			digits, _, _ := bytes.Cut(usage, []byte(","))
			n, err := strconv.Atoi(string(digits))
			if err != nil {
				t.Fatal(err)
			}
			reported[l.ID] = n
		case "replay":
			replays++
			if len(l.Messages) != len(published)-l.Start+1 {
				t.Fatalf("replay from %d: %d messages, want %d and the end", l.Start, len(l.Messages), len(published)-l.Start)
			}
			for i, frames := range l.Messages[:len(l.Messages)-1] {
				if !bytes.Equal(frames[len(frames)-1], published[l.Start+i]) {
					t.Errorf("replay from %d: message %d differs", l.Start, i)
				}
			}
		}
	})
	for id, want := range reported {
		if predicted[id] != want {
			t.Errorf("request %d: events tell of %d cached tokens, the engine of %d", id, predicted[id], want)
		}
	}
	if len(reported) < 20 || replays != 2 || kinds[Removed] == 0 || kinds[Cleared] != 1 {
		t.Errorf("%d responses, %d replays, events %v", len(reported), replays, kinds)
	}
}
