// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"strings"
	"testing"
)

func TestAnEngineSleepsUntilItIsWokenUp(t *testing.T) {
	s := serve(t, &Handler{Speed: 1000})
	long := `{"prompt":"` + strings.Repeat("abcd", 70) + `","max_tokens":2}`
	cached := func() bool {
		_, body, _ := s.post(completionsPath, long)
		return strings.Contains(string(body), `"cached_tokens":64`)
	}
	state := func(want string) {
		t.Helper()
		_, metrics, _ := s.get("/metrics")
		for _, name := range []string{"awake", "weights_offloaded", "discard_all"} {
			is := " 0"
			if name == want {
				is = " 1"
			}
			if !strings.Contains(metrics, `sleep_state="`+name+`"}`+is) {
				t.Errorf("while %s the metric of %s is not%s", want, name, is)
			}
		}
		_, body, _ := s.get("/is_sleeping")
		if asleep := strings.Contains(body, "true"); asleep != (want != "awake") {
			t.Errorf("while %s: %s", want, body)
		}
	}
	state("awake")
	s.complete(completionsPath, long)
	for _, tt := range []struct {
		query, state string
		forgets      bool
	}{{"?level=0", "asleep", false}, {"", "weights_offloaded", true}, {"?level=2", "discard_all", true}} {
		if !cached() {
			t.Fatalf("before sleep%s nothing is cached", tt.query)
		}
		if status, body, _ := s.post("/sleep"+tt.query, ""); status != 200 || !strings.Contains(string(body), "sleeping") {
			t.Errorf("sleep%s: %d %s", tt.query, status, body)
		}
		state(tt.state)
		if status, _, _ := s.post(completionsPath, long); status != 503 {
			t.Errorf("a request got %d while it sleeps", status)
		}
		if _, body, _ := s.post("/wake_up?tags=weights", ""); !strings.Contains(string(body), "sleeping") {
			t.Errorf("weights alone: %s", body)
		}
		if _, body, _ := s.post("/wake_up", ""); !strings.Contains(string(body), "awake") {
			t.Errorf("wake_up: %s", body)
		}
		state("awake")
		if cached() == tt.forgets {
			t.Errorf("after sleep%s the cache is kept: %v", tt.query, tt.forgets)
		}
	}
	for _, query := range []string{"?level=3", "?level=-1", "?level=deep"} {
		if status, _, _ := s.post("/sleep"+query, ""); status != 400 {
			t.Errorf("sleep%s: %d", query, status)
		}
	}
	state("awake")
}

func TestAdaptersAreListedBesideTheModel(t *testing.T) {
	s := serve(t, &Handler{Model: "base", Adapters: []string{"sql", "poet"}})
	_, body, _ := s.get("/v1/models")
	for _, want := range []string{`"id":"base"`, `"parent":null`, `"id":"sql"`, `"id":"poet"`, `"parent":"base","max_model_len":null`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}
