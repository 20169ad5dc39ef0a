// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvaware/caddy-kvaware/kvaware"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// carrying is an upstream with a load.
func carrying(address string, prefill, decode int64) kvaware.UpstreamSnapshot {
	return kvaware.UpstreamSnapshot{Address: address, Configured: true, Figures: kvaware.Figures{
		Load: float64(prefill + decode), PrefillTokens: prefill, DecodeTokens: decode, Sequences: 1, CacheTokens: 400000, RunningKVTokens: decode,
	}}
}

// order is in which order addresses are on the screen.
func order(screen string, addresses ...string) bool {
	at := -1
	for _, a := range addresses {
		i := strings.Index(screen, a)
		if i <= at {
			return false
		}
		at = i
	}
	return true
}

// aFleet is a snapshot with something of everything.
func aFleet() *kvaware.Snapshot {
	rate, idle := 0.64, 0.0
	busy := carrying("10.0.0.1:8000", 12000, 30000)
	busy.HitRate, busy.IdleKVTokens = &rate, 202000
	busy.FirstToken = &kvaware.Percentiles{Count: 9, P50: 120, P99: 1260}
	busy.InterToken = &kvaware.Percentiles{Count: 99, P50: 9.4, P99: 35}
	busy.GeneratedTokensPerSecond, busy.RequestsPerSecond = 1234.5, 0.4
	failing := carrying("10.0.0.2:8000", 0, 800)
	failing.HitRate, failing.FailureScore = &idle, 2.5
	total := busy.Figures
	total.CachedTokensTotal, total.AttemptsTotal, total.Requests = 12_345_678, 40, 2
	return &kvaware.Snapshot{Pools: []kvaware.PoolSnapshot{{
		Pool: "chat", Totals: total, UpstreamsTotal: 2,
		Upstreams: []kvaware.UpstreamSnapshot{busy, failing},
		Decisions: []kvaware.Decision{{
			Time: time.Date(2026, 11, 29, 12, 30, 5, 0, time.Local), Upstream: "10.0.0.1:8000",
			PromptTokens: 2000, CachedTokens: 1600, Why: "It holds the most of the prompt, and costs least.",
		}},
	}}}
}

const fleetTable = `pool chat: 2 upstreams, 2 requests
0.4 requests/s, 0 tokens/s prefilled, 1234 generated; hit rate 64%, 12.3M tokens of prefill saved
time to first token 120ms, p99 1.3s; between tokens 9.4ms, p99 35ms

upstream↑      █ prefill ▒ decode                         load  prefill  decode  running  KV used  held  hit rate   TTFT   p99    ITL   p99  tokens/s  requests/s  failing
10.0.0.1:8000  ███████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  42.0k    12.0k   30.0k        1       8%   58%       64%  120ms  1.3s  9.4ms  35ms      1234         0.4        0
10.0.0.2:8000  ▒                                           800        0     800        1       0%    0%        0%      -     -      -     -         0           0      2.5

Last decisions
12:30:05  10.0.0.1:8000  2000 tokens, 1600 cached: It holds the most of the prompt, and costs least.
`

func serving(t *testing.T, s *kvaware.Snapshot) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kv_aware/snapshot" {
			t.Errorf("asks for %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(s)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestStatusShowsTheFleetAsATable(t *testing.T) {
	address := serving(t, aFleet())
	if out := succeed(t, "", "status", "--address", address); out != fleetTable {
		t.Errorf("prints\n%swant\n%s", out, fleetTable)
	}
	var s kvaware.Snapshot
	if err := json.Unmarshal([]byte(succeed(t, "", "status", "--json", "--address", address)), &s); err != nil || s.Pools[0].Upstreams[0].PrefillTokens != 12000 {
		t.Errorf("%v: %+v", err, s)
	}
}

func TestStatusShowsARunningCaddy(t *testing.T) {
	c, address := start(t, site)
	out := succeed(t, "", "status", "--address", address)
	for _, want := range []string{"the pool without a name: 2 upstreams, 0 requests", "127.0.0.1:2", "Nothing has been routed yet."} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	_ = c.Post("/v1/chat/completions", chat).Body.Close()
	if out := succeed(t, "", "status", "--address", address, "--pool", ""); !strings.Contains(out, "Last decisions") || !strings.Contains(out, "22 tokens") {
		t.Errorf("prints\n%s", out)
	}
}

// codeOf gives the exit code in Caddy's own error, whose type has no name outside.
func codeOf(err error) int {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer {
		if code := v.Elem().FieldByName("ExitCode"); code.IsValid() {
			return int(code.Int())
		}
	}
	return 1
}

func TestExitCodesTellWhatIsWrong(t *testing.T) {
	_, address := start(t, site)
	_, none := start(t, "http://site {\n\tbind {SITE}\n\trespond ok\n}\n")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"status", "--address", proxytest.Refused(t)}, exitNoCaddy, "no Caddy answers"},
		{[]string{"top", "--address", proxytest.Refused(t)}, exitNoCaddy, "no Caddy answers"},
		{[]string{"status", "--address", strings.TrimPrefix(other.URL, "http://")}, exitNoPolicy, "built without kv_aware"},
		{[]string{"status", "--address", none}, exitNoPolicy, "no proxy with lb_policy kv_aware in its configuration"},
		{[]string{"top", "--address", none}, exitNoPolicy, "no proxy with lb_policy kv_aware in its configuration"},
		{[]string{"dashboard", "--no-open", "--address", none}, exitNoPolicy, "no proxy with lb_policy kv_aware in its configuration"},
		{[]string{"dashboard", "--no-open", "--address", proxytest.Refused(t)}, exitNoCaddy, "no Caddy answers"},
		{[]string{"status", "--address", none, "--pool", "x"}, exitNoPolicy, "no such pool"},
		{[]string{"explain", "-", "--address", none}, exitNoPolicy, "no pool"},
		{[]string{"status", "--address", "127.0.0.1:1-9"}, 1, "no address"},
		{[]string{"status", "--address", "localhost"}, 1, "no address"},
		{[]string{"status", "--address", "a:b:::"}, 1, "no address"},
		{[]string{"explain", "missing.json", "--address", address}, 1, "no such file"},
	} {
		_, err := run(t, "{}", c.args...)
		if err == nil || codeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %d, %v", c.args, codeOf(err), err)
		}
	}
}

var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestAFleetFitsIntoAnyWidth(t *testing.T) {
	s := aFleet()
	s.Pools[0].Upstreams[0].Address = "engine\x1b[2J\nof.a.very.long.name.that.goes.on.and.on.and.on.example.com:8000"
	s.Pools[0].Decisions[0].Upstream = s.Pools[0].Upstreams[0].Address
	for width := 1; width < widest; width++ {
		for sorted := range columns {
			v := fleetView{width: width, sorted: sorted, colored: width%2 == 0, reverse: sorted%2 == 0}
			lines := v.pool(&s.Pools[0])
			for _, part := range [][]string{lines.head, lines.rows, lines.decisions} {
				for _, line := range part {
					bare := styles.ReplaceAllString(line, "")
					if utf8.RuneCountInString(bare) > width || strings.ContainsAny(bare, "\x1b\n") || line != bare && !v.colored {
						t.Fatalf("in %d: %q", width, line)
					}
				}
			}
		}
	}
}

// Where no engine's events are followed, there is no column for them.
func TestStatusShowsHowFarEventsAreFollowed(t *testing.T) {
	upstreams := aFleet().Pools[0].Upstreams
	v := fleetView{width: widest}
	if header, _ := v.table(upstreams); strings.Contains(header, "events") {
		t.Errorf("shows %s", header)
	}
	upstreams[1].Events = &kvaware.EventsBrief{State: "not connected", Gaps: 3}
	upstreams = append(upstreams, carrying("10.0.0.3:8000", 0, 0))
	upstreams[2].Events = &kvaware.EventsBrief{State: "\x1b[2J"}
	header, rows := v.table(upstreams)
	if !strings.Contains(header, "events") || !strings.HasSuffix(rows[0], " -") || !strings.Contains(rows[1], "not connected") || strings.Contains(rows[2], "\x1b[2J") {
		t.Errorf("shows\n%s\n%s", header, strings.Join(rows, "\n"))
	}
}

// What matters most stays where there is little room.
func TestANarrowTerminalShowsTheLoadFirst(t *testing.T) {
	header, _ := fleetView{width: 60}.table(aFleet().Pools[0].Upstreams)
	if !order(header, "upstream", "load", "running", "hit rate") || strings.Contains(header, "ITL") || strings.Contains(header, "held") {
		t.Errorf("shows %s", header)
	}
}

func TestBarsShareOneScale(t *testing.T) {
	v := fleetView{}
	for _, c := range []struct {
		prefill, decode, full int64
		want                  string
	}{
		{0, 0, 0, "          "},
		{0, 0, 100, "          "},
		{50, 50, 100, "█████▒▒▒▒▒"},
		{30, 20, 100, "███▒▒     "},
		{1, 1, 1e6, "█▒        "},
		{1e6, 1, 1e6 + 1, "██████████"},
		{0, 1e6, 1e6, "▒▒▒▒▒▒▒▒▒▒"},
	} {
		u := carrying("a", c.prefill, c.decode)
		if bar := v.bar(&u, c.full, 10); bar != c.want {
			t.Errorf("%d and %d of %d: %q, want %q", c.prefill, c.decode, c.full, bar, c.want)
		}
	}
}

func TestNumbersTakeFewCharacters(t *testing.T) {
	for value, want := range map[float64]string{
		0: "0", 7: "7", 0.42: "0.4", 9.96: "10", 123.4: "123", 9999: "9999", 10000: "10.0k", 99949: "99.9k", 99951: "100k", 999499: "999k",
		999500: "1.0M", 1.5e9: "1.5G", 1e15: "1e+15",
	} {
		if got := amount(value); got != want {
			t.Errorf("%v: %s, want %s", value, got, want)
		}
	}
	for value, want := range map[float64]string{-1: "-", 0: "0.0ms", 9.4: "9.4ms", 9.96: "10ms", 999.4: "999ms", 999.6: "1.0s", 60000: "60.0s", 600000: "600s"} {
		if got := milliseconds(value); got != want {
			t.Errorf("%v: %s, want %s", value, got, want)
		}
	}
	if got := percent(share(1, 0)); got != "-" {
		t.Error(got)
	}
	if n := utf8.RuneCountInString(amount(math.MaxFloat64)); n > 20 {
		t.Error(n)
	}
}

func TestASnapshotThatIsNotUnderstoodIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) }))
	defer server.Close()
	fails(t, "", []string{"status", "--address", strings.TrimPrefix(server.URL, "http://")}, "not understood")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	api := &adminAPI{address: "a", origin: server.URL}
	if _, _, err := api.snapshot(ctx, nil); err == nil {
		t.Error("no error")
	}
}
