// SPDX-License-Identifier: Apache-2.0

// Package live plays a trace twice: over HTTP, by Caddy in front of simulated
// engines in real time, and on the replay's virtual clock. Where both agree, what
// the replay says of a policy is what the policy does in Caddy.
package live

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/kvaware/caddy-kvaware/kvaware"           // lb_policy kv_aware
	_ "github.com/kvaware/caddy-kvaware/kvaware/enginesim" // kv_aware_engine
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

const (
	replicas  = 3
	blockSize = 64
)

// policy is one that both have.
type policy struct {
	caddyfile string
	spec      replay.Spec
}

func policies(t testing.TB) []policy {
	named := func(name string) replay.Spec {
		for _, s := range append(peers.All(), ours.All()...) {
			if s.Name == name {
				return s
			}
		}
		t.Fatalf("the replay has no policy %s", name)
		return replay.Spec{}
	}
	return []policy{
		{"round_robin", named("round_robin")},
		{"least_conn", named("least_conn")},
		{kvAware("token_load", ""), named("kv_aware_token_load")},
		{kvAware("latency", "max_sequences 256"), named("kv_aware")},
	}
}

func kvAware(objective, option string) string {
	return fmt.Sprintf("kv_aware {\n\t\t\tobjective %s\n\t\t\tblock_size %d\n\t\t\t%s\n\t\t}", objective, blockSize, option)
}

// workload takes sessions of a generator, so many in a second. All is as many times
// faster as speed says. Clients bound the output and get no less. Engines invent
// their answers, so no later prompt finds one in a cache: texts end with the prompt.
// Sessions come up to jitter later.
func workload(t testing.TB, spec string, sessions int, rate, speed float64, jitter time.Duration) *trace.Trace {
	t.Helper()
	g, err := trace.Generate(spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	src, err := g.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var all []*trace.Session
	for len(all) < sessions {
		s, err := src.Next()
		if err != nil {
			t.Fatal(err)
		}
		s.Start = time.Duration(float64(s.Start)/rate/speed) + rand.N(jitter+1)
		for i := range s.Turns {
			turn := &s.Turns[i]
			turn.Think = time.Duration(float64(turn.Think) / speed)
			turn.MaxTokens = turn.Output
			turn.Text = beginning(turn.Text, turn.Prompt)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *trace.Session) int { return cmp.Compare(a.Start, b.Start) })
	tr, err := trace.Of(spec, all)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// beginning is the first tokens of a text.
func beginning(text []trace.Segment, tokens int) (short []trace.Segment) {
	for _, s := range text {
		if s.Tokens = min(s.Tokens, tokens); s.Tokens > 0 {
			short = append(short, s)
		}
		tokens -= s.Tokens
	}
	return short
}

// body asks for a turn: a prompt of token ids that are equal where the trace's text
// is.
func body(t *trace.Turn) []byte {
	ids := make([]uint32, 0, t.Prompt)
	for _, s := range t.Text {
		x := s.Seed
		for range s.Tokens {
			x = x*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
			ids = append(ids, uint32(x>>48))
		}
	}
	data, err := json.Marshal(map[string]any{
		"model": "m", "prompt": ids, "max_tokens": t.Output, "ignore_eos": true,
		"stream": true, "stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		panic(err) // numbers and booleans
	}
	return data
}

// answer is what a client saw of one.
type answer struct {
	late        time.Duration // that it was asked for after the time: what a timer needs to wake
	first, last time.Duration // since it was asked for
	usage       struct {
		Prompt  int `json:"prompt_tokens"`
		Output  int `json:"completion_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

func ask(client *http.Client, body []byte) (a answer, err error) {
	began := time.Now()
	res, err := client.Post("http://site/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		text, _ := io.ReadAll(res.Body)
		return a, fmt.Errorf("%s: %s", res.Status, text)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case a.first == 0 && bytes.Contains(line, []byte(`"text":`)):
			a.first = time.Since(began)
		case bytes.Contains(line, []byte(`"choices":[],"usage":`)):
			event := struct{ Usage any }{&a.usage}
			err = json.Unmarshal(bytes.TrimPrefix(line, []byte("data: ")), &event)
		}
	}
	a.last = time.Since(began)
	if err == nil {
		err = lines.Err()
	}
	return a, err
}

// start runs Caddy under a policy, with engines that are so many times faster than
// the modelled ones.
func start(t testing.TB, policy string, speed float64) *http.Client {
	t.Helper()
	var sites strings.Builder
	var upstreams []string
	for i := range replicas {
		socket := fmt.Sprintf("unix/{DIR}/engine%d", i)
		upstreams = append(upstreams, socket)
		fmt.Fprintf(&sites, "http:// {\n\tbind %s\n\tkv_aware_engine e%d {\n\t\tspeed %g\n\t\tblock_size %d\n\t}\n}\n", socket, i, speed, blockSize)
	}
	fmt.Fprintf(&sites, "http://site {\n\tbind {SITE}\n\treverse_proxy %s {\n\t\tlb_policy %s\n\t}\n}\n", strings.Join(upstreams, " "), policy)
	return proxytest.Start(t, "", sites.String()).Client("site")
}

// play sends the trace's requests, each session's one after the other, and gives
// the answers in the order of the trace. With inTurn, so do the sessions, at once.
func play(t testing.TB, tr *trace.Trace, client *http.Client, inTurn bool) []answer {
	t.Helper()
	src, err := tr.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var sessions []*trace.Session
	var bodies [][][]byte
	for {
		s, err := src.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var asked [][]byte
		for i := range s.Turns {
			asked = append(asked, body(&s.Turns[i]))
		}
		sessions, bodies = append(sessions, s), append(bodies, asked)
	}
	answers := make([][]answer, len(sessions))
	var all sync.WaitGroup
	began := time.Now()
	for i, s := range sessions {
		answers[i] = make([]answer, len(s.Turns))
		serve := func() {
			for k := range s.Turns {
				due := time.Now().Add(s.Turns[k].Think)
				<-time.After(s.Turns[k].Think)
				late := time.Since(due)
				a, err := ask(client, bodies[i][k])
				a.late = late
				if err != nil {
					t.Errorf("session %d, turn %d: %v", i, k, err)
				}
				answers[i][k] = a
			}
		}
		if inTurn {
			serve()
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			<-time.After(time.Until(began.Add(s.Start)))
			serve()
		}()
	}
	all.Wait()
	var flat []answer
	for _, a := range answers {
		flat = append(flat, a...)
	}
	return flat
}

// virtual plays the trace on the replay's clock.
func virtual(t testing.TB, tr *trace.Trace, spec replay.Spec, speed float64, seed uint64, clients int) *replay.Result {
	t.Helper()
	fleet, err := replay.ParseFleet(fmt.Sprintf("%dxh100@%g", replicas, speed)) // what kv_aware_engine has by default
	if err != nil {
		t.Fatal(err)
	}
	r, err := replay.Run(context.Background(), replay.Config{
		Trace: tr, Fleet: fleet, Policy: spec, Seed: seed, Clients: clients, BlockSize: blockSize, WarmUp: -1,
		ProgressEvery: 1, // as a stream shows it
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBothClocksServeTheSamePromptsFromTheSameCaches(t *testing.T) {
	const speed = 1000
	tr := workload(t, "chat:turns=4,think=0,prompts=3,first=400,output=8", 12, 1, speed, 0)
	p := policies(t)[0] // whose choice does not depend on times
	var prompt, cached, output int
	for _, a := range play(t, tr, start(t, p.caddyfile, speed), true) {
		prompt += a.usage.Prompt
		cached += a.usage.Details.Cached
		output += a.usage.Output
	}
	want := virtual(t, tr, p.spec, speed, 1, 1)
	if n := float64(tr.Requests); math.Abs(float64(prompt)-n*tr.Prompt) > 0.5 || math.Abs(float64(output)-n*tr.Output) > 0.5 {
		t.Errorf("over HTTP %d and %d tokens, in the trace %.0f and %.0f", prompt, output, n*tr.Prompt, n*tr.Output)
	}
	if got := float64(cached) / float64(prompt); cached == 0 || math.Abs(got-want.HitRate) > 1e-9 {
		t.Errorf("over HTTP %.4f of the prompts were cached, on the virtual clock %.4f", got, want.HitRate)
	}
}

// BenchmarkBothClocks compares mean latencies, in milliseconds. On a machine with
// cores to spare, the speed may be greater: what a request needs on its way, which
// the virtual clock leaves out, has to be little beside a step. It passes half a
// dozen wake-ups, and timer-late-ms is what one takes on this machine. A run is one draw: a
// request that arrives a millisecond later may be routed elsewhere, and then those
// after it. So the virtual clock has many, with arrivals that differ by as much.
func BenchmarkBothClocks(b *testing.B) {
	const (
		speed  = 1
		draws  = 40
		jitter = 2 * time.Millisecond
	)
	made := func(jitter time.Duration) *trace.Trace {
		return workload(b, "one_hit:turns=4,think=2,prompts=4,output=60,wonders=0.15", 250, 4, speed, jitter)
	}
	for _, p := range policies(b) {
		b.Run(p.spec.Name, func(b *testing.B) {
			var http, virtually latencies
			var late sums
			for range b.N {
				for _, a := range play(b, made(0), start(b, p.caddyfile, speed), false) {
					late.add(a.late.Seconds() * 1e3)
					http.add(a.first.Seconds()*1e3, a.last.Seconds()*1e3)
				}
			}
			for i := range uint64(draws) {
				r := virtual(b, made(jitter), p.spec, speed, i, 0)
				virtually.add(r.TTFT.Mean, r.E2E.Mean)
			}
			b.ReportMetric(late.mean(), "timer-late-ms")
			for _, m := range []struct {
				name            string
				http, virtually sums
			}{{"ttft", http.first, virtually.first}, {"e2e", http.last, virtually.last}} {
				b.ReportMetric(m.http.mean(), m.name+"-http-ms")
				b.ReportMetric(m.virtually.mean(), m.name+"-virtual-ms")
				b.ReportMetric(m.virtually.deviation(), m.name+"-virtual-±ms")
				b.ReportMetric(m.http.mean()/m.virtually.mean(), m.name+"-ratio")
			}
		})
	}
}

// latencies are times to the first and to the last token.
type latencies struct{ first, last sums }

func (l *latencies) add(first, last float64) {
	l.first.add(first)
	l.last.add(last)
}

type sums struct{ n, sum, squares float64 }

func (s *sums) add(x float64) {
	s.n++
	s.sum += x
	s.squares += x * x
}

func (s *sums) mean() float64 { return s.sum / s.n }

func (s *sums) deviation() float64 { return math.Sqrt(max(0, s.squares/s.n-s.mean()*s.mean())) }
