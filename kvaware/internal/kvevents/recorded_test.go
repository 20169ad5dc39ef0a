// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bufio"
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
