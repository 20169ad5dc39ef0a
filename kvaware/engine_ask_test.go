// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestEnginesAtUnixSocketsAreAskedEachAtItsOwn(t *testing.T) {
	var all []string
	var engines []*telling
	for i := range 2 {
		path := filepath.Join(shortDir(t), "engine")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		e := newTellingAs(t, func(s *httptest.Server) {
			_ = s.Listener.Close()
			s.Listener = l
			s.Start()
		})
		e.metrics(16_000 * (i + 1))
		all, engines = append(all, "unix/"+path), append(engines, e)
	}
	c := proxytest.Start(t, "", site(strings.Join(all, " "), learning, ""))
	for i, addr := range all {
		want := int64(16_000 * (i + 1))
		eventually(t, "the capacity at a socket is known", func() bool { return upstreamsOf(t, c)[addr].CacheTokens == want })
		if host := engines[i].Requests()[0].Header.Get("Host"); host != "" {
			t.Errorf("host %q", host)
		}
	}
}

func TestAnEngineBehindPROXYProtocolIsAskedToo(t *testing.T) {
	heads := make(chan string, 100)
	e := newTellingAs(t, func(s *httptest.Server) {
		s.Listener = &proxyLines{s.Listener, heads}
		s.Start()
	})
	e.metrics(16_000)
	c := proxytest.Start(t, "", site(e.Addr(), learning, "transport http {\n\t\t\tproxy_protocol v1\n\t\t}"))
	eventually(t, "the capacity is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 16_000 })
	if head := <-heads; !strings.HasPrefix(head, "PROXY TCP4 127.0.0.1 ") {
		t.Errorf("it began with %q", head)
	}
}

// proxyLines takes the line of the PROXY protocol off each connection.
type proxyLines struct {
	net.Listener
	heads chan string
}

func (l *proxyLines) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var head []byte
	for b := make([]byte, 1); len(head) < 200 && b[0] != '\n'; head = append(head, b[0]) {
		if n, _ := conn.Read(b); n == 0 {
			break
		}
	}
	select {
	case l.heads <- string(head):
	default:
	}
	return conn, nil
}

func TestTensorRTLLMIsAskedWhereItHasItsMetrics(t *testing.T) {
	e := newTelling(t)
	e.page("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("[]"))
	})
	e.says("/prometheus/metrics", "trtllm_kv_cache_max_blocks 1000\ntrtllm_kv_cache_tokens_per_block 32\n")
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	eventually(t, "the capacity is known", func() bool { return upstreamsOf(t, c)[e.Addr()].CacheTokens == 32_000 })
	n := e.asked("/metrics")
	eventually(t, "it is asked on", func() bool { return e.asked("/prometheus/metrics") > n+3 })
	if m := e.asked("/metrics"); m != n {
		t.Errorf("its statistics were taken %d times more", m-n)
	}
}

func TestWhatEnginesSayElsewhereIsTakenInToo(t *testing.T) {
	e := newTelling(t) // SGLang without --enable-metrics
	e.says("/v1/models", `{"object":"list","data":[{"id":"m","owned_by":"sglang"}]}`)
	e.says("/get_server_info", `{"page_size":64,"disable_radix_cache":true,"dp_size":2,"max_total_num_tokens":32000,"api_key":"k1"}`)
	c := proxytest.Start(t, "", site(e.Addr(), learning, ""))
	var told upstreamState
	eventually(t, "the capacity is known", func() bool {
		told = upstreamsOf(t, c)[e.Addr()]
		return told.CacheTokens == 64_000
	})
	if f := told.Engine; f.Name != "sglang" || f.BlockSize != 64 || f.PrefixCaching == nil || *f.PrefixCaching || f.KVTokens != 32_000 || f.Engines != 2 {
		t.Errorf("told %+v", f)
	}
	n := e.asked("/v1/models")
	eventually(t, "it is asked on", func() bool { return e.asked("/v1/models") > n+3 })
	if n := e.asked("/get_server_info"); n != 1 {
		t.Errorf("asked %d times for what hardly changes", n)
	}
}
