// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"
)

func readme(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// between gives the part of text after one mark and before the next other one.
func between(t *testing.T, text, mark, end string) string {
	t.Helper()
	_, after, found := strings.Cut(text, mark)
	if !found {
		t.Fatalf("the README has no %q", mark)
	}
	part, _, _ := strings.Cut(after, end)
	return part
}

// quoted gives the names in back quotes in the given column of a table.
func quoted(table string, column int) (names []string) {
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) <= column {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[column], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// keys gives the JSON keys of a struct type.
func keys(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

func same(t *testing.T, what string, documented, real []string) {
	t.Helper()
	for _, name := range real {
		if !slices.Contains(documented, name) {
			t.Errorf("%s: %s is not in the README", what, name)
		}
	}
	for _, name := range documented {
		if !slices.Contains(real, name) {
			t.Errorf("%s: the README has %s, which is not there", what, name)
		}
	}
}

type capturing struct{ descs *[]string }

func (c capturing) Register(col prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { col.Describe(ch); close(ch) }()
	name := regexp.MustCompile(`fqName: "caddy_kv_aware_([a-z_]+)"`)
	for d := range ch {
		*c.descs = append(*c.descs, name.FindStringSubmatch(d.String())[1])
	}
	return nil
}
func (c capturing) MustRegister(cs ...prometheus.Collector) {
	for _, col := range cs {
		_ = c.Register(col)
	}
}
func (capturing) Unregister(prometheus.Collector) bool { return false }

func TestTheREADMENamesWhatIsThere(t *testing.T) {
	text := readme(t)

	var metrics []string
	if err := registerMetrics(capturing{&metrics}); err != nil {
		t.Fatal(err)
	}
	same(t, "metrics", quoted(between(t, text, "## Metrics", "## "), 1), metrics)

	same(t, "GET /kv_aware/upstreams", quoted(between(t, text, "Fields of <code>GET /kv_aware/upstreams</code>", "</details>"), 1), keys(reflect.TypeFor[upstreamState]()))

	told := between(t, text, "Fields of <code>GET /kv_aware/upstreams</code>", "</details>")
	for _, name := range keys(reflect.TypeFor[engineState]()) {
		if !strings.Contains(told, "`"+name+"`") {
			t.Errorf("GET /kv_aware/upstreams: %s of engine is not in the README", name)
		}
	}
	same(t, "GET /kv_aware/events", quoted(between(t, text, "Fields of <code>GET /kv_aware/events</code>", "</details>"), 1), keys(reflect.TypeFor[eventsState]()))

	explained := between(t, text, "Fields of <code>POST /kv_aware/explain</code>", "</details>")
	real := append(keys(reflect.TypeFor[explanation]()), keys(reflect.TypeFor[explainedUpstream]())...)
	for _, name := range real {
		if !strings.Contains(explained, "`"+name+"`") && !strings.Contains(explained, "`"+name+"[]`") {
			t.Errorf("POST /kv_aware/explain: %s is not in the README", name)
		}
	}
	tokenized := between(t, text, "Fields of <code>POST /kv_aware/tokenize</code>", "</details>")
	for _, name := range slices.Concat(keys(reflect.TypeFor[Tokenized]()), keys(reflect.TypeFor[TokenizedPrompt]()), keys(reflect.TypeFor[TokenizedMessage]())) {
		if !strings.Contains(tokenized, "`"+name+"`") && !strings.Contains(tokenized, "`"+name+"[]`") {
			t.Errorf("POST /kv_aware/tokenize: %s is not in the README", name)
		}
	}
	snapshot := between(t, text, "Fields of <code>GET /kv_aware/snapshot</code>", "</details>")
	for _, of := range []reflect.Type{
		reflect.TypeFor[Snapshot](), reflect.TypeFor[PoolSnapshot](), reflect.TypeFor[UpstreamSnapshot](), reflect.TypeFor[Figures](), reflect.TypeFor[Percentiles](),
		reflect.TypeFor[Decision](), reflect.TypeFor[DecisionCandidate](), reflect.TypeFor[History](), reflect.TypeFor[LoadHistory](),
	} {
		for _, name := range keys(of) {
			if !strings.Contains(snapshot, "`"+name+"`") && !strings.Contains(snapshot, "`"+name+"[]`") {
				t.Errorf("GET /kv_aware/snapshot: %s is not in the README", name)
			}
		}
	}
	recording := between(t, text, "### Recording", "## ")
	for _, name := range slices.Concat(keys(reflect.TypeFor[Recording]()), recordResults[:]) {
		if !strings.Contains(recording, "`"+name+"`") {
			t.Errorf("GET /kv_aware/record: %s is not in the README", name)
		}
	}
	index := between(t, text, "Fields of <code>/kv_aware/index</code>", "</details>")
	for _, name := range slices.Concat(keys(reflect.TypeFor[indexState]()), keys(reflect.TypeFor[poolIndex]()), keys(reflect.TypeFor[upstreamIndex]())) {
		if !strings.Contains(index, "`"+name+"`") && !strings.Contains(index, "`"+name+"[]`") {
			t.Errorf("GET /kv_aware/index: %s is not in the README", name)
		}
	}
}

func TestTheREADMEsConfigurationsAreTaken(t *testing.T) {
	text := readme(t)
	block := between(t, text, "those that have a default show it:\n\n```caddyfile\nlb_policy ", "```")
	var p Policy
	if err := p.UnmarshalCaddyfile(caddyfile.NewTestDispenser(block)); err != nil {
		t.Errorf("the syntax block: %v", err)
	}
	for _, name := range keys(reflect.TypeFor[Policy]()) {
		if !strings.Contains(block, name) {
			t.Errorf("the syntax block lacks %s", name)
		}
	}
	// What it shows are the defaults.
	var none Policy
	none.logger = nil
	if err := none.resolveOptions(); err != nil {
		t.Fatal(err)
	}
	if err := p.resolveOptions(); err != nil {
		t.Fatal(err)
	}
	if p.params != none.params || p.objective != none.objective || p.MaxBody != none.MaxBody {
		t.Errorf("the syntax block shows %+v, the defaults are %+v", p.params, none.params)
	}

	learning := between(t, text, "### Learning from the engines", "### ")
	var engine Policy
	if err := engine.UnmarshalCaddyfile(caddyfile.NewTestDispenser("kv_aware {\n" + between(t, learning, "```caddyfile\n", "```") + "\n}")); err != nil {
		t.Errorf("the block of engine: %v", err)
	}
	if err := engine.resolveOptions(); err != nil {
		t.Error(err)
	}
	if shown, defaults := engine.scraping, (&Policy{Engine: new(Engine)}); defaults.resolveOptions() != nil || shown.described != defaults.scraping.described {
		t.Errorf("the block of engine shows %s, the defaults are %s", shown.described, defaults.scraping.described)
	}
	for name := range controls {
		if !strings.HasPrefix(name, "update_weights") && !strings.Contains(name, "lora") && !strings.Contains(learning, "`/"+name+"`") {
			t.Errorf("/%s is not in the README", name)
		}
	}

	var handler struct {
		LoadBalancing struct {
			Policy map[string]any `json:"selection_policy"`
		} `json:"load_balancing"`
	}
	if err := json.Unmarshal([]byte(between(t, text, "```json\n", "```")), &handler); err != nil {
		t.Fatalf("the JSON block: %v", err)
	}
	var shown []string
	for name := range handler.LoadBalancing.Policy {
		if name != "policy" {
			shown = append(shown, name)
		}
	}
	same(t, "the JSON block", shown, keys(reflect.TypeFor[Policy]()))
}
