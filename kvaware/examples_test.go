// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func example(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// exposition is what the metrics endpoint of a running Caddy can show: by metric
// without its prefix, its labels, and the values that these had in a scrape.
type exposition map[string]map[string][]string

const metricPrefix = "caddy_kv_aware_"

// describing is a registry that takes names and labels of what is registered with it.
type describing struct{ exposition }

func (d describing) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	for desc := range ch {
		m := regexp.MustCompile(`fqName: "` + metricPrefix + `([a-z_]+)".*variableLabels: \{([a-z_,]*)\}`).FindStringSubmatch(desc.String())
		labels := map[string][]string{}
		for name := range strings.SplitSeq(m[2], ",") {
			labels[name] = nil
		}
		names := []string{m[1]}
		if strings.HasSuffix(m[1], "_seconds") { // a histogram, it may be
			names = append(names, m[1]+"_count", m[1]+"_sum", m[1]+"_bucket")
		}
		for _, name := range names {
			d.exposition[name] = labels
		}
	}
	return nil
}

func (d describing) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = d.Register(c)
	}
}
func (describing) Unregister(prometheus.Collector) bool { return false }

// exposed runs a Caddy with a few requests, and asks it.
func exposed(t *testing.T) exposition {
	t.Helper()
	all := exposition{}
	if err := registerMetrics(describing{all}); err != nil {
		t.Fatal(err)
	}
	engine := proxytest.NewEngine(t, nil)
	// Nobody publishes there; what is counted of it has its series all the same.
	c := proxytest.Start(t, "metrics", site(engine.Addr(), "kv_events {\n\t\t\t\tport 1\n\t\t\t}", ""))
	for range 2 {
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("example", 60), true)))
	}
	_, _, text := c.Admin("GET", "/metrics", "")
	for _, m := range regexp.MustCompile(`(?m)^# TYPE `+metricPrefix+`([a-z_]+) ([a-z]+)$`).FindAllStringSubmatch(text, -1) {
		if m[2] == "histogram" {
			delete(all, m[1])
			continue
		}
		for _, suffix := range []string{"_count", "_sum", "_bucket"} {
			delete(all, m[1]+suffix)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^`+metricPrefix+`([a-z_]+)\{([^}]*)\}`).FindAllStringSubmatch(text, -1) {
		labels := all[m[1]]
		for _, l := range regexp.MustCompile(`([a-z_]+)="([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
			if _, is := labels[l[1]]; !is && l[1] != "le" {
				t.Fatalf("%s has an undescribed label %s", m[1], l[1])
			}
			if l[1] != "le" && !slices.Contains(labels[l[1]], l[2]) {
				labels[l[1]] = append(labels[l[1]], l[2])
			}
		}
	}
	return all
}

var (
	promMetric   = regexp.MustCompile(`\b(caddy_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	promMatcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	promGrouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) \(([^)]*)\)`)
	promLabel    = regexp.MustCompile(`[a-z_]+`)
)

// fromTheScrape are labels that Prometheus adds, or that histograms have.
var fromTheScrape = []string{"job", "instance", "le"}

// check reports what an expression names that is not there. What it gives are the
// labels of its metrics, which its result can have.
func (e exposition) check(t *testing.T, where, expr string) (labels []string) {
	t.Helper()
	labels = slices.Clone(fromTheScrape)
	metrics := promMetric.FindAllStringSubmatch(expr, -1)
	if len(metrics) == 0 {
		t.Errorf("%s: no metric of ours in %s", where, expr)
	}
	for _, m := range metrics {
		name, ours := strings.CutPrefix(m[1], metricPrefix)
		known, is := e[name]
		if !ours || !is {
			t.Errorf("%s: there is no metric %s", where, m[1])
			continue
		}
		for name := range known {
			labels = append(labels, name)
		}
		for _, l := range promMatcher.FindAllStringSubmatch(m[2], -1) {
			values, is := known[l[1]]
			if !is {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
			if strings.HasPrefix(l[2], "$") {
				continue // a variable of the dashboard
			}
			for value := range strings.SplitSeq(l[2], "|") {
				if !slices.Contains(values, value) {
					t.Errorf("%s: the %s of %s is never %q, but %q", where, l[1], m[1], value, values)
				}
			}
		}
	}
	for _, g := range promGrouping.FindAllStringSubmatch(expr, -1) {
		for _, name := range promLabel.FindAllString(g[1], -1) {
			if !slices.Contains(labels, name) {
				t.Errorf("%s: none of its metrics has the label %s", where, name)
			}
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			t.Errorf("%s: unbalanced %s in %s", where, pair, expr)
		}
	}
	return labels
}

func TestDashboardAndAlertsQueryOnlyWhatIsExposed(t *testing.T) {
	all := exposed(t)

	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
			GridPos struct{ X, Y, W, H int }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal([]byte(example(t, "grafana/kv_aware.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, queried := map[int]bool{}, map[string]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, at %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %q: %d queries", p.Title, len(p.Targets))
		}
		for _, query := range p.Targets {
			labels := all.check(t, p.Title, query.Expr)
			for _, l := range regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`).FindAllStringSubmatch(query.LegendFormat, -1) {
				if !slices.Contains(labels, l[1]) {
					t.Errorf("panel %q: no label %s for the legend", p.Title, l[1])
				}
			}
			for _, m := range promMetric.FindAllStringSubmatch(query.Expr, -1) {
				queried[strings.TrimPrefix(m[1], metricPrefix)] = true
			}
		}
	}
	variables := 0
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			variables++
			labels := all.check(t, v.Name, v.Definition)
			if _, label, _ := strings.Cut(v.Definition, ", "); !slices.Contains(labels, strings.TrimSuffix(label[strings.LastIndex(label, " ")+1:], ")")) {
				t.Errorf("variable %s: %s", v.Name, v.Definition)
			}
		}
	}
	if variables != 2 || len(queried) < 15 {
		t.Errorf("%d variables, %d metrics", variables, len(queried))
	}

	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				For                 string
				Labels, Annotations map[string]string
			}
		}
	}
	strictly(t, example(t, "prometheus/alerts.yaml"), &rules)
	names := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if names[r.Alert] || !strings.HasPrefix(r.Alert, "KvAware") || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s: %+v", r.Alert, r)
			}
			names[r.Alert] = true
			labels := all.check(t, r.Alert, r.Expr)
			for _, text := range r.Annotations {
				for _, l := range regexp.MustCompile(`\$labels\.([a-z_]+)`).FindAllStringSubmatch(text, -1) {
					if !slices.Contains(labels, l[1]) {
						t.Errorf("alert %s: no label %s", r.Alert, l[1])
					}
				}
			}
		}
	}
	if len(names) < 5 {
		t.Errorf("%d alerts", len(names))
	}
}

// strictly reads YAML in which nothing is unknown.
func strictly(t testing.TB, text string, into any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatal(err)
	}
}

func TestTheExamplesREADMEListsThemAll(t *testing.T) {
	text := example(t, "README.md")
	linked := map[string]bool{}
	for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
		linked[strings.TrimSuffix(m[1], "/")] = true
		if _, err := os.Stat(filepath.Join("../examples", m[1])); err != nil && !strings.Contains(m[1], ":") {
			t.Errorf("the README links %s", m[1])
		}
	}
	entries, err := os.ReadDir("../examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != "README.md" && name != "caddy" && !linked[name] {
			t.Errorf("%s is not in the README", name)
		}
	}
}
