// SPDX-License-Identifier: Apache-2.0

package trace

// Kinds of text that sessions have in common.
const (
	kindSystem uint64 = iota + 1
	kindTools
	kindTask
	kindHot
)

// Generators are the workloads that can be made.
var Generators = []Generator{
	{
		Name:    "shared_prompt",
		Summary: "single requests behind a few system prompts",
		Params: []Param{
			{"prompts", 16, "system prompts, some used more than others (Zipf)"},
			{"system", 2000, "tokens of a system prompt"},
			{"input", 500, "mean tokens of the request's own"},
			{"output", 250, "mean tokens of the answer"},
		},
		make: func(g *gen) *Session {
			return single(g, g.around(g.of("output"), 0.7),
				named(kindSystem, g.zipf(g.count("prompts")), g.count("system")), g.fresh(g.around(g.of("input"), 0.8)))
		},
	},
	{
		Name:    "chat",
		Summary: "conversations of several turns behind a system prompt",
		Params:  chatParams(6, 300, 0),
		make:    chat,
	},
	{
		Name:    "reasoning",
		Summary: "conversations whose thoughts are stripped from the turns after",
		Params:  chatParams(4, 300, 2000),
		make:    chat,
	},
	{
		Name:    "whole",
		Summary: "conversations of clients that take the answer as a whole (stream: false)",
		Params:  chatParams(3, 300, 0),
		make: func(g *gen) *Session {
			s := chat(g)
			for i := range s.Turns {
				s.Turns[i].Whole = true
			}
			return s
		},
	},
	{
		Name:    "tenants",
		Summary: "conversations of several tenants, each with system prompts of its own, one of whom sends as much as many",
		Params: append(chatParams(5, 300, 0),
			Param{"tenants", 8, "tenants"},
			Param{"greedy", 0.5, "share of the conversations that are the first tenant's"}),
		make: func(g *gen) *Session {
			tenant := 1
			if n := g.count("tenants"); n > 1 && g.Float64() >= g.of("greedy") {
				tenant = 2 + g.IntN(n-1)
			}
			s := chatOf(g, uint64(tenant))
			s.Tenant = tenant
			return s
		},
	},
	{
		Name:    "rl",
		Summary: "rollouts: many samples of one prompt, outputs with a long tail, caches cleared by weight updates",
		Params: []Param{
			{"samples", 16, "samples of a prompt, asked for at once"},
			{"prompts", 32, "prompts between two weight updates"},
			{"input", 1000, "mean tokens of a prompt"},
			{"output", 1500, "mean tokens of an output"},
			{"tail", 1, "deviation of the logarithm of an output's length"},
			{"max_tokens", 16384, "the client's bound of an output"},
		},
		make: rollouts,
	},
	{
		Name:    "agents",
		Summary: "coding agents: long contexts that grow a little with each turn",
		Params: []Param{
			{"turns", 40, "mean turns of a session"},
			{"tools", 12000, "tokens of tools and system prompt, the same for all of a kind"},
			{"kinds", 4, "of agents"},
			{"input", 170000, "mean tokens of the first turn's own, read files and the like"},
			{"growth", 1200, "mean tokens that a turn adds beside the answer"},
			{"output", 300, "mean tokens of an answer"},
			{"think", 12, "mean seconds until the next turn"},
			{"rewrite", 0.015, "share of turns that rewrite the context, as a compaction does"},
		},
		make: agents,
	},
	{
		Name:    "uniform",
		Summary: "short single requests that have nothing in common",
		Params: []Param{
			{"input", 256, "greatest number of prompt tokens, uniform from half of it"},
			{"output", 128, "greatest number of output tokens, uniform from half of it"},
		},
		make: func(g *gen) *Session {
			half := func(name string) int { n := max(g.count(name), 2); return n/2 + g.IntN(n/2+1) }
			return single(g, half("output"), g.fresh(half("input")))
		},
	},
	{
		Name:    "hot_prefix",
		Summary: "adversarial: one hot prefix among cold requests as long",
		Params: []Param{
			{"share", 0.5, "share of the requests that have the hot prefix"},
			{"prefix", 8000, "tokens of the prefix"},
			{"input", 400, "mean tokens behind it"},
			{"output", 200, "mean tokens of the answer"},
		},
		make: func(g *gen) *Session {
			begin := g.fresh(g.count("prefix"))
			if g.Float64() < g.of("share") {
				begin = named(kindHot, 0, g.count("prefix"))
			}
			return single(g, g.around(g.of("output"), 0.7), begin, g.fresh(g.around(g.of("input"), 0.8)))
		},
	},
	{
		Name:    "one_hit",
		Summary: "adversarial: conversations among long prompts that never come again",
		Params: append(chatParams(5, 300, 0),
			Param{"wonders", 0.5, "share of sessions that are one long prompt"},
			Param{"long", 16000, "mean tokens of such a prompt"}),
		make: func(g *gen) *Session {
			if g.Float64() < g.of("wonders") {
				return single(g, g.around(100, 0.5), g.fresh(g.around(g.of("long"), 0.5)))
			}
			return chat(g)
		},
	},
}

// single is a request of a client that has no session to name.
func single(g *gen, output int, text ...Segment) *Session {
	g.n++
	return &Session{Turns: []Turn{{Prompt: max(tokens(text), 1), Output: output, Text: text}}}
}

func chatParams(turns, output, thoughts float64) []Param {
	return []Param{
		{"turns", turns, "mean turns of a conversation"},
		{"prompts", 8, "system prompts, some used more than others (Zipf)"},
		{"system", 1000, "tokens of a system prompt"},
		{"first", 1500, "mean tokens of the first message"},
		{"input", 200, "mean tokens of a message after it"},
		{"output", output, "mean tokens of an answer"},
		{"thoughts", thoughts, "mean tokens of thoughts before the answer, which later turns do not contain"},
		{"think", 20, "mean seconds until the next message"},
	}
}

// longSession is how many turns a session has at most.
const longSession = 4000

// turns is a number of that mean, geometric, at most ten times it.
func (g *gen) turns() int {
	mean := max(g.of("turns"), 1)
	n := 1
	for g.Float64() > 1/mean && n < min(int(10*mean), longSession) {
		n++
	}
	return n
}

func chat(g *gen) *Session { return chatOf(g, 0) }

// chatOf is a chat with the system prompts of an owner.
func chatOf(g *gen, owner uint64) *Session {
	g.n++
	s := &Session{ID: mix(uint64(g.n), 0, 8)}
	text := []Segment{
		named(kindSystem, owner<<32|g.zipf(g.count("prompts")), g.count("system")),
		g.fresh(g.around(g.of("first"), 0.8)),
	}
	prompt := tokens(text)
	for n := g.turns(); ; {
		answer := g.fresh(g.around(g.of("output"), 0.7))
		t := Turn{Prompt: prompt, Output: answer.Tokens}
		if len(s.Turns) > 0 {
			t.Think = g.wait(g.of("think"))
		}
		kept := append(text, answer)
		if mean := g.of("thoughts"); mean > 0 {
			thoughts := g.fresh(g.around(mean, 0.9))
			t.Output += thoughts.Tokens
			// What is behind the thoughts is not found without them.
			t.Text = append(text[:len(text):len(text)], thoughts)
		} else {
			t.Text = kept
		}
		s.Turns = append(s.Turns, t)
		if len(s.Turns) >= n {
			return s
		}
		next := g.fresh(g.around(g.of("input"), 0.8))
		if prompt += answer.Tokens + next.Tokens; prompt > maxTokens {
			return s
		}
		text = append(kept, next)
	}
}

func rollouts(g *gen) *Session {
	update := g.n > 0 && g.n%max(g.count("prompts"), 1) == 0
	g.n++
	prompt := g.fresh(g.around(g.of("input"), 0.6))
	bound := max(g.count("max_tokens"), 1)
	for i := range max(g.count("samples"), 1) {
		g.pending = append(g.pending, &Session{
			Update: update && i == 0,
			Turns: []Turn{{
				Prompt: prompt.Tokens, Output: min(g.around(g.of("output"), g.of("tail")), bound),
				MaxTokens: bound, Text: []Segment{prompt},
			}},
		})
	}
	first := g.pending[0]
	g.pending = g.pending[1:]
	return first
}

func agents(g *gen) *Session {
	g.n++
	s := &Session{ID: mix(uint64(g.n), 0, 8)}
	tools := named(kindTools, g.zipf(g.count("kinds")), g.count("tools"))
	text := []Segment{tools, g.fresh(g.around(g.of("input"), 0.4))}
	for n := g.turns(); ; {
		answer := g.fresh(g.around(g.of("output"), 0.9))
		t := Turn{Prompt: tokens(text), Output: answer.Tokens}
		if len(s.Turns) > 0 {
			t.Think = g.wait(g.of("think"))
		}
		text = append(text, answer)
		t.Text = text
		s.Turns = append(s.Turns, t)
		if len(s.Turns) >= n || t.Prompt > maxTokens/2 {
			return s
		}
		if g.Float64() < g.of("rewrite") { // a summary takes the place of what was there
			text = []Segment{tools, g.fresh(max(t.Prompt/4, 1))}
		}
		text = append(text, g.fresh(g.around(g.of("growth"), 0.9)))
	}
}
