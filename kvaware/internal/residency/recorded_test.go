// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
)

// recorded is a line of a recording, see testdata/kvevents/README.md.
type recorded struct {
	Kind              string
	ID                int
	Page              int
	Tokens            []uint32
	Salt              string
	Cached, Offloaded int
	Frames            [][]byte
	Body              string
	Chunks            [][2]json.RawMessage
}

func eachRecorded(t *testing.T, name string, f func(*recorded)) {
	t.Helper()
	file, err := os.Open("../../../testdata/kvevents/" + name + ".jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		var line recorded
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		f(&line)
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
}

// follower applies a recording's events to a holder.
type follower struct {
	*Holder
	t       *testing.T
	decoder kvevents.Decoder
	batch   kvevents.Batch
}

func (f *follower) events(line *recorded) {
	f.t.Helper()
	if err := f.decoder.Decode(line.Frames[len(line.Frames)-1], &f.batch); err != nil {
		f.t.Fatal(err)
	}
	f.Apply(&f.batch)
	if err := f.x.check(f.Holder); err != nil {
		f.t.Fatal(err)
	}
}

// leading counts the tokens from a prompt's beginning on that are in a tier.
func (f *follower) leading(lora, salt string, tokens []uint32, p planes) int {
	b := f.life.blocks
	if b == nil {
		return 0
	}
	for i, hash := range chainOf(testChains.Root(lora, salt), tokens, b.size) {
		entry := b.find(hash)
		if entry == 0 || b.sets.has(b.set(entry), &f.life.member)&p == 0 {
			return i * b.size
		}
	}
	return len(tokens) / b.size * b.size
}

// At every lookup the index has what the engine's own radix tree finds.
func TestTheIndexFindsWhatSGLangFinds(t *testing.T) {
	for _, name := range []string{"sglang-pages", "sglang-tokens", "sglang-eagle"} {
		t.Run(name, func(t *testing.T) {
			f := &follower{Holder: newTestIndex().Open(0), t: t}
			f.SetRules(Rules{ClearsAll: true})
			lookups, hits := 0, 0
			eachRecorded(t, name, func(line *recorded) {
				switch line.Kind {
				case "events":
					f.events(line)
				case "lookup":
					got := f.leading("", line.Salt, line.Tokens, inTier)
					if want := line.Cached / 16 * 16; got != want {
						t.Errorf("lookup %d: %d tokens, not %d", lookups, got, want)
					}
					lookups++
					hits += line.Cached
				}
			})
			if st := f.Stats(); lookups == 0 || hits == 0 || st.Malformed+st.Orphaned+st.Unknown+st.Unresolved > 0 || st.Evicted[0] == 0 {
				t.Errorf("%d lookups, %d tokens found, %+v", lookups, hits, st)
			}
		})
	}
}

// In each tier the index has what the engine's own managers find.
func TestTheIndexFindsWhatVLLMOffloads(t *testing.T) {
	for _, name := range []string{"offload-blocks", "offload-chunks", "offload-described"} {
		t.Run(name, func(t *testing.T) {
			f := &follower{Holder: newTestIndex().Open(0), t: t}
			lookups, hits, offloaded, reset := 0, 0, 0, false
			eachRecorded(t, name, func(line *recorded) {
				switch line.Kind {
				case "events":
					f.events(line)
					reset = false
				case "reset":
					reset = true // it is announced with the next events
				case "lookup":
					lookups++
					if reset {
						break
					}
					if got := f.leading("", line.Salt, line.Tokens, inGPU); got != line.Cached {
						t.Errorf("lookup %d: %d tokens in the GPU, not %d", lookups, got, line.Cached)
					}
					if f.learnt.depths[kvevents.CPU].open {
						break // how many blocks are in one is not found yet
					}
					if got := f.leading("", line.Salt, line.Tokens, inCPU); got != line.Offloaded {
						t.Errorf("lookup %d: %d tokens in the CPU, not %d", lookups, got, line.Offloaded)
					}
					hits += line.Cached
					offloaded += line.Offloaded
				}
			})
			if st := f.Stats(); lookups == 0 || hits == 0 || offloaded == 0 || st.Evicted[0] == 0 || st.Evicted[1] == 0 {
				t.Errorf("%d lookups, %d and %d tokens found, %+v", lookups, hits, offloaded, st)
			}
			if f.learnt.depths[kvevents.CPU].open {
				t.Error("how many blocks are in an offloaded one was not found")
			}
		})
	}
}

// Before each request the index has what the engine then reports to have had.
func TestCreditIsWhatVLLMReportsAsCached(t *testing.T) {
	for _, name := range []string{"vllm-plain", "vllm-adapter", "vllm-hybrid"} {
		t.Run(name, func(t *testing.T) {
			f := &follower{Holder: newTestIndex().Open(0), t: t}
			tokens := map[int][]uint32{}
			credit := map[int]int{}
			running, alone, reset := 0, map[int]bool{}, false
			requests, equal, hits := 0, 0, 0
			eachRecorded(t, name, func(line *recorded) {
				switch line.Kind {
				case "events":
					f.events(line)
				case "reset":
					reset = true
				case "tokenize":
					tokens[line.ID] = line.Tokens
				case "request":
					var body struct {
						Model     string
						CacheSalt string `json:"cache_salt"`
					}
					if err := json.Unmarshal([]byte(line.Body), &body); err != nil {
						t.Fatal(err)
					}
					if body.Model == "tiny" {
						body.Model = ""
					}
					ids := tokens[line.ID]
					// The engine computes a prompt's last token always.
					credit[line.ID] = f.leading(body.Model, body.CacheSalt, ids[:len(ids)-1], inTier)
					alone[line.ID] = running == 0 && !reset
					running, reset = running+1, false
				case "response":
					running--
					cached := cachedTokens(t, line)
					requests++
					hits += cached
					got := credit[line.ID]
					switch {
					case got == cached:
						equal++
					case name == "vllm-hybrid" && got > cached: // the windows of the other group are gone
					case alone[line.ID]:
						t.Errorf("request %d: %d tokens, not %d", line.ID, got, cached)
					}
				}
			})
			st := f.Stats()
			if requests == 0 || equal < requests*2/3 || hits == 0 || st.Malformed+st.Orphaned+st.Unknown+st.Unresolved > 0 {
				t.Errorf("%d of %d requests, %d tokens, %+v", equal, requests, hits, st)
			}
			t.Logf("%d of %d requests equal, %d tokens cached", equal, requests, hits)
		})
	}
}

// cachedTokens reads a response's usage.
func cachedTokens(t *testing.T, line *recorded) int {
	t.Helper()
	cached := -1
	for _, chunk := range line.Chunks {
		var text []byte
		if err := json.Unmarshal(chunk[1], &text); err != nil {
			t.Fatal(err)
		}
		for _, event := range bytes.Split(text, []byte("\n\n")) {
			var data struct {
				Usage *struct {
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				}
			}
			if json.Unmarshal(bytes.TrimPrefix(event, []byte("data: ")), &data) == nil && data.Usage != nil {
				cached = data.Usage.Details.Cached
			}
		}
	}
	if cached < 0 {
		t.Fatalf("response %d reports nothing", line.ID)
	}
	return cached
}
