// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// cachedTokens sends a request and gives the tokens that count as cached.
func cachedTokens(t *testing.T, c *proxytest.Caddy, path, body string) (cached, prompt int) {
	t.Helper()
	res := c.Post(path, body)
	proxytest.ReadAll(t, res)
	wantIdle(t)
	_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Cached-Tokens"), &cached)
	_, _ = fmt.Sscan(res.Header.Get("X-KV-Aware-Prompt-Tokens"), &prompt)
	return cached, prompt
}

// ids is a prompt of n token ids that depend on the first.
func ids(first, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprint(first + i)
	}
	return "[" + strings.Join(all, ",") + "]"
}

func noUsage(w http.ResponseWriter, _ *http.Request) {
	proxytest.Event(w, `{"choices":[{"index":0,"text":"a"}]}`)
	proxytest.Event(w, "[DONE]")
}

func TestTheLastTokenOfAPromptIsNeverCached(t *testing.T) {
	c := proxytest.Start(t, "", site(proxytest.NewEngine(t, noUsage).Addr(), "", ""))
	for n, want := range map[int]int{64: 48, 65: 64, 79: 64, 80: 64, 16: 0, 17: 16, 15: 0} {
		body := fmt.Sprintf(`{"model":"m","stream":true,"prompt":%s}`, ids(1000*n, n))
		if first, prompt := cachedTokens(t, c, "/v1/completions", body); first != 0 || prompt != n {
			t.Errorf("%d tokens: %d of %d are cached before the first request", n, first, prompt)
		}
		if again, _ := cachedTokens(t, c, "/v1/completions", body); again != want {
			t.Errorf("%d tokens: %d are cached the second time, want %d", n, again, want)
		}
	}
}

func TestModelsAdaptersAndSaltsDoNotShareACache(t *testing.T) {
	c := proxytest.Start(t, "", site(proxytest.NewEngine(t, noUsage).Addr(), "", ""))
	prompt := ids(5, 100)
	for _, identity := range []string{`"model":"a"`, `"model":"b"`, `"model":"a","cache_salt":"s"`, `"model":"a","lora_path":"l"`} {
		body := fmt.Sprintf(`{%s,"stream":true,"prompt":%s}`, identity, prompt)
		if n, _ := cachedTokens(t, c, "/v1/completions", body); n != 0 {
			t.Errorf("%s finds %d tokens of the others'", identity, n)
		}
		if n, _ := cachedTokens(t, c, "/v1/completions", body); n != 96 {
			t.Errorf("%s finds %d tokens of its own, want 96", identity, n)
		}
	}
}

func TestEachPromptOfABatchIsMatchedForItself(t *testing.T) {
	c := proxytest.Start(t, "", site(proxytest.NewEngine(t, noUsage).Addr(), "", ""))
	ask := func(prompts ...string) int {
		n, _ := cachedTokens(t, c, "/v1/completions", `{"model":"m","stream":true,"prompt":[`+strings.Join(prompts, ",")+`]}`)
		return n
	}
	ask(ids(10_000, 33))
	if n := ask(ids(10_000, 33), ids(20_000, 49)); n != 32 {
		t.Errorf("of one known prompt and an unknown one %d tokens are cached, want 32", n)
	}
	if n := ask(ids(20_000, 49), ids(10_000, 33), ids(30_000, 20)); n != 48+32 {
		t.Errorf("of two known prompts and an unknown one %d tokens are cached, want 80", n)
	}
}

func TestABodyThatWasNotReadWeighsWhatItsLengthSuggests(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "max_body 1KiB", ""))
	for _, test := range []struct {
		media, encoding string
		bytes           int
		least, most     int64
	}{
		{"application/json", "", 40_000, 10_000, 10_000},
		{"application/json", "gzip", 4_000, 4_000, 4_000},
		{"audio/wav", "", 512_000, 1_000, 1_000},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			req, _ := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(strings.Repeat("x", test.bytes)))
			req.Header.Set("Content-Type", test.media)
			if test.encoding != "" {
				req.Header.Set("Content-Encoding", test.encoding)
			}
			res, err := c.Client("site").Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
		}()
		<-arrived
		if n := loads(t).PrefillTokens; n < test.least || n > test.most {
			t.Errorf("%d bytes of %s %s weigh %d tokens, want %d", test.bytes, test.media, test.encoding, n, test.least)
		}
		release <- struct{}{}
		<-done
		wantIdle(t)
	}
}

func TestAnErrorInsideAStreamCountsAsAFailureOfTheUpstream(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		proxytest.Event(w, `{"error":{"message":"engine died","type":"InternalServerError","code":500}}`)
		proxytest.Event(w, "[DONE]")
	})
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hello", true)))
	wantIdle(t)
	pl := defaultPool(t)
	if s := pl.ledger.Snapshot(pl.all()[0].load); s.Failures != 1 || s.FailureScore == 0 {
		t.Errorf("the upstream's failures are %+v", s)
	}
}
