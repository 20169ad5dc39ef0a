// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// guides gives the text of the README, of docs/ and of the examples' README by path.
func guides(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	all := map[string]string{}
	for _, path := range append(paths, "../README.md", "../examples/README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
	return all
}

func TestGuidesNameMetricsAndEndpointsThatAreThere(t *testing.T) {
	metrics := exposition{}
	if err := registerMetrics(describing{metrics}); err != nil {
		t.Fatal(err)
	}
	var endpoints []string
	for _, r := range new(Admin).Routes() {
		endpoints = append(endpoints, r.Pattern)
	}
	found := 0
	for path, text := range guides(t) {
		for _, m := range regexp.MustCompile(metricPrefix+`([a-z_]+)`).FindAllStringSubmatch(text, -1) {
			if _, is := metrics[m[1]]; !is {
				t.Errorf("%s: there is no metric %s", path, m[0])
			}
			found++
		}
		for _, endpoint := range regexp.MustCompile(`\b(?:GET|POST|DELETE) (/kv_aware/[a-z_]+)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(endpoints, endpoint[1]) {
				t.Errorf("%s: there is no %s", path, endpoint[0])
			}
			found++
		}
	}
	if found < 30 {
		t.Errorf("only %d names found", found)
	}
}

// caddysWords are what the guides name of Caddy's own configuration.
var caddysWords = []string{
	"reverse_proxy", "lb_policy", "lb_retries", "lb_retry_match", "lb_try_duration", "lb_try_interval", "dynamic", "resolvers",
	"health_uri", "health_interval", "health_timeout", "health_fails", "health_passes", "max_fails", "fail_duration", "unhealthy_request_count",
	"header_up", "dial_timeout", "read_timeout", "response_header_timeout", "request_body", "max_size", "grace_period", "metrics", "tls", "tracing", "log", "level",
	"random_choose", "round_robin", "random",
}

// What each setting of another router becomes is in the last column of a table, in
// words of ours and of Caddy's.
func TestMovingNamesOptionsThatAreThere(t *testing.T) {
	options := slices.Concat(keys(reflect.TypeFor[Policy]()), keys(reflect.TypeFor[Weights]()), keys(reflect.TypeFor[Tokenizer]()), keys(reflect.TypeFor[KVEvents]()), caddysWords)
	taken := regexp.MustCompile("`([^`]+)`")
	rows := 0
	for line := range strings.Lines(guides(t)["../docs/moving.md"]) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "---") {
			continue
		}
		rows++
		for _, m := range taken.FindAllStringSubmatch(cells[2], -1) {
			word, _, _ := strings.Cut(m[1], " ")
			switch {
			case strings.HasPrefix(word, metricPrefix), strings.HasPrefix(word, "OTEL_"), strings.HasPrefix(word, "kv_aware_"):
			case strings.HasPrefix(word, "max_tokens"), strings.HasPrefix(word, "nvext."): // of requests
			case !slices.Contains(options, word):
				t.Errorf("there is no option %s: %s", word, cells[2])
			}
		}
	}
	if rows < 80 {
		t.Errorf("only %d rows found", rows)
	}
}

func TestCaddyfilesOfTheGuidesAreTaken(t *testing.T) {
	found := 0
	for path, text := range guides(t) {
		for _, m := range regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "reverse_proxy") {
				continue // a part of one
			}
			found++
			for _, variable := range regexp.MustCompile(`\{\$([A-Z_]+)\}`).FindAllStringSubmatch(m[1], -1) {
				t.Setenv(variable[1], "value")
			}
			if _, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(m[1]), nil); err != nil {
				t.Errorf("%s: %v in\n%s", path, err, m[1])
			}
		}
	}
	if found < 2 {
		t.Errorf("only %d found", found)
	}
}

// A figure comes from a command that is named beside it.
func TestGuidesNameBenchmarksThatAreThere(t *testing.T) {
	command := regexp.MustCompile(`go test (\./[a-z/]+) -run '\^\$' -bench ([A-Za-z]+)`)
	found := 0
	for path, text := range guides(t) {
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			found++
			tests, err := filepath.Glob(filepath.Join("..", m[1], "*_test.go"))
			if err != nil || len(tests) == 0 {
				t.Errorf("%s: no tests in %s", path, m[1])
			}
			if !slices.ContainsFunc(tests, func(name string) bool {
				source, err := os.ReadFile(name)
				return err == nil && regexp.MustCompile(`(?m)^func Benchmark\w*`+m[2]).Match(source)
			}) {
				t.Errorf("%s: no benchmark %s in %s", path, m[2], m[1])
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d commands found", found)
	}
}

// anchor is how a heading is linked.
func anchor(heading string) string {
	heading = strings.ToLower(strings.NewReplacer("`", "", " ", "-").Replace(heading))
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(heading, "")
}

func TestLinksOfTheGuidesLeadSomewhere(t *testing.T) {
	all := guides(t)
	for path, text := range all {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, fragment, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links %s: %v", path, m[1], err)
				continue
			}
			if fragment == "" {
				continue
			}
			var anchors []string
			for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(all[target], -1) {
				anchors = append(anchors, anchor(h[1]))
			}
			if !slices.Contains(anchors, fragment) {
				t.Errorf("%s links %s: there is no such heading", path, m[1])
			}
		}
	}
}
