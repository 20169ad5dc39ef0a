// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/enginefacts"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestHostileAnswersHarmNothingAndAreCounted(t *testing.T) {
	released := make(chan struct{})
	defer close(released)
	e := newTelling(t)
	e.metrics(32_000)
	e.models("m")
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	capacity := func() int64 { return upstreamsOf(t, c)[e.Addr()].CacheTokens }
	eventually(t, "the capacity is known", func() bool { return capacity() == 32_000 })

	const line = "vllm:cache_config_info{kv_cache_size_tokens=\"64\"} 1\n"
	for name, tt := range map[string]struct {
		want string
		page http.HandlerFunc
	}{
		// On a busy machine their time is up first.
		"endless": {"too_long timeout", func(w http.ResponseWriter, r *http.Request) {
			chunk := []byte(strings.Repeat(strings.Repeat("x", 1000)+" 1\n", 64))
			for r.Context().Err() == nil {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}},
		"endless after gzip": {"too_long timeout", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			chunk := []byte(strings.Repeat(strings.Repeat("x", 1000)+" 1\n", 64))
			for r.Context().Err() == nil {
				if _, err := z.Write(chunk); err != nil {
					return
				}
			}
		}},
		"slow": {"timeout", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(line))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-released:
			}
		}},
		"silent": {"timeout", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-released:
			}
		}},
		"broken off": {"unreachable", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(line))
		}},
		"no metrics": {"invalid", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }},
		"a redirect": {"status", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}},
		"an error": {"status", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, line, 500) }},
	} {
		e.page("/metrics", tt.page)
		counts := func() (n float64) {
			for want := range strings.FieldsSeq(tt.want) {
				n += countOf(t, c, `endpoint="metrics",pool="",result="`+want+`"`)
			}
			return n
		}
		before := counts()
		eventually(t, name+" is counted as "+tt.want, func() bool { return counts() > before })
		if n := capacity(); n != 32_000 {
			t.Errorf("%s: the capacity is taken for %d", name, n)
		}
		res := c.Post("/v1/chat/completions", chat("still served", true))
		if proxytest.ReadAll(t, res); res.StatusCode != 200 {
			t.Errorf("%s: a request got %d", name, res.StatusCode)
		}
	}
	// Lists of models are as hostile.
	e.metrics(48_000)
	e.says("/v1/models", `{"data":[`+strings.Repeat(`{"id":"x"},`, 1<<20))
	eventually(t, "a list that is too long is counted", func() bool { return countOf(t, c, `endpoint="models",pool="",result="too_long"`) > 0 })
	eventually(t, "what is well told is learnt again", func() bool { return capacity() == 48_000 })
	if got := upstreamsOf(t, c)[e.Addr()].Engine; len(got.Models) != 1 || got.Error != "models: too_long" {
		t.Errorf("got %+v", got)
	}
}

// countOf gives the value of the first metric whose line holds a text, 0 without.
func countOf(t *testing.T, c *proxytest.Caddy, text string) (n float64) {
	t.Helper()
	_, _, metrics := c.Admin("GET", "/metrics", "")
	for line := range strings.Lines(metrics) {
		if strings.Contains(line, text) && !strings.HasPrefix(line, "#") {
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n)
			return n
		}
	}
	return 0
}

func TestReloadsKeepAskingWithWhatTheNewConfigurationSays(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	plainSite := site(e.Addr(), "", "")
	withKey := func(key string) string {
		return site(e.Addr(), "cache_tokens auto\n\t\t\tengine {\n\t\t\t\tscrape 100ms\n\t\t\t\theader_up X-Key "+key+"\n\t\t\t}", "")
	}
	lastKey := func() string {
		all := e.Requests()
		for i := len(all) - 1; i >= 0; i-- {
			if all[i].Path == "/metrics" {
				return all[i].Header.Get("X-Key")
			}
		}
		return ""
	}
	c := proxytest.Start(t, "", withKey("one"))
	eventually(t, "it is asked", func() bool { return lastKey() == "one" })
	pl := defaultPool(t)
	u := pl.lookup(e.Addr(), nil)
	poller := func() *enginePoller {
		pl.pollers.mu.Lock()
		defer pl.pollers.mu.Unlock()
		return pl.pollers.running[u]
	}
	first := poller()

	c.Reload("", withKey("two"))
	eventually(t, "it is asked as the new configuration says", func() bool { return lastKey() == "two" })
	if poller() != first {
		t.Error("the reload began anew")
	}
	// One that fails, before and after its app was started.
	if err := c.TryReload("", withKey("three")+strings.Replace(site("127.0.0.1:1", "cache_tokens 16000", ""), "{SITE}", "{SITE2}", 1)); err == nil {
		t.Fatal("contradicting values were taken")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := c.TryReload("", withKey("three")+"\nhttp://"+taken.Addr().String()+" {\n\trespond nothing\n}"); err == nil {
		t.Fatal("a port that is taken was taken")
	}
	n := e.asked("/metrics")
	eventually(t, "it is still asked", func() bool { return e.asked("/metrics") > n+2 })
	if key := lastKey(); key != "two" || poller() != first {
		t.Errorf("after configurations that failed it is asked with %q", key)
	}
	if upstreamsOf(t, c)[e.Addr()].CacheTokens != 32_000 {
		t.Error("the capacity is lost")
	}
	// Without the option nobody asks, and the capacity is what is configured.
	c.Reload("", plainSite)
	select {
	case <-first.done:
	default:
		t.Error("it is asked on without the option")
	}
	if got := upstreamsOf(t, c)[e.Addr()]; got.CacheTokens != DefaultCacheTokens || got.CacheTokensFrom != "configuration" {
		t.Errorf("the capacity is %d from %s", got.CacheTokens, got.CacheTokensFrom)
	}
	c.Reload("", withKey("four"))
	eventually(t, "it is asked again", func() bool { return lastKey() == "four" })
	// Validating asks nobody.
	if err := validate(c, withKey("five")); err != nil {
		t.Error(err)
	}
	e.learns(t)
	if key := lastKey(); key != "four" {
		t.Errorf("asked with %q", key)
	}
}

func TestAskingEndsWithTheConfiguration(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	const noKeepAlive = "transport http {\n\t\t\tkeepalive off\n\t\t}"
	c := proxytest.Start(t, "", plain(proxy(e.Addr(), stock, noKeepAlive)))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
	c.Stop()
	e.CloseClientConnections()
	there := goleak.IgnoreCurrent()

	hanging := make(chan struct{})
	slow := newTelling(t)
	slow.page("/v1/models", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case hanging <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	})
	conf := site(e.Addr()+" "+slow.Addr(), learning, noKeepAlive)
	c = proxytest.Start(t, "", conf)
	for range 5 {
		c.Reload("", conf)
	}
	<-hanging // it stops while a question waits for its answer
	e.learns(t)
	c.Stop()
	e.CloseClientConnections()
	slow.Close()
	goleak.VerifyNone(t, there,
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/caddy/v2.replaceLocalAdminServer.func2"))
}

func TestDynamicUpstreamsAreAskedFromFirstSightUntilTheyExpire(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	_, port, _ := strings.Cut(e.Addr(), ":")
	conf := fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy {
		dynamic a localhost %s {
			versions ipv4
		}
		lb_policy kv_aware {
			%s
		}
	}
}`, port, learning)
	c := proxytest.Start(t, "", conf)
	if n := e.asked("/metrics"); n != 0 {
		t.Errorf("asked %d times before anybody saw it", n)
	}
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("first sight", true)))
	addr := e.Addr()
	eventually(t, "its capacity is known", func() bool { return upstreamsOf(t, c)[addr].CacheTokens == 32_000 })
	c.Reload("", conf) // it waits for a request, to know over which transport
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("second sight", true)))
	e.learns(t)
	wantIdle(t)
	pl := defaultPool(t)
	u := pl.lookup(addr, nil)
	pl.pollers.mu.Lock()
	p := pl.pollers.running[u]
	pl.pollers.mu.Unlock()
	u.lastSeen.Store(pl.now().Add(-upstreamExpiry - 1).UnixNano())
	pl.expire()
	eventually(t, "nobody asks it any more", func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
}

func TestAddressesThatARequestMakesAreNeverAsked(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	known := newTelling(t)
	known.metrics(32_000)
	conf := `http://site {
	bind {SITE}
	reverse_proxy {http.request.header.X-Engine} {
		lb_policy kv_aware {
			` + learning + `
		}
	}
}
http://site2 {
	bind {SITE2}
	reverse_proxy ` + known.Addr() + ` {
		lb_policy kv_aware {
			` + learning + `
		}
	}
}`
	c := proxytest.Start(t, "", conf)
	for range 8 {
		req, err := http.NewRequest("POST", "http://site/v1/chat/completions", strings.NewReader(chat("x", true)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Engine", e.Addr())
		res, err := c.Client("site").Do(req)
		if err != nil {
			t.Fatal(err)
		}
		proxytest.ReadAll(t, res)
	}
	known.learns(t)
	if n := e.asked("/metrics"); n != 0 || len(e.Requests()) == 0 {
		t.Errorf("it served %d requests and was asked %d times", len(e.Requests()), n)
	}
}

func TestAPanicWhileAskingIsCaught(t *testing.T) {
	e := newTelling(t)
	e.metrics(32_000)
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	eventually(t, "the capacity is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
	before := countOf(t, c, `panics_total{where="engine"}`)
	pl := defaultPool(t)
	pl.pollers.mu.Lock()
	pl.pollers.running[pl.lookup(e.Addr(), nil)].claim(&Policy{proxy: new(reverseproxy.Handler), logger: zap.NewNop()})
	pl.pollers.mu.Unlock()
	eventually(t, "the panic is counted", func() bool { return countOf(t, c, `panics_total{where="engine"}`) > before })
}

func TestASleepIsForgottenWhereTheEngineNeverConfirmsIt(t *testing.T) {
	var told engineTold
	now := time.Now()
	told.mark(true, now)
	if !told.asleep(now.Add(unconfirmedSleep-1).UnixNano()) || told.asleep(now.Add(unconfirmedSleep).UnixNano()) {
		t.Error("it sleeps for another time")
	}
	// What was asked before it was put to sleep is no news.
	told.awakeSince(enginefacts.Yes, now)
	if !told.asleep(now.UnixNano()) {
		t.Error("an older answer woke it up")
	}
	told.awakeSince(enginefacts.No, now.Add(1))
	if !told.asleep(now.Add(time.Hour * 1000).UnixNano()) {
		t.Error("a confirmed sleep ended by itself")
	}
	told.awakeSince(enginefacts.Unknown, now.Add(2))
	told.mark(false, now.Add(3))
	told.awakeSince(enginefacts.No, now.Add(3))
	if told.asleep(now.UnixNano()) {
		t.Error("an older answer put it to sleep")
	}
}

// validate checks a configuration as `caddy validate` does.
func validate(c *proxytest.Caddy, sites string) error {
	text := "{\n\tadmin off\n\tstorage file_system " + c.Dir() + "\n}\n" + strings.ReplaceAll(sites, "{SITE}", "unix/"+c.Dir()+"/validated")
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), nil)
	if err != nil {
		return err
	}
	var parsed caddy.Config
	if err := caddy.StrictUnmarshalJSON(adapted, &parsed); err != nil {
		return err
	}
	return caddy.Validate(&parsed)
}
