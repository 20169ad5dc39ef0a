// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/report"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// mooncake is a trace of that format, of requests that come one second apart.
const mooncake = `{"timestamp": 0, "input_length": 1000, "output_length": 30, "hash_ids": [1, 2]}
{"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]}
{"timestamp": 2000, "input_length": 600, "output_length": 10, "hash_ids": [1, 4]}
{"timestamp": 3000, "input_length": 1000, "output_length": 30, "hash_ids": [1, 2]}
{"timestamp": 4000, "input_length": 1000, "output_length": 30, "hash_ids": [7, 8]}
`

func traceFile(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "small.jsonl")
	if err := os.WriteFile(name, []byte(mooncake), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReplayComparesAllPoliciesAndWritesAReport(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	out := succeed(t, "", "replay", "--trace", traceFile(t), "--replicas", "2", "--policies", "all", "--load", "trace", "--html", page)
	specs, err := policiesOf("all")
	if err != nil || len(specs) < 20 {
		t.Fatalf("%d policies, error %v", len(specs), err)
	}
	for _, s := range specs {
		if !strings.Contains(out, "\n"+s.Name+" ") {
			t.Errorf("%s is not in\n%s", s.Name, out)
		}
	}
	for _, want := range []string{"small on 2xh100, its own times", "best peer", "All cells", "kv_aware less the best peer", "report.html"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(html), "</html>") {
		t.Errorf("no page: %v", err)
	}
}

func TestReplayFindsTheLoadFirst(t *testing.T) {
	out := succeed(t, "", "replay", "--trace", "uniform", "--requests", "300", "--fleet", "2xl4", "--policies", "ours", "--load", "0.5,0.9", "--html", "")
	for _, want := range []string{"uniform on 2xl4: load 1.0 is ", "uniform on 2xl4, load 0.5 (", "uniform on 2xl4, load 0.9 ("} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// replayJSON has what the command promises of its JSON.
type replayJSON struct {
	Cells []struct {
		Trace, Fleet, Policy string
		Load                 float64
		Seed                 uint64
		Requests             int
		TTFT                 map[string]any `json:"ttft_ms"`
		ITL                  map[string]any `json:"itl_ms"`
		E2E                  map[string]any `json:"e2e_ms"`
		TokensPerSecond      float64        `json:"tokens_per_s"`
		HitRate              *float64       `json:"hit_rate"`
		Preemptions          *uint64        `json:"preemptions"`
		Clients              int
		Routers              replay.Routers
		Rate                 float64
	}
}

func replayedJSON(t *testing.T, args ...string) (replayJSON, string) {
	t.Helper()
	out := succeed(t, "", append([]string{"replay", "--html", "", "--json", "-"}, args...)...)
	var r replayJSON
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return r, out
}

func TestReplayPrintsJSONForMachines(t *testing.T) {
	args := []string{"--trace", "chat:turns=2,output=20", "--requests", "200", "--fleet", "h100,h100@0.5", "--policies", "kv_aware,dynamo", "--rate", "5,10", "--seeds", "2", "--seed", "7"}
	r, out := replayedJSON(t, args...)
	if len(r.Cells) != 8 {
		t.Fatalf("%d cells of 2 policies, 2 rates and 2 seeds", len(r.Cells))
	}
	for _, c := range r.Cells {
		if c.Trace != "chat:turns=2,output=20" || c.Fleet != "h100,h100@0.5" || c.Seed != 7 && c.Seed != 8 || c.Requests != 200 ||
			c.TTFT["p99"] == nil || c.ITL["mean"] == nil || c.E2E["p50"] == nil || c.TokensPerSecond <= 0 || c.HitRate == nil || c.Preemptions == nil {
			t.Errorf("cell %+v", c)
		}
	}
	if _, again := replayedJSON(t, args...); again != out {
		t.Error("the same again gives other JSON")
	}
}

func TestReplayRunsAClosedLoopWithEvents(t *testing.T) {
	r, _ := replayedJSON(t, "--trace", "chat", "--requests", "100", "--replicas", "3", "--policies", "least_conn", "--clients", "4",
		"--events", "slow:0@0.2=3,restart:1@0.5=1s")
	if len(r.Cells) != 1 || r.Cells[0].Clients != 4 || r.Cells[0].Requests != 100 {
		t.Errorf("%+v", r.Cells)
	}
}

func TestReplayRunsEachNumberOfRoutersAsACell(t *testing.T) {
	args := []string{"--trace", "chat", "--requests", "200", "--replicas", "2", "--policies", "kv_aware,least_conn", "--rate", "4"}
	r, _ := replayedJSON(t, append(args, "--routers", "1,3,3/session")...)
	if len(r.Cells) != 6 || r.Cells[0].Routers.N != 0 || r.Cells[3].Routers.N != 3 || !r.Cells[5].Routers.Sticky {
		t.Fatalf("%+v", r.Cells)
	}
	if _, one := replayedJSON(t, append(args, "--routers", "1")...); strings.Contains(one, "routers") {
		t.Error("one router, as ever, is spoken of")
	}
	out := succeed(t, "", append([]string{"replay", "--html", "", "--routers", "3/session"}, args...)...)
	if !strings.Contains(out, "chat on 2xh100, 4 requests/s, 3 routers by session") {
		t.Errorf("the routers are not in\n%s", out)
	}
}

func TestReplaySaysThatRequestsTellTheirLengths(t *testing.T) {
	args := []string{"replay", "--trace", "chat", "--requests", "100", "--policies", "dynamo_out", "--rate", "4", "--html", ""}
	plain, told := succeed(t, "", args...), succeed(t, "", append(args, "--hints")...)
	if note := "Requests tell how long"; strings.Contains(plain, note) || !strings.Contains(told, note) {
		t.Errorf("without hints:\n%s\nwith:\n%s", plain, told)
	}
}

func TestReplayListsWhatThereIs(t *testing.T) {
	out := succeed(t, "", "replay", "--list")
	for _, want := range []string{"  rl ", "samples=16", "  kv_aware ", "  dynamo_lmetric ", "  mi300x ", "restart"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestReplaySaysWhatIsWrong(t *testing.T) {
	broken := file(t, "no trace\n")
	half := filepath.Join(t.TempDir(), "half.jsonl")
	if err := os.WriteFile(half, []byte(mooncake+"{\"timestamp\": 5000, \"input_length\": -1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"no trace", "--list"}},
		{[]string{"--trace", "nothing"}, []string{"nothing", "no generator", "chat"}},
		{[]string{"--trace", "./nothing.jsonl"}, []string{"nothing.jsonl: no such file"}},
		{[]string{"--trace", broken}, []string{"line 1", "not known"}},
		{[]string{"--trace", half}, []string{"half.jsonl", "line 6"}},
		{[]string{"--trace", "chat:color=3"}, []string{`no parameter "color"`, "turns"}},
		{[]string{"--trace", "chat,chat"}, []string{"chat is given twice"}},
		{[]string{"--trace", "chat", "--policies", "best"}, []string{`no policy "best"`, "kv_aware, kv_aware_token_load, kv_aware_defaults, kv_aware_events, random", "peers"}},
		{[]string{"--trace", "chat", "--fleet", "2xz80"}, []string{`no machine "z80"`, "h100"}},
		{[]string{"--trace", "chat", "--replicas", "0"}, []string{"0 replicas"}},
		{[]string{"--trace", "chat", "--fleet", "4", "--replicas", "4"}, []string{"fleet replicas"}},
		{[]string{"--trace", "chat", "--load", "0.5,x"}, []string{`--load "x"`}},
		{[]string{"--trace", "chat", "--load", "-1"}, []string{`--load "-1"`}},
		{[]string{"--trace", "chat", "--load", "0.5,0.50"}, []string{"given twice"}},
		{[]string{"--trace", "chat", "--rate", "1", "--clients", "1"}, []string{"rate clients"}},
		{[]string{"--trace", "chat", "--clients", "1.5"}, []string{`--clients "1.5"`}},
		{[]string{"--trace", "chat", "--events", "explode:1@0.5"}, []string{"--events", "no such kind"}},
		{[]string{"--trace", "chat", "--replicas", "2", "--events", "leave:2@0.5"}, []string{"replica 2", "has 2"}},
		{[]string{"--trace", "chat", "--slo", "2s"}, []string{`--slo "2s"`, "2s,100ms"}},
		{[]string{"--trace", "chat", "--seeds", "0"}, []string{"--seeds 0"}},
		{[]string{"--trace", "chat", "--routers", "0"}, []string{"--routers", `"0"`, "1 to 64"}},
		{[]string{"--trace", "chat", "--routers", "2,two"}, []string{"--routers", `"two"`}},
		{[]string{"--trace", "chat", "--routers", "2,2"}, []string{"--routers: 2 routers are given twice"}},
		{[]string{"--trace", "chat", "--routers", "2/tenant"}, []string{`"2/tenant"`, "4/session"}},
		{[]string{"--trace", "chat", "--requests", "-1"}, []string{"--requests -1"}},
		{[]string{"--trace", "chat", "--block-size", "0"}, []string{"--block-size 0"}},
		{[]string{"--trace", "chat", "--json", "-", "--html", "-"}, []string{"two of"}},
		{[]string{"--trace", "chat", "--html", filepath.Join(broken, "x.html")}, []string{"no directory"}},
		{[]string{"--trace", "chat", "--markdown", "-", "--html", "-"}, []string{"two of"}},
		{[]string{"--trace", "chat", "--html", t.TempDir()}, []string{"is a directory"}},
		{[]string{"--trace", "chat", "--rate", "1e300"}, []string{`--rate "1e300"`, "1e+06"}},
		{[]string{"--trace", "chat", "--load", "1e-9"}, []string{`--load "1e-9"`, "0.001"}},
		{[]string{"--trace", "chat", "--warm-up", "1"}, []string{"--warm-up 1"}},
		{[]string{"--trace", "chat", "--max-idle", "-1s"}, []string{"--max-idle -1s"}},
		{[]string{"--trace", "chat", "--block-size", "65537"}, []string{"--block-size 65537", "65536"}},
		{[]string{"--trace", "chat:think=10000000", "--requests", "100", "--rate", "1000", "--policies", "random"}, []string{"too many sessions"}},
		{[]string{"chat"}, []string{"chat"}},
	} {
		fails(t, "", append([]string{"replay"}, c.args...), c.want...)
	}
}

func TestATracesOwnErrorIsFoundBehindTheCommands(t *testing.T) {
	_, err := tracesOf([]string{"chat:color=3"}, trace.Options{})
	var typed *trace.Error
	if !errors.As(err, &typed) {
		t.Errorf("%v is no error of a trace", err)
	}
	if _, err := tracesOf([]string{"nothing"}, trace.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not say that there is no file", err)
	}
}

func TestTracesAreTakenApartAtCommas(t *testing.T) {
	odd := filepath.Join(t.TempDir(), "a,b.jsonl")
	if err := os.WriteFile(odd, []byte(mooncake), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"chat":                        {"chat"},
		"chat,rl":                     {"chat", "rl"},
		"chat:turns=5,users=3,rl":     {"chat:turns=5,users=3", "rl"},
		"chat:turns=5,rl:samples=2":   {"chat:turns=5", "rl:samples=2"},
		"chat:turns=5,a=b.jsonl":      {"chat:turns=5,a=b.jsonl"},
		"x.jsonl,a=b.jsonl, y.jsonl,": {"x.jsonl", "a=b.jsonl", "y.jsonl"},
		odd:                           {odd},
		"":                            nil,
	} {
		if got := splitTraces(text); !slices.Equal(got, want) {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	if got := splitTraces("generators"); len(got) != len(trace.Generators) {
		t.Errorf("generators are %q", got)
	}
}

func TestEachPolicyComesOnceAndTheBoundIsNoPeer(t *testing.T) {
	specs, err := policiesOf("dynamo, peers ,ours,kv_aware")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for _, s := range specs {
		seen[s.Name]++
	}
	if specs[0].Name != "dynamo" || seen["dynamo"] != 1 || seen["kv_aware"] != 1 || seen[bound] != 0 || len(seen) != len(peers.All())-1+len(ours.All()) {
		t.Errorf("policies %v", seen)
	}
	if _, ok := peers.ByName(bound); !ok || isPeer(bound) || !isPeer("dynamo") || isPeer("kv_aware") {
		t.Error("the bound is a peer, or a peer is none")
	}
	for _, name := range references {
		if !isPeer(name) {
			t.Errorf("reference %s is no peer", name)
		}
	}
}

// planOf is a plan of one small trace.
func planOf(t *testing.T, specs ...replay.Spec) *replayPlan {
	t.Helper()
	tr, err := trace.Generate("uniform", 100)
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := replay.ParseFleet("2")
	if err != nil {
		t.Fatal(err)
	}
	return &replayPlan{
		traces: []*trace.Trace{tr}, fleets: []replay.Fleet{fleet}, policies: specs,
		pressures: []pressure{{rate: 10}, {rate: 20}}, routers: []replay.Routers{{}}, seeds: []uint64{1, 2}, blockSize: 64,
	}
}

func TestAnInterruptLeavesWhatWasFound(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	spec, _ := peers.ByName("least_conn")
	plan := planOf(t, spec)
	var made atomic.Int32
	// The cells come one after the other, so that the third is of the second cell.
	plan.policies = append(plan.policies, replay.Spec{Name: "last", New: func(s replay.Setting) replay.Policy {
		if made.Add(1) > 2 {
			interrupt()
		}
		return spec.New(s)
	}})
	found, err := plan.run(ctx, nil)
	if err == nil || !strings.Contains(err.Error(), "interrupted after") || found == nil {
		t.Fatalf("found %v, error %v", found, err)
	}
	if n := len(found.Results); n < 4 || n == 8 || found.Missing != 8-n {
		t.Errorf("%d results, %d missing", n, found.Missing)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if found, err := plan.run(cancelled, nil); found != nil || err == nil {
		t.Errorf("before the first run: %v, %v", found, err)
	}
}

func FuzzReplayFlags(f *testing.F) {
	f.Add("chat:turns=5,users=3,rl", "kv_aware,peers", "2s,100ms")
	f.Add(",,=:", "", ",")
	f.Fuzz(func(t *testing.T, traces, policies, slo string) {
		for _, spec := range splitTraces(traces) {
			if spec == "" {
				t.Error("an empty trace")
			}
		}
		if specs, err := policiesOf(policies); err == nil && len(specs) == 0 {
			t.Error("no policies and no error")
		}
		if s, err := sloOf(slo); err == nil && !(s.TTFT > 0 && s.ITL > 0) {
			t.Errorf("SLO %+v", s)
		}
	})
}

func TestReplayMeasuresWhatTheWarmUpLeaves(t *testing.T) {
	for share, want := range map[string]int{"0": 100, "0.5": 50, "0.9": 10} {
		out := succeed(t, "", "replay", "--trace", "uniform", "--requests", "100", "--policies", "random", "--rate", "10", "--warm-up", share, "--html", "", "--json", "-")
		var r struct{ Cells []struct{ Measured int } }
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Cells) != 1 || r.Cells[0].Measured != want {
			t.Errorf("warm-up %s: %+v, %v", share, r, err)
		}
	}
}

func TestReplayWritesMarkdownForDocuments(t *testing.T) {
	out := succeed(t, "", "replay", "--trace", "uniform", "--requests", "50", "--policies", "random,kv_aware", "--rate", "10", "--html", "", "--markdown", "-")
	if !strings.Contains(out, "| policy |") || !strings.Contains(out, "| kv\\_aware |") || strings.Contains(out, "policy    ") {
		t.Errorf("no Markdown, or the table as well:\n%s", out)
	}
}

// What is written last would be all that is left.
func TestNoTwoOutputsGoToOneFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Skip(err)
	}
	absent := filepath.Join(dir, "absent")
	for _, o := range []replayOutputs{
		{json: file, svg: file},
		{html: file, markdown: link},
		{json: absent, html: absent},
		{markdown: absent, svg: dir + "/./absent"},
	} {
		if err := o.check(); err == nil || !strings.Contains(err.Error(), "a file of its own") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []replayOutputs{
		{json: file, svg: absent},
		{json: os.DevNull, html: "", markdown: "-", svg: file},
	} {
		if err := o.check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Runs may have taken hours: what one file's trouble leaves is not to be lost with it.
func TestWhatCannotBeWrittenKeepsNothingElseBack(t *testing.T) {
	cmd, out := replayCommand(), new(strings.Builder)
	cmd.SetOut(out)
	found := &report.Replay{Results: []*replay.Result{{Trace: "mine", Policy: "random", Requests: 1}}}
	dir := t.TempDir()
	err := writeReplay(cmd, found, replayOutputs{json: dir, html: filepath.Join(dir, "none", "x.html"), markdown: filepath.Join(dir, "x.md")})
	if err == nil || !strings.Contains(err.Error(), "x.html") || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "x.md")); err != nil || !strings.Contains(out.String(), "mine") {
		t.Errorf("%v; printed %q", err, out)
	}
}
