// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// listOf writes ids as JSON.
func listOf(ids []uint32) string {
	text, _ := json.Marshal(ids)
	return string(text)
}

// answersIDs answers with an output of these ids, as vLLM does where it is asked to
// return them: streamed, some for each event, or whole. Counted is what its usage
// says.
func answersIDs(w http.ResponseWriter, r *http.Request, stream bool, output []uint32, counted int) {
	usage := fmt.Sprintf(`"usage":{"prompt_tokens":1,"completion_tokens":%d}`, counted)
	inner := `"delta":{"content":"a"}`
	if r.URL.Path == "/v1/completions" {
		inner = `"text":"a"`
	}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices":[{"index":0,%s,"finish_reason":"stop","token_ids":%s}],%s}`, strings.Replace(inner, "delta", "message", 1), listOf(output), usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for ids := range slices.Chunk(output, 3) {
		proxytest.Event(w, fmt.Sprintf(`{"choices":[{"index":0,%s,"finish_reason":null,"token_ids":%s}]}`, inner, listOf(ids)))
	}
	proxytest.Event(w, fmt.Sprintf(`{"choices":[{"index":0,%s,"finish_reason":"stop","token_ids":[]}]}`, strings.Replace(inner, `"a"`, `""`, 1)))
	proxytest.Event(w, `{"choices":[],`+usage+`}`)
	proxytest.Event(w, "[DONE]")
}

// nextTurn is a completion of ids, which must be answered with 200. It returns the
// tokens that are credited.
func nextTurn(t *testing.T, c *proxytest.Caddy, stream bool, ids []uint32, members string) string {
	t.Helper()
	res := c.Post("/v1/completions", fmt.Sprintf(`{"model":"m","return_token_ids":true,%s"stream":%v,"prompt":%s}`, members, stream, listOf(ids)))
	proxytest.ReadAll(t, res)
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	wantIdle(t)
	return res.Header.Get("X-KV-Aware-Cached-Tokens")
}

// A prompt is 327 tokens, 20 blocks and 7. Of an output of 58, 57 are in the cache and
// fill four blocks more.
func TestTheNextTurnIsCreditedWithAnOutputWhoseIDsAreKnown(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	var output []uint32
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Stream bool }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		answersIDs(w, r, asked.Stream, output, len(output))
	})
	c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer, ""))
	conversation := 0
	for _, stream := range []bool{true, false} {
		// How many ids the output has, how many of them the next turn, what is credited.
		for _, x := range []struct {
			all, same int
			want      string
		}{
			{60, 60, "384"}, {60, 57, "384"}, {60, 56, "368"}, {60, 30, "352"}, {60, 25, "352"}, {60, 24, "336"}, {60, 9, "336"}, {60, 8, "320"}, {60, 0, "320"},
			{58, 58, "384"}, {57, 57, "368"}, {10, 10, "336"}, {9, 9, "320"}, {1, 1, "320"},
		} {
			conversation++
			prompt := append(someIDs(conversation, 20), 1, 2, 3, 4, 5, 6, 7)
			output = someIDs(500+conversation, 4)[:x.all]
			if got := nextTurn(t, c, stream, prompt, ""); got != "0" {
				t.Fatalf("%s tokens of a new conversation", got)
			}
			next := slices.Concat(prompt, output[:x.same], someIDs(900, 2))
			if got := nextTurn(t, c, stream, next, ""); got != x.want {
				t.Errorf("streamed %v, the next turn has %d of %d: credited with %s, want %s", stream, x.same, x.all, got, x.want)
			}
		}
	}
}

func TestAnOutputTakesTheSameRoomWhetherItsIDsAreKnownOrNot(t *testing.T) {
	output := someIDs(7, 4)[:60]
	said := output
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) { answersIDs(w, r, true, said, len(output)) })
	c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer, ""))
	blocks := func() int {
		pl := defaultPool(t)
		return pl.index.Stats(pl.all()[0].slot).Blocks
	}
	nextTurn(t, c, true, append(someIDs(1, 20), 1, 2, 3, 4, 5, 6, 7), "")
	known := blocks()
	said = nil
	nextTurn(t, c, true, append(someIDs(2, 20), 1, 2, 3, 4, 5, 6, 7), "")
	if unknown := blocks() - known; known != 25 || unknown != known {
		t.Errorf("%d blocks, without ids %d; want 20 of the prompt and 5", known, unknown)
	}
}

func TestIDsThatDoNotTellTheWholeOutputCreditNothing(t *testing.T) {
	var handler atomic.Value
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		handler.Load().(http.HandlerFunc)(w, r)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer, ""))
	output := someIDs(7, 4)[:60]
	whole := func(w http.ResponseWriter, r *http.Request) { answersIDs(w, r, true, output, 60) }
	conversation := 0
	for name, x := range map[string]struct {
		members string
		handler http.HandlerFunc
		want    string
	}{
		"all":              {"", whole, "384"},
		"fewer":            {"", func(w http.ResponseWriter, r *http.Request) { answersIDs(w, r, true, output, 61) }, "320"},
		"of two choices":   {`"n":2,`, whole, "320"},
		"between engines":  {"", func(w http.ResponseWriter, r *http.Request) { answersTransfer(w, r, output) }, "320"},
		"cut at its end":   {"", func(w http.ResponseWriter, r *http.Request) { answersCut(w, output) }, "320"},
		"an error follows": {"", func(w http.ResponseWriter, _ *http.Request) { answersError(w, output) }, "320"},
	} {
		conversation++
		prompt := append(someIDs(conversation, 20), 1, 2, 3, 4, 5, 6, 7)
		handler.Store(x.handler)
		res := c.Post("/v1/completions", fmt.Sprintf(`{"model":"m",%s"stream":true,"prompt":%s}`, x.members, listOf(prompt)))
		proxytest.ReadAll(t, res)
		wantIdle(t)
		handler.Store(http.HandlerFunc(whole))
		if got := nextTurn(t, c, true, slices.Concat(prompt, output, someIDs(900, 2)), ""); got != x.want {
			t.Errorf("%s: the next turn is credited with %s tokens, want %s", name, got, x.want)
		}
	}
}

// answersCut ends without what ends a stream.
func answersCut(w http.ResponseWriter, output []uint32) {
	w.Header().Set("Content-Type", "text/event-stream")
	proxytest.Event(w, fmt.Sprintf(`{"choices":[{"index":0,"text":"a","finish_reason":null,"token_ids":%s}]}`, listOf(output)))
}

// answersTransfer is of an engine that hands its cache on.
func answersTransfer(w http.ResponseWriter, r *http.Request, output []uint32) {
	w.Header().Set("Content-Type", "text/event-stream")
	proxytest.Event(w, `{"choices":[],"kv_transfer_params":{"do_remote_decode":true}}`)
	answersIDs(w, r, true, output, len(output))
}

// answersError ends with an error.
func answersError(w http.ResponseWriter, output []uint32) {
	answersCut(w, output)
	proxytest.Event(w, `{"error":{"message":"out of memory"}}`)
	proxytest.Event(w, "[DONE]")
}

func TestOnlyTheAttemptThatWasAnsweredCreditsItsOutput(t *testing.T) {
	output := someIDs(7, 4)[:60]
	failing := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		answersIDs(w, r, false, output, 60)
	})
	good := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) { answersIDs(w, r, false, output, 60) })
	c := proxytest.Start(t, "", site(addrs(failing, good), chatmlTokenizer, `
		lb_retries 1
		lb_retry_match {
			expression {rp.status_code} == 503
		}`))
	for i := 1; len(failing.Requests()) == 0; i++ {
		if i > 100 {
			t.Fatal("nothing was retried")
		}
		nextTurn(t, c, false, append(someIDs(i, 20), 1, 2, 3, 4, 5, 6, 7), "")
	}
	pl := defaultPool(t)
	for _, u := range pl.all() {
		blocks := pl.index.Stats(u.slot).Blocks
		if want := 25 * len(good.Requests()); u.address == good.Addr() && blocks != want || u.address == failing.Addr() && blocks != 0 {
			t.Errorf("%d blocks at %s, which is %s", blocks, u.address, map[bool]string{true: "good", false: "failing"}[u.address == good.Addr()])
		}
	}
}

func TestAnAnswerThatTheClientLeftCreditsNoOutput(t *testing.T) {
	output := someIDs(7, 4)[:60]
	engine := proxytest.NewEngine(t, nil)
	first := atomic.Bool{}
	engine.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first.CompareAndSwap(false, true) {
			answersCut(w, output)
			<-r.Context().Done()
			return
		}
		answersIDs(w, r, true, output, 60)
	})
	c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer, ""))
	prompt := append(someIDs(1, 20), 1, 2, 3, 4, 5, 6, 7)
	res := c.Post("/v1/completions", fmt.Sprintf(`{"model":"m","stream":true,"prompt":%s}`, listOf(prompt)))
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	wantIdle(t)
	if got := nextTurn(t, c, true, slices.Concat(prompt, output, someIDs(900, 2)), ""); got != "320" {
		t.Errorf("credited with %s tokens, want 320", got)
	}
}

// A conversation, whose next turn has the very tokens that were generated.
func TestAChatsAnswerIsCreditedAsFarAsItRendersTheSame(t *testing.T) {
	tokenizer, err := tokenize.LoadHF("../testdata/exact/chatml.json")
	if err != nil {
		t.Fatal(err)
	}
	const answer = "The tide rises at four, and the gate stays open until the ferry from the north has passed the light."
	output := tokenizer.AppendSpecial(nil, []byte(answer+"<|im_end|>"))
	for _, stream := range []bool{true, false} {
		for said, credited := range map[string]bool{answer: true, "Something else, which is about as long as what was said, and shares no beginning with it at all.": false} {
			engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) { answersIDs(w, r, stream, output, len(output)) })
			c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer, ""))
			ask := func(more string) (prompt, cached int) {
				t.Helper()
				res := c.Post("/v1/chat/completions", fmt.Sprintf(`{"model":"m","return_token_ids":true,"stream":%v,"messages":[{"role":"user","content":%q}%s]}`, stream, prose("tide", 60), more))
				proxytest.ReadAll(t, res)
				wantIdle(t)
				_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Prompt-Tokens"), &prompt)
				_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Cached-Tokens"), &cached)
				return prompt, cached
			}
			prompt, _ := ask("")
			_, cached := ask(fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"And then?"}`, said))
			want := prompt / 16 * 16
			if credited {
				want = (prompt + len(output) - 1) / 16 * 16
			}
			if cached != want {
				t.Errorf("streamed %v, %q: credited with %d of %d and %d tokens, want %d", stream, said, cached, prompt, len(output), want)
			}
		}
	}
}

// With the tokenizer remote the ids behind the last block come from the engine, or
// from what it answered before.
func TestAnOutputIsCreditedBehindAPromptWhoseIDsWereAsked(t *testing.T) {
	output := someIDs(7, 4)[:60]
	asked := atomic.Int32{}
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/render") {
			asked.Add(1)
			_, _ = fmt.Fprintf(w, `{"token_ids":%s}`, listOf(append(someIDs(1, 20), 1, 2, 3, 4, 5, 6, 7)))
			return
		}
		answersIDs(w, r, true, output, len(output))
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "tokenizer remote http://"+engine.Addr(), ""))
	next := slices.Concat(someIDs(1, 20), []uint32{1, 2, 3, 4, 5, 6, 7}, output, someIDs(900, 2))
	for range 2 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("a question", true)))
		wantIdle(t)
		if got := nextTurn(t, c, true, next, ""); got != "384" {
			t.Errorf("asked %d times: credited with %s tokens, want 384", asked.Load(), got)
		}
		forgetPredictions(t) // so that the second turn is credited anew
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
