// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// telling is a fake engine that tells of itself what a test has it tell; its other
// answers are three tokens.
type telling struct {
	*proxytest.Engine
	mu    sync.Mutex
	pages map[string]http.HandlerFunc
}

func newTelling(t testing.TB) *telling { return newTellingAs(t, (*httptest.Server).Start) }

func newTellingAs(t testing.TB, start func(*httptest.Server)) *telling {
	t.Helper()
	e := &telling{pages: make(map[string]http.HandlerFunc)}
	e.Engine = proxytest.NewEngineAs(t, func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		page := e.pages[r.URL.Path]
		e.mu.Unlock()
		switch {
		case page != nil:
			page(w, r)
		case r.Method == http.MethodGet:
			http.NotFound(w, r)
		default:
			proxytest.Tokens(3)(w, r)
		}
	}, start)
	return e
}

func (e *telling) page(path string, h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pages[path] = h
}

// says has a path answered with a text.
func (e *telling) says(path, text string) {
	e.page(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

// metrics has the engine tell of its cache as vLLM does.
func (e *telling) metrics(tokens int, more ...string) {
	e.says("/metrics", fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",kv_cache_size_tokens=\"%d\"} 1.0\n", tokens)+strings.Join(more, "\n")+"\n")
}

// models has the engine list models; those with an asterisk are adapters.
func (e *telling) models(names ...string) {
	var list []string
	for _, name := range names {
		parent := "null"
		if n, adapter := strings.CutSuffix(name, "*"); adapter {
			name, parent = n, `"base"`
		}
		list = append(list, fmt.Sprintf(`{"id":%q,"object":"model","owned_by":"vllm","parent":%s}`, name, parent))
	}
	e.says("/v1/models", `{"object":"list","data":[`+strings.Join(list, ",")+`]}`)
}

// asked counts the questions for a path.
func (e *telling) asked(path string) (n int) {
	for _, r := range e.Requests() {
		if r.Path == path {
			n++
		}
	}
	return n
}

// learns waits until everything that the engine tells from now on was taken in.
func (e *telling) learns(t testing.TB) {
	t.Helper()
	n := e.asked("/metrics")
	eventually(t, "the engine was asked twice more", func() bool { return e.asked("/metrics") >= n+3 })
}

const learning = "cache_tokens auto\n\t\t\tengine {\n\t\t\t\tscrape 100ms\n\t\t\t}"

// upstreamsOf gives the answer of GET /kv_aware/upstreams by address.
func upstreamsOf(t testing.TB, c *proxytest.Caddy) map[string]upstreamState {
	t.Helper()
	_, _, body := c.Admin("GET", "/kv_aware/upstreams", "")
	var all []upstreamState
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	by := make(map[string]upstreamState)
	for _, u := range all {
		by[u.Address] = u
	}
	return by
}

func TestWhatAnEngineTellsIsLearntAndShown(t *testing.T) {
	e := newTelling(t)
	text, err := os.ReadFile("internal/enginefacts/testdata/vllm_0.32.txt")
	if err != nil {
		t.Fatal(err)
	}
	e.says("/metrics", string(text))
	e.models("Qwen/Qwen3-8B", "qwen3", "sql-lora*")
	silent := newTelling(t)
	c := proxytest.Start(t, "", site(addrs(e.Engine, silent.Engine), learning, ""))
	var told upstreamState
	eventually(t, "the engine's facts are shown", func() bool {
		told = upstreamsOf(t, c)[e.Addr()]
		return told.Engine != nil && told.Engine.Name == "vllm" && told.Engine.Models != nil && told.CacheTokens == 430_080
	})
	f := told.Engine
	if told.CacheTokensFrom != "engine" || f.BlockSize != 16 || f.KVTokens != 430_080 || f.Engines != 1 || f.PrefixCaching == nil || !*f.PrefixCaching ||
		fmt.Sprint(f.Models, f.Adapters) != "[Qwen/Qwen3-8B qwen3] [sql-lora]" || f.Started == nil || f.Started.UnixMilli() != 1795968001250 ||
		f.Answered == nil || f.Running != 3 || f.Waiting != 1 || f.Error != "" || told.Asleep {
		t.Errorf("told %+v of %+v", f, told)
	}
	if !defaultPool(t).isAdapter("sql-lora") || defaultPool(t).isAdapter("qwen3") {
		t.Error("adapters are not told from models")
	}
	var other upstreamState
	eventually(t, "the silent one was asked", func() bool {
		other = upstreamsOf(t, c)[silent.Addr()]
		return other.Engine != nil
	})
	if other.CacheTokens != DefaultCacheTokens || other.CacheTokensFrom != "configuration" || other.Engine == nil || other.Engine.Error != "metrics: status 404" || other.Engine.Models != nil {
		t.Errorf("of the silent one is told %+v, %+v", other, other.Engine)
	}
	for _, r := range e.Requests() {
		if r.Method != "GET" || r.Length != 0 || r.Header.Get("User-Agent") != "caddy-kv-aware" {
			t.Errorf("asked by %+v", r)
		}
	}
	_, _, metrics := c.Admin("GET", "/metrics", "")
	for addr, want := range map[string]string{e.Addr(): `"metrics",pool="",result="ok"`, silent.Addr(): `"models",pool="",result="status"`} {
		if !strings.Contains(metrics, `engine_scrapes_total{endpoint=`+want+`,upstream="`+addr+`"}`) {
			t.Errorf("not counted: %s of %s", want, addr)
		}
	}
}

func TestEnginesAreAskedWithTheProxysTLSAndTheGivenHeaders(t *testing.T) {
	t.Setenv("KV_AWARE_TEST_KEY", "k1")
	file := filepath.Join(t.TempDir(), "team")
	if err := os.WriteFile(file, []byte("blue"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newTellingAs(t, (*httptest.Server).StartTLS)
	e.metrics(32_000)
	e.models("m")
	options := "cache_tokens auto\n\t\t\tengine {\n\t\t\t\tscrape 100ms\n\t\t\t\theader_up Authorization \"Bearer {env.KV_AWARE_TEST_KEY}\"\n\t\t\t\theader_up X-Team {file." + file + "}\n\t\t\t\theader_up Host engines.test\n\t\t\t}"
	c := proxytest.Start(t, "", site(e.Addr(), options, "transport http {\n\t\t\ttls_insecure_skip_verify\n\t\t}"))
	eventually(t, "the capacity is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
	for _, r := range e.Requests() {
		if r.Header.Get("Authorization") != "Bearer k1" || r.Header.Get("X-Team") != "blue" {
			t.Errorf("%s was asked for with %v", r.Path, r.Header)
		}
	}
	// A key is shown nowhere.
	_, _, shown := c.Admin("GET", "/kv_aware/upstreams", "")
	if strings.Contains(shown, "k1") {
		t.Error("the key is shown")
	}
}
