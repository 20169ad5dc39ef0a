// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// held follows what an engine has, by whole prefixes, as its full-attention
// group tells.
type held struct {
	prefixes  map[Key]string // of the blocks seen
	count     map[string]int // in the GPU tier
	cpu       map[string]int
	kinds     [3]int // events seen
	described int    // offloads with tokens
	partial   int    // stores of other groups that name fewer blocks than tokens
}

// root is what tells a prompt's blocks apart besides tokens.
func root(lora, salt string) string { return lora + "\x00" + salt + "\x00" }

func extended(prefix string, tokens []uint32) string {
	b := []byte(prefix)
	for _, id := range tokens {
		b = binary.BigEndian.AppendUint32(b, id)
	}
	return string(b)
}

func (h *held) apply(t *testing.T, b *Batch) {
	t.Helper()
	for i := range b.Events {
		e := &b.Events[i]
		h.kinds[e.Kind]++
		switch e.Kind {
		case Cleared:
			clear(h.count)
		case Removed:
			for _, k := range e.Blocks {
				if e.Tier == CPU {
					h.cpu[h.prefixes[k]]--
				} else {
					h.count[h.prefixes[k]]--
				}
			}
		case Stored:
			if e.Tier == CPU {
				h.offload(t, e)
				continue
			}
			if e.Attention == OtherAttention {
				if !e.Whole() {
					h.partial++
				}
				continue
			}
			if !e.Whole() || e.Tier != GPU {
				t.Fatalf("store %+v", e)
			}
			prefix := root(string(e.LoRA), "")
			if e.Extra != nil && e.Extra[0].Salt != nil {
				prefix = root(string(e.LoRA), string(e.Extra[0].Salt))
			}
			if e.HasParent {
				prefix = h.prefixes[e.Parent]
			}
			for i, k := range e.Blocks {
				prefix = extended(prefix, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
				h.prefixes[k] = prefix
				h.count[prefix]++
			}
		}
	}
}

// offload counts blocks of the CPU tier, which the GPU had before: what tells
// them apart besides tokens, only the hash knows.
func (h *held) offload(t *testing.T, e *Event) {
	t.Helper()
	for i, k := range e.Blocks {
		prefix, ok := h.prefixes[k]
		if !ok {
			t.Fatal("a block is offloaded that was never stored")
		}
		if e.Whole() && !strings.HasSuffix(prefix, extended("", e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])) {
			t.Error("an offloaded block has other tokens than the GPU's")
		}
		h.cpu[prefix]++
	}
	if e.Whole() {
		h.described++
	}
}

// cached is how many of a prompt's tokens are held, in whole blocks within the
// first limit.
func cached(count map[string]int, prefix string, tokens []uint32, blockSize, limit int) int {
	n := 0
	for n+blockSize <= limit {
		if prefix = extended(prefix, tokens[n:n+blockSize]); count[prefix] <= 0 {
			break
		}
		n += blockSize
	}
	return n
}

// recorded is a line of a recording.
type recorded struct {
	Kind              string
	ID                int
	Body              string
	Salt              string
	Cached, Offloaded int
	Tokens            []uint32
	Frames            [][]byte
	Start             int
	Messages          [][][]byte
	Chunks            [][2]json.RawMessage
}

// player reads a recording's messages into what is held.
type player struct {
	held
	decoder   Decoder
	batch     Batch
	published [][]byte
	replays   int
}

func play(t *testing.T, name string, f func(p *player, l *recorded)) *player {
	t.Helper()
	p := &player{held: held{prefixes: map[Key]string{}, count: map[string]int{}, cpu: map[string]int{}}}
	lines(t, name, func(line []byte) {
		var l recorded
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		switch l.Kind {
		case "events":
			if err := p.decoder.Decode(l.Frames[2], &p.batch); err != nil || p.batch.Skipped > 0 || p.batch.Rank != 0 {
				t.Fatalf("message %d: %v, %+v", len(p.published), err, p.batch)
			}
			p.apply(t, &p.batch)
			p.published = append(p.published, l.Frames[2])
		case "replay":
			p.replays++
			if len(l.Messages) != len(p.published)-l.Start+1 {
				t.Fatalf("replay from %d: %d messages, want %d and the end", l.Start, len(l.Messages), len(p.published)-l.Start)
			}
			for i, frames := range l.Messages[:len(l.Messages)-1] {
				if !bytes.Equal(frames[len(frames)-1], p.published[l.Start+i]) {
					t.Errorf("replay from %d: message %d differs", l.Start, i)
				}
			}
		default:
			f(p, &l)
		}
	})
	if p.kinds[Removed] == 0 || p.kinds[Cleared] == 0 {
		t.Errorf("events %v", p.kinds)
	}
	return p
}

var cachedTokens = regexp.MustCompile(`"cached_tokens":(\d+)`)

func TestVLLMsEventsTellWhatItReportsAsCached(t *testing.T) {
	const blockSize = 32
	for _, kind := range []string{"plain", "adapter", "hybrid"} {
		t.Run(kind, func(t *testing.T) {
			predicted, tokens := map[int]int{}, map[int][]uint32{}
			together := map[int]bool{} // sent with others still being answered
			var sent []int
			answers, less := 0, 0
			p := play(t, "vllm-"+kind+".jsonl.gz", func(p *player, l *recorded) {
				switch l.Kind {
				case "tokenize":
					tokens[l.ID] = l.Tokens
				case "reset":
					// The engine says so with the next request's events.
					clear(p.count)
				case "request":
					var body struct {
						Model string
						Salt  string `json:"cache_salt"`
					}
					if err := json.Unmarshal([]byte(l.Body), &body); err != nil {
						t.Fatal(err)
					}
					if body.Model == "tiny" {
						body.Model = ""
					}
					prompt := tokens[l.ID]
					if sent = append(sent, l.ID); len(sent) > 1 {
						for _, id := range sent {
							together[id] = true
						}
					}
					predicted[l.ID] = cached(p.count, root(body.Model, body.Salt), prompt, blockSize, len(prompt)-1)
				case "response":
					var stream []byte
					for _, c := range l.Chunks {
						var part []byte
						if err := json.Unmarshal(c[1], &part); err != nil {
							t.Fatal(err)
						}
						stream = append(stream, part...)
					}
					told := cachedTokens.FindSubmatch(stream)
					if told == nil {
						t.Fatalf("response %d tells no cached tokens", l.ID)
					}
					reported, _ := strconv.Atoi(string(told[1]))
					answers++
					sent = slices.DeleteFunc(sent, func(id int) bool { return id == l.ID })
					// Blocks for one request may be another's that waits.
					exact := kind != "hybrid" && !together[l.ID]
					switch {
					case reported > predicted[l.ID], exact && reported < predicted[l.ID]:
						t.Errorf("request %d: events tell of %d cached tokens, the engine of %d", l.ID, predicted[l.ID], reported)
					case reported < predicted[l.ID]:
						less++
					}
				}
			})
			if p.replays != 2 || answers < 20 || len(predicted) != answers || len(together) != 3 {
				t.Errorf("%d replays, %d answers to %d requests, %d together", p.replays, answers, len(predicted), len(together))
			}
			// Where a sliding window's blocks are not kept, the engine finds less
			// than full attention's blocks promise.
			if kind == "hybrid" && (less == 0 || less == answers || p.partial == 0) {
				t.Errorf("%d of %d answers report less, %d stores name fewer blocks", less, answers, p.partial)
			}
		})
	}
}

func TestSGLangsEventsTellWhatItsCacheFinds(t *testing.T) {
	for kind, c := range map[string]struct{ page, beyond, over int }{
		"pages":  {page: 16},
		"tokens": {page: 1},
		// A page of pairs ends with the token after it, which its events do not
		// tell apart: one page too many may be believed to be held.
		"eagle": {page: 16, beyond: 1, over: 16},
	} {
		t.Run(kind, func(t *testing.T) {
			lookups := 0
			p := play(t, "sglang-"+kind+".jsonl.gz", func(p *player, l *recorded) {
				if l.Kind != "lookup" {
					return
				}
				lookups++
				got := cached(p.count, root("", l.Salt), l.Tokens, c.page, len(l.Tokens)-c.beyond)
				if got < l.Cached || got > l.Cached+c.over {
					t.Errorf("lookup %d: events tell of %d cached tokens, the cache has %d", lookups, got, l.Cached)
				}
			})
			if lookups < 20 || p.replays != 1 {
				t.Errorf("%d lookups, %d replays", lookups, p.replays)
			}
		})
	}
}

func TestVLLMsEventsTellWhatIsOffloaded(t *testing.T) {
	const block = 16
	for kind, c := range map[string]struct {
		chunk     int
		described bool
	}{
		"blocks":    {block, false},
		"chunks":    {4 * block, false},
		"described": {4 * block, true},
	} {
		t.Run(kind, func(t *testing.T) {
			lookups, offloaded := 0, 0
			p := play(t, "offload-"+kind+".jsonl.gz", func(p *player, l *recorded) {
				if l.Kind != "lookup" {
					return
				}
				lookups++
				offloaded += l.Offloaded
				from := root("", l.Salt)
				if got := cached(p.count, from, l.Tokens, block, len(l.Tokens)); got != l.Cached {
					t.Errorf("lookup %d: events tell of %d tokens in the GPU's memory, the engine has %d", lookups, got, l.Cached)
				}
				if got := cached(p.cpu, from, l.Tokens, c.chunk, len(l.Tokens)); got != l.Offloaded {
					t.Errorf("lookup %d: events tell of %d tokens in the CPU's memory, the engine has %d", lookups, got, l.Offloaded)
				}
			})
			if lookups < 20 || offloaded == 0 || p.described > 0 != c.described {
				t.Errorf("%d lookups, %d tokens offloaded, %d stores with tokens", lookups, offloaded, p.described)
			}
		})
	}
}
