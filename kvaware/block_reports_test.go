// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// chatmlTokenizer makes token ids of completions exact.
const chatmlTokenizer = "tokenizer hf ../testdata/exact/chatml.json {\nchat_template ../testdata/templates/texts/Qwen-Qwen2.5-7B-Instruct.jinja\n}\n"

// someIDs are the tokens of n blocks of 16 of a prompt of its own.
func someIDs(prompt, n int) (ids []uint32) {
	for i := range 16 * n {
		ids = append(ids, uint32(1000*prompt+i))
	}
	return ids
}

// storedIDs is an event of blocks of these tokens, at a prompt's start.
func storedIDs(prompt int, ids []uint32, salt string) kvevents.Event {
	e := kvevents.Event{Kind: kvevents.Stored, Group: -1, BlockSize: 16, Tokens: ids}
	for i := range len(ids) / 16 {
		e.Blocks = append(e.Blocks, uint64(prompt)<<32|uint64(i))
	}
	if salt != "" {
		e.Extra = make([]kvevents.Extra, len(e.Blocks))
		e.Extra[0].Salt = []byte(salt)
	}
	return e
}

// completion is the body of a completion of ids.
func completion(ids []uint32, members string) string {
	prompt, _ := json.Marshal(ids)
	return fmt.Sprintf(`{"model":"m",%s"stream":true,"prompt":%s}`, members, prompt)
}

// forgetPredictions has only count what engines report.
func forgetPredictions(t testing.TB) {
	t.Helper()
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		pl.index.Forget(u.slot)
	}
}

func TestOnlyBlocksWithTheTenantsSaltAreCreditedToIt(t *testing.T) {
	ids := append(someIDs(1, 20), 7)
	for name, isolation := range map[string]string{"with salts": salting, "without": "isolate_by {header.X-Tenant}"} {
		t.Run(name, func(t *testing.T) {
			engine := proxytest.NewEngine(t, nil)
			r := report(t, 0, 0)
			c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer+r.options()+"\n"+isolation, ""))
			cached := func(tenant, members string) string {
				t.Helper()
				res, _ := postAs(t, c.Client("site"), "http://site/v1/completions", tenant, completion(ids, members), false)
				forgetPredictions(t)
				return res.Header.Get("X-KV-Aware-Cached-Tokens")
			}
			// Somebody who came another way has left the same prompt there, without a
			// salt and with one of a client's choice.
			r.publish(storedIDs(1, ids[:320], ""), storedIDs(2, ids[:320], "mine"))
			wantFollowed(t, c, 40)
			for _, members := range []string{"", `"cache_salt":"mine",`} {
				if got := cached("a", members); got != "0" {
					t.Errorf("%q: credited with %s tokens that may be another's", members, got)
				}
			}
			if isolation != salting {
				return
			}
			cached("a", "")
			own := injected.FindStringSubmatch(lastSeen(t, engine).Body)
			if own == nil {
				t.Fatal("the engine was sent no salt")
			}
			r.publish(storedIDs(3, ids[:320], own[2]))
			wantFollowed(t, c, 60)
			if got := cached("a", ""); got != "320" {
				t.Errorf("credited with %s tokens of its own", got)
			}
			if got := cached("b", ""); got != "0" {
				t.Errorf("another tenant is credited with %s tokens", got)
			}
		})
	}
}

func TestAClientsSaltPartsWhatIsReported(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	c := proxytest.Start(t, "", site(engine.Addr(), chatmlTokenizer+r.options(), ""))
	plain, salted := append(someIDs(1, 20), 7), append(someIDs(2, 20), 7)
	r.publish(storedIDs(1, plain[:320], ""), storedIDs(2, salted[:320], "mine"))
	wantFollowed(t, c, 40)
	for _, asked := range []struct {
		ids           []uint32
		members, want string
	}{
		{plain, "", "320"}, {plain, `"cache_salt":"mine",`, "0"},
		{salted, "", "0"}, {salted, `"cache_salt":"mine",`, "320"}, {salted, `"cache_salt":"other",`, "0"},
	} {
		res := c.Post("/v1/completions", completion(asked.ids, asked.members))
		proxytest.ReadAll(t, res)
		if got := res.Header.Get("X-KV-Aware-Cached-Tokens"); got != asked.want {
			t.Errorf("%q: %s tokens are credited, want %s", asked.members, got, asked.want)
		}
		forgetPredictions(t)
	}
}

func TestATokenizerThatIsNotTheEnginesStaysWithPredictions(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	c := proxytest.Start(t, "", site(engine.Addr(), strings.TrimSuffix(r.options(), "}")+"predicted_ttl 1ms\n}", ""))
	r.publish(storedBlocks(1, 5))
	wantFollowed(t, c, 5)
	body := chat(prose("long ago", 500), true)
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", body))
	wantIdle(t)
	pl := defaultPool(t)
	pl.index.SetPredictedTTL(0)
	res := c.Post("/v1/chat/completions", body)
	proxytest.ReadAll(t, res)
	if res.Header.Get("X-KV-Aware-Cached-Tokens") == "0" {
		t.Error("what is predicted does not count, though events cannot match it")
	}
}

func TestWhereAnEngineHeedsNoRankItsRanksAreBlended(t *testing.T) {
	base := neighbouringPorts(t, 4)
	ranks := []*announcer{report(t, base, base+2), report(t, base+1, base+3)}
	told, proceed := make(chan string), make(chan struct{})
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, req *http.Request) {
		told <- req.Header.Get(rankHeader)
		<-proceed
		proxytest.Tokens(3)(w, req)
	})
	options := fmt.Sprintf("%skv_events {\nport %d\nreplay_port %d\nranks 2\n}", chatmlTokenizer, base, base+2)
	c := proxytest.Start(t, "", site(engine.Addr(), options, ""))
	stored := 0
	publish := func(rank, prompt int, ids []uint32) {
		ranks[rank].publish(storedIDs(prompt, ids, ""))
		stored += len(ids) / 16
		eventually(t, "the blocks are known", func() bool {
			sum := 0
			for _, s := range followedStates(t, c) {
				sum += s.GPUBlocks
			}
			return sum == stored
		})
	}
	publish(0, 1000, someIDs(1000, 1)) // so that a block's size is known
	n := 0
	// serve has a new prompt turn up at a rank.
	serve := func(where func(told int) int) (cached string) {
		n++
		ids := append(someIDs(n, 4), 7)
		done := make(chan string)
		go func() {
			res := c.Post("/v1/completions", completion(ids, ""))
			proxytest.ReadAll(t, res)
			done <- res.Header.Get("X-KV-Aware-Cached-Tokens")
		}()
		rank := int((<-told)[0] - '0')
		publish(where(rank), n, ids[:64])
		proceed <- struct{}{}
		<-done
		forgetPredictions(t)
		go func() {
			res := c.Post("/v1/completions", completion(ids, ""))
			proxytest.ReadAll(t, res)
			done <- res.Header.Get("X-KV-Aware-Cached-Tokens")
		}()
		<-told
		proceed <- struct{}{}
		cached = <-done
		forgetPredictions(t)
		return cached
	}
	for i := range 2 * rankVotesNeeded {
		if cached := serve(func(told int) int { return told }); cached != "64" {
			t.Fatalf("request %d: %s tokens are credited at the rank that holds 64", i, cached)
		}
	}
	var cached string
	for range maxRankVotes + rankVotesNeeded + 2 {
		cached = serve(func(told int) int { return 1 - told })
	}
	if cached != "32" {
		t.Errorf("%s tokens are credited where the engine places requests as it likes and one of two ranks holds 64", cached)
	}
	for range maxRankVotes {
		cached = serve(func(told int) int { return told })
	}
	if cached != "64" {
		t.Errorf("%s tokens are credited at a rank that holds 64 once the engine heeds what it is told", cached)
	}
}
