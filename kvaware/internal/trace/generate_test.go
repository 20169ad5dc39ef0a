// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

func made(t testing.TB, spec string, requests int) *Trace {
	t.Helper()
	tr, err := Generate(spec, requests)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestGeneratorsGiveTheSameForASeedAndAnotherForAnother(t *testing.T) {
	for _, g := range Generators {
		tr := made(t, g.Name, 100)
		a, b, c := read(t, tr, 1, 200), read(t, tr, 1, 200), read(t, tr, 2, 200)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: one seed gives two traces", g.Name)
		}
		if reflect.DeepEqual(a, c) {
			t.Errorf("%s: two seeds give one trace", g.Name)
		}
		if tr.Requests != 100 || tr.Prompt <= 0 || tr.Output <= 0 || len(a) != 200 {
			t.Errorf("%s: %+v", g.Name, tr)
		}
		if g.Summary == "" || len(g.Params) == 0 {
			t.Errorf("%s: nothing is said of it", g.Name)
		}
	}
}

func TestAgentsReuseAlmostEverything(t *testing.T) {
	tr := made(t, "agents", 4000)
	reused, turns, prompt, output := 0, 0, 0, 0
	for _, s := range read(t, tr, 1, 150) {
		seen := map[uint64]bool{}
		for i := range s.Turns {
			turn := &s.Turns[i]
			p, o := turn.Hash(64, nil, nil)
			n := 0
			for n < len(p) && seen[p[n]] {
				n++
			}
			for _, h := range append(p, o...) {
				seen[h] = true
			}
			turns++
			prompt += turn.Prompt
			output += turn.Output
			if 10*n*64 > 9*turn.Prompt {
				reused++
			}
		}
	}
	if share := float64(reused) / float64(turns); share < 0.94 || share > 0.98 {
		t.Errorf("%.3f of turns reuse over 90 %%, want about 0.96", share)
	}
	if in, out := prompt/turns, output/turns; in < 170_000 || in > 220_000 || out < 270 || out > 330 {
		t.Errorf("%d tokens in and %d out, want about 195,000 and 300", in, out)
	}
}

func TestAChatsNextTurnContainsTheAnswerAndAReasonersOnlyTheLastOfIt(t *testing.T) {
	for name, contains := range map[string]bool{"chat": true, "whole": true, "reasoning": false} {
		turns := 0
		for _, s := range read(t, made(t, name, 100), 1, 50) {
			for i := 1; i < len(s.Turns); i++ {
				before, now := &s.Turns[i-1], &s.Turns[i]
				p, o := before.Hash(16, nil, nil)
				q, _ := now.Hash(16, nil, nil)
				if before.Output < 64 {
					continue
				}
				turns++
				if len(o) == 0 {
					t.Fatalf("%s: the output has no blocks", name)
				}
				if p[len(p)-1] != q[len(p)-1] {
					t.Errorf("%s: the prompt is not found again", name)
				}
				if got := len(q) > len(p) && q[len(p)+1] == o[1]; got != contains {
					t.Errorf("%s: output found again %v, want %v", name, got, contains)
				}
				if now.Think <= 0 || now.Whole != (name == "whole") {
					t.Errorf("%s: %+v", name, now)
				}
			}
		}
		if turns < 20 {
			t.Errorf("%s: only %d turns looked at", name, turns)
		}
	}
}

func TestRolloutsComeTogetherAndWeightsChangeBetweenIterations(t *testing.T) {
	s := read(t, made(t, "rl:samples=4,prompts=3", 100), 1, 48)
	updates := 0
	for i, x := range s {
		if x.Start != s[i-i%4].Start || !reflect.DeepEqual(x.Turns[0].Text, s[i-i%4].Turns[0].Text) {
			t.Errorf("sample %d is not like the first of its prompt", i)
		}
		if x.Turns[0].MaxTokens == 0 || x.Turns[0].Output > x.Turns[0].MaxTokens {
			t.Errorf("sample %d: %+v", i, x.Turns[0])
		}
		if x.Update {
			updates++
			if i%12 != 0 {
				t.Errorf("an update at sample %d", i)
			}
		}
	}
	if updates != 3 {
		t.Errorf("%d updates before 4 iterations", updates)
	}
}

func TestSessionsComeAtRandomOneRequestASecond(t *testing.T) {
	tr := made(t, "uniform", 20_000)
	if tr.Rate < 0.97 || tr.Rate > 1.03 {
		t.Errorf("%.3f requests a second", tr.Rate)
	}
	s := read(t, tr, 7, 5000)
	sum, square := 0.0, 0.0
	for i := 1; i < len(s); i++ {
		gap := (s[i].Start - s[i-1].Start).Seconds()
		sum += gap
		square += gap * gap
	}
	n := float64(len(s) - 1)
	if spread := square/n/(sum/n)/(sum/n) - 1; spread < 0.9 || spread > 1.1 {
		t.Errorf("squared coefficient of variation %.2f, want 1, that of Poisson arrivals", spread)
	}
}

func TestAGeneratorsParametersAreChecked(t *testing.T) {
	for _, spec := range []string{"", "nothing", "chat:", "chat:turns", "chat:turns=x", "chat:turns=-1", "chat:users=3", "chat:turns=NaN", "chat:turns=1001", "rl:samples=10001", "uniform:input=16777217"} {
		if _, err := Generate(spec, 10); (err == nil) != (spec == "chat:") {
			t.Errorf("%q: %v", spec, err)
		} else if e := (*Error)(nil); err != nil && (!errors.As(err, &e) || e.Remedy == "") {
			t.Errorf("%q: %v says no remedy", spec, err)
		}
	}
	if _, err := Generate("chat", 0); err == nil {
		t.Error("no requests are accepted")
	}
	for _, spec := range []string{"chat:turns=0,prompts=0,system=0,first=0,input=0,output=0,thoughts=0,think=0", "agents:turns=0,kinds=0,tools=0", "uniform:input=0,output=0", "hot_prefix:share=1", "rl:samples=0,prompts=0,output=0,max_tokens=0", "one_hit:wonders=0", "shared_prompt:prompts=1"} {
		for _, s := range read(t, made(t, spec, 10), 1, 20) {
			for _, turn := range s.Turns {
				if turn.Prompt < 1 || turn.Output < 1 {
					t.Errorf("%s: %+v", spec, turn)
				}
			}
		}
	}
}

func TestSessionsAtHandAreATrace(t *testing.T) {
	one := &Session{Turns: []Turn{{Prompt: 10, Output: 2}}}
	two := &Session{Start: time.Second, Turns: []Turn{{Prompt: 20, Output: 4}}}
	tr, err := Of("mine", []*Session{one, two})
	if err != nil || tr.Requests != 2 || tr.Rate != 2 || tr.Prompt != 15 {
		t.Fatalf("%+v, %v", tr, err)
	}
	src, _ := tr.Open(0)
	for _, want := range []*Session{one, two, nil} {
		if s, err := src.Next(); s != want || (err == io.EOF) != (want == nil) {
			t.Errorf("%v, %v", s, err)
		}
	}
}

// A generator is asked for one session at a time, so none may be without bound.
func TestTheLargestParametersGiveSessionsOfBoundedSize(t *testing.T) {
	for _, g := range Generators {
		spec := g.Name + ":"
		for _, p := range g.Params {
			spec += fmt.Sprintf("%s=%.0f,", p.Name, p.most())
		}
		for _, s := range read(t, made(t, strings.TrimSuffix(spec, ","), 1), 1, 2) {
			if len(s.Turns) > longSession {
				t.Errorf("%s: a session of %d turns", g.Name, len(s.Turns))
			}
			for i := range s.Turns {
				if n := s.Turns[i].Prompt; n > 3*maxTokens {
					t.Fatalf("%s: a prompt of %d tokens", g.Name, n)
				}
			}
		}
	}
	for _, s := range read(t, made(t, "chat:turns=1000,system=0,first=0,input=0,output=0,thoughts=1", 1), 1, 3) {
		if len(s.Turns) > longSession {
			t.Errorf("a session of %d turns", len(s.Turns))
		}
	}
}

func TestTenantsShareNoPromptAndTheGreedyOneSendsItsShare(t *testing.T) {
	owner := make(map[uint64]int)
	greedy, n := 0, 2000
	seen := make(map[int]bool)
	for _, s := range read(t, made(t, "tenants:turns=1,tenants=4,greedy=0.7", n), 1, n) {
		seen[s.Tenant] = true
		if s.Tenant == 1 {
			greedy++
		}
		system := s.Turns[0].Text[0].Seed
		if of, ok := owner[system]; ok && of != s.Tenant {
			t.Fatalf("tenants %d and %d share a system prompt", of, s.Tenant)
		}
		owner[system] = s.Tenant
	}
	if share := float64(greedy) / float64(n); share < 0.66 || share > 0.74 || len(seen) != 4 || seen[0] {
		t.Errorf("%d tenants, the greedy one sends %.2f", len(seen), share)
	}
}

// Policies that go by sessions would else take each single request for one, which no
// client calls it.
func TestSingleRequestsHaveNoSession(t *testing.T) {
	for name, sessions := range map[string]bool{"uniform": false, "shared_prompt": false, "hot_prefix": false, "rl": false, "chat": true, "agents": true} {
		for _, s := range read(t, made(t, name, 10), 1, 20) {
			if (s.ID != 0) != sessions {
				t.Errorf("%s: session %d", name, s.ID)
			}
		}
	}
}
