// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// recordedLine is a line of a recording of an engine, see testdata/kvevents.
type recordedLine struct {
	Kind                string
	ID                  int
	Tokenizer, Template string
	Body, Path          string
	Frames              []string
	Chunks              [][2]any
}

func readRecording(t testing.TB, name string) (lines []recordedLine) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "testdata", "kvevents", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var l recordedLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

func decoded(t testing.TB, text any) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(text.(string))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// publishAsRecorded publishes a message with the payload that was recorded.
func (r *announcer) publishAsRecorded(frames []string) {
	payload := decoded(r.t, frames[2])
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pub.Publish(nil, binary.BigEndian.AppendUint64(nil, uint64(len(r.kept))), payload)
	r.kept = append(r.kept, payload)
}

func (r *announcer) published() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(len(r.kept)) - 1
}

// replayed is a recorded request on its way.
type replayed struct {
	alone   bool // no other was under way
	credit  int
	release chan []byte // the recorded body
	done    chan struct{}
}

// replayRecording sends a recording's requests through a proxy that follows its
// events, and has each answered as it was. It tells each request's credit and what
// the engine found cached.
func replayRecording(t *testing.T, name, options string, check func(id, credit, found int, alone bool)) {
	lines := readRecording(t, name)
	arrived, answers := make(chan struct{}), make(chan chan []byte, 1)
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/v1/chat/completions":
		case "/v1/models":
			_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"tiny","object":"model","root":"tiny","parent":null},{"id":"sql","object":"model","root":"adapter","parent":"tiny"}]}`))
			return
		default:
			return
		}
		release := <-answers
		arrived <- struct{}{}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(<-release)
	})
	r := report(t, 0, 0)
	conf := strings.TrimSuffix(r.options(), "}") + "predicted_ttl 1ms\n}\n" + fmt.Sprintf(
		"tokenizer hf ../testdata/%s {\nchat_template ../testdata/%s\n}\n", lines[0].Tokenizer, lines[0].Template) + "engine\n" + options
	c := proxytest.Start(t, "", site(engine.Addr(), conf, ""))
	eventually(t, "the adapter is known", func() bool { return defaultPool(t).isAdapter("sql") })
	under := make(map[int]*replayed)
	for _, l := range lines {
		switch l.Kind {
		case "request":
			rq := &replayed{alone: len(under) == 0, release: make(chan []byte, 1), done: make(chan struct{})}
			for _, other := range under {
				other.alone = false
			}
			under[l.ID] = rq
			answers <- rq.release
			go func() {
				defer close(rq.done)
				res := c.Post("/v1/chat/completions", l.Body)
				rq.credit, _ = strconv.Atoi(res.Header.Get("X-KV-Aware-Cached-Tokens"))
				proxytest.ReadAll(t, res)
			}()
			<-arrived
		case "events":
			r.publishAsRecorded(l.Frames)
			eventually(t, "the events are taken in", func() bool {
				s := followedStates(t, c)
				return len(s) == 1 && s[0].LastSequence != nil && int64(*s[0].LastSequence) == r.published()
			})
		case "response":
			rq := under[l.ID]
			delete(under, l.ID)
			var body []byte
			for _, chunk := range l.Chunks {
				body = append(body, decoded(t, chunk[1])...)
			}
			rq.release <- body
			<-rq.done
			found := regexp.MustCompile(`"cached_tokens": ?(\d+)`).FindSubmatch(body)
			if found == nil {
				found = [][]byte{nil, []byte("0")} // vLLM leaves a zero out
			}
			n, _ := strconv.Atoi(string(found[1]))
			check(l.ID, rq.credit, n, rq.alone)
			// So that only what the engine reports counts.
			for _, u := range defaultPool(t).all() {
				defaultPool(t).index.Forget(u.slot)
			}
		case "reset":
			proxytest.ReadAll(t, c.Post(l.Path, ""))
		}
	}
	wantIdle(t)
}

func TestWhatAnEngineReportsIsWhatItFindsCached(t *testing.T) {
	for _, recording := range []string{"vllm-plain.jsonl.gz", "vllm-adapter.jsonl.gz"} {
		for _, blockSize := range []int{16, 32} {
			t.Run(fmt.Sprint(recording, " in blocks of ", blockSize), func(t *testing.T) {
				compared, found, apart := 0, 0, 0
				replayRecording(t, recording, fmt.Sprint("block_size ", blockSize), func(id, credit, cached int, alone bool) {
					if !alone {
						return
					}
					compared++
					if cached > 0 {
						found++
					}
					if credit != cached {
						apart++
						t.Errorf("request %d was credited with %d tokens, and the engine found %d", id, credit, cached)
					}
				})
				if compared < 20 || found < 10 {
					t.Errorf("%d requests were compared, of which %d found something", compared, found)
				}
			})
		}
	}
}

func TestAnEngineOfSeveralKindsOfLayersFindsNoMoreThanItReports(t *testing.T) {
	less := 0
	replayRecording(t, "vllm-hybrid.jsonl.gz", "block_size 32", func(id, credit, cached int, alone bool) {
		if alone && credit < cached {
			t.Errorf("request %d was credited with %d tokens, and the engine found %d", id, credit, cached)
		}
		if cached < credit {
			less++
		}
	})
	if less == 0 {
		t.Error("no request of the recording found less than was reported")
	}
}
