// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func loaded(t *testing.T, config, file string, options Options) *Template {
	t.Helper()
	tmpl, err := Load([]byte(config), file, options)
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

var oneMessage = Input{Messages: []byte(`[{"role":"user","content":"hi"}]`), AddGenerationPrompt: true}

func rendered(t *testing.T, tmpl *Template, in Input) string {
	t.Helper()
	out, err := tmpl.Render(context.Background(), []byte("> "), in)
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(string(out.Text), "> ")
}

func TestTheTemplateComesFromTheFileOrTheConfiguration(t *testing.T) {
	named := `{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"},{"name":"rag","template":"rag"}]}`
	withTools := oneMessage
	withTools.Tools = []byte(`[{"function":{"name":"f"}}]`)
	for _, c := range []struct {
		config, file string
		in           Input
		want         string
	}{
		{`{"chat_template":"from config"}`, "", oneMessage, "from config"},
		{"\ufeff" + `{"chat_template":"from config"}`, "from file\n", oneMessage, "from file"},
		{"", "from file", oneMessage, "from file"},
		{named, "", oneMessage, "plain"},
		{named, "", withTools, "tools"},
		{`{"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"extra_special_tokens":{"image_token":"<i>"}}`,
			"{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ image_token }}", oneMessage, "<s></s><i>"},
	} {
		if got := rendered(t, loaded(t, c.config, c.file, Options{}), c.in); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestABadTemplateOrConfigurationIsRefusedWithTheReason(t *testing.T) {
	for _, c := range []struct {
		config, file string
		reason       Reason
		detail       string
	}{
		{`{`, "x", ReasonJSON, ""},
		{`{}`, "", ReasonShape, "no chat template"},
		{"", "a\n{% include 'x' %}", ReasonUnsupported, "include"},
		{"", "a\n{{ x | nosuch }}", ReasonUnsupported, "filter nosuch"},
		{"", "a\n{{ x is nosuch }}", ReasonUnsupported, "test nosuch"},
		{"", "a\n\n{{ x ", ReasonUnsupported, "line 3"},
		{"", "{% for x in y recursive %}{% endfor %}", ReasonUnsupported, "recursive"},
		{"", "{% for x in y %}", ReasonUnsupported, "unclosed"},
		{"", "{{ " + strings.Repeat("(", 1000), ReasonUnsupported, "too deep"},
		{"", "{% endfor %}", ReasonUnsupported, "unbalanced"},
		{"", "{{ kv_print }}", ReasonUnsupported, "kv_print"},
		{"", strings.Repeat("x", maxSource+1), ReasonTooLarge, ""},
	} {
		_, err := Load([]byte(c.config), c.file, Options{})
		if reasonOf(err) != c.reason || !strings.Contains(err.Error(), c.detail) {
			t.Errorf("%.40q: %v", c.file, err)
		}
	}
}

func TestARefusingTemplateGivesATypedErrorWithoutTheChatsText(t *testing.T) {
	for text, want := range map[string]Reason{
		"{{ raise_exception('no ' + messages[0].content) }}": ReasonRefused,
		"{{ messages[0].content.nosuch() }}":                 ReasonTemplate,
		"{{ messages[0].content | items }}":                  ReasonTemplate,
		"{{ messages[0].content.upper(1).pop() }}":           ReasonTemplate,
		"{{ messages.append(1) }}":                           ReasonTemplate,
	} {
		in := Input{Messages: []byte(`[{"role":"user","content":"secret"}]`)}
		_, err := loaded(t, "", text, Options{}).Render(context.Background(), nil, in)
		if reasonOf(err) != want || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestOutputWorkDepthInputAndTimeAreBounded(t *testing.T) {
	var many strings.Builder
	many.WriteString(`[{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}`)
	for range 3000 {
		many.WriteString(`,{"role":"user","content":"y"}`)
	}
	many.WriteByte(']')
	in := Input{Messages: []byte(many.String())}
	nested := "{% for a in messages %}{% for b in messages %}%s{% endfor %}{% endfor %}"
	for name, c := range map[string]struct {
		text    string
		options Options
		want    Reason
	}{
		"output":           {strings.Replace(nested, "%s", "{{ messages[0].content }}", 1), Options{MaxOutput: 1 << 16, MaxTime: time.Minute}, ReasonTooLarge},
		"output, built in": {textOf("qwen3"), Options{MaxOutput: 1 << 10}, ReasonTooLarge},
		"work":             {strings.Replace(nested, "%s", "", 1), Options{MaxTime: time.Minute}, ReasonTooLarge},
		"time":             {strings.Replace(nested, "%s", "", 1), Options{MaxTime: time.Nanosecond}, ReasonDeadline},
		"recursion":        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Options{MaxTime: time.Minute}, ReasonTooLarge},
		"range":            {"{{ range(1000000000) }}", Options{}, ReasonTooLarge},
		"input":            {"x", Options{MaxInput: 100}, ReasonTooLarge},
		"nesting":          {"{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", Options{MaxTime: time.Minute}, ReasonTooLarge},
	} {
		_, err := loaded(t, "", c.text, c.options).Render(context.Background(), nil, in)
		if reasonOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	deep := strings.Repeat(`{"x":`, 100) + "[" + strings.Repeat("1,", 100_000) + "1]" + strings.Repeat("}", 100)
	for name, text := range map[string]string{
		"indented JSON": "{{ documents | tojson(indent=60) }}",
		"parts":         "{{ documents[0].x.split('a') | length }}",
		"characters":    "{% for c in documents[0].x %}{% endfor %}",
	} {
		in := Input{Messages: []byte("[]"), Documents: []byte("[" + deep + "]")}
		if name != "indented JSON" {
			in.Documents = []byte(`[{"x":"` + strings.Repeat("a", maxParts+2) + `"}]`)
		}
		_, err := loaded(t, "", text, Options{MaxOutput: 1 << 20, MaxTime: time.Minute}).Render(context.Background(), nil, in)
		if reasonOf(err) != ReasonTooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := loaded(t, "", strings.Replace(nested, "%s", "", 1), Options{MaxTime: time.Minute}).Render(ctx, nil, in); reasonOf(err) != ReasonDeadline {
		t.Errorf("cancelled: %v", err)
	}
}

// Each of them would be gigabytes at least.
func TestWhatATemplateMakesOfATextIsBounded(t *testing.T) {
	in := Input{Messages: []byte(`[{"role":"user","content":"` + strings.Repeat("a", 100_000) + `"}]`)}
	grow := "{% set ns = namespace(x=messages[0].content, l=[1]) %}{% for i in range(60) %}%s{% endfor %}"
	const content = "messages[0].content"
	for text, want := range map[string]Reason{
		"{{ 'x' * 9000000000 }}":                                                       ReasonUnsupported,
		"{{ 9000000000 * 'x' }}":                                                       ReasonUnsupported,
		"{% set x = " + content + " * 9000000000 %}":                                   ReasonUnsupported,
		"{{ '%9000000000s' % 'x' }}":                                                   ReasonUnsupported,
		strings.Replace(grow, "%s", "{% set ns.x = ns.x ~ ns.x %}", 1):                 ReasonTooLarge,
		strings.Replace(grow, "%s", "{% set ns.x = ns.x + ns.x %}", 1):                 ReasonTooLarge,
		strings.Replace(grow, "%s", "{% set ns.l = ns.l + ns.l %}", 1):                 ReasonTooLarge,
		strings.Replace(grow, "%s", "{% set ns.l = [ns.l, ns.l] %}", 1) + "{{ ns.l }}": ReasonTooLarge,
		"{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m('x') }}":                     ReasonTooLarge,
		"{{ " + content + ".replace('a', " + content + ") }}":                          ReasonTooLarge,
		"{{ " + content + " | replace('a', " + content + ") }}":                        ReasonTooLarge,
		"{{ " + content + " | list | join(" + content + ") }}":                         ReasonTooLarge,
		"{{ " + content + ".replace('a', '\n') | indent(" + content + ") }}":           ReasonTooLarge,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := loaded(t, "", text, Options{MaxOutput: 1 << 22, MaxTime: time.Minute}).Render(context.Background(), nil, in)
		runtime.ReadMemStats(&after)
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; reasonOf(err) != want || made > 300 {
			t.Errorf("%s: %v, want %s; %d MiB", text, err, want, made)
		}
	}
	for text, want := range map[string]string{
		"{{ 2 * 3 + 7 % 4 }}{{ messages | length * 2 - 1 }}{{ (" + content + " | length) % 7 }}{{ 2 * [1, 4][1] * 3 }}": "9" + "1" + "5" + "24",
		"{{ 'a' + 'b' + 'c' | upper }}{{ ([1] + [2]) | length }}{{ 'a' + ('b' if 1 + 1 == 2 else 'c') ~ 1 * 2 }}":       "abC" + "2" + "ab2",
	} {
		if got := rendered(t, loaded(t, "", text, Options{}), in); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestWhatALoopPassSetsIsForgottenAtTheNext(t *testing.T) {
	text := "{% set a = 'o' %}{% for m in [1, 2, 3] %}{{ m }}{{ a }}{{ b is defined }}-{% if m == 1 %}{% set a = 'i' %}{% set b = 1 %}{% endif %}{{ a }} {% endfor %}{{ a }}"
	if got, want := rendered(t, loaded(t, "", text, Options{}), oneMessage), "1oFalse-i 2oFalse-o 3oFalse-o o"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestArgumentsOfTheRequestGoBeforeThoseOfTheEngine(t *testing.T) {
	text := "{{ a }}{{ b }}{{ add_generation_prompt }}"
	tmpl := loaded(t, "", text, Options{Arguments: []byte(`{"a":1,"b":2}`)})
	in := oneMessage
	in.Arguments = []byte(`{"b":3,"add_generation_prompt":false}`)
	if got := rendered(t, tmpl, in); got != "13False" {
		t.Errorf("%q", got)
	}
	for _, arguments := range []string{`{"messages":[]}`, `{"chat_template":"x"}`, `[]`, `{"kv_t":1}`} {
		in.Arguments = []byte(arguments)
		if _, err := tmpl.Render(context.Background(), nil, in); err == nil {
			t.Errorf("%s is taken", arguments)
		}
	}
}

func TestAFinalMessageToBeContinuedIsLeftOpen(t *testing.T) {
	for _, c := range []struct{ text, messages, want string }{
		{"{% for m in messages %}<{{ m.content }}>{% endfor %}", `[{"role":"assistant","content":"a "}]`, "<a "},
		{"{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", `[{"role":"assistant","content":"a "}]`, "<a"},
		{seenParts, `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":"u"}]}]`, `[{"role": "user", "content": [{"type": "text", "text": "a`},
		{"x", `[{"role":"user","content":"a"}]`, "chat template: refused by the template: the template drops the final message"},
		{"x", `[]`, "chat template: refused by the template: no text to continue"},
	} {
		in := Input{Messages: []byte(c.messages), ContinueFinalMessage: true}
		if got := rendered(t, loaded(t, "", c.text, Options{}), in); got != c.want {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
	both := oneMessage
	both.ContinueFinalMessage = true
	if got := rendered(t, loaded(t, "", "x", Options{}), both); !strings.Contains(got, string(ReasonRefused)) {
		t.Errorf("both are taken: %q", got)
	}
}

func TestDatesAreThoseOfStrftime(t *testing.T) {
	c := clock{now: func() time.Time { return time.Date(2025, 8, 5, 13, 7, 9, 0, time.UTC) }}
	for format, want := range map[string]string{
		"%d %b %Y": "05 Aug 2025", "%Y-%m-%d": "2025-08-05", "%B %-d, %y": "August 5, 25", "%A %a %I:%M:%S %p": "Tuesday Tue 01:07:09 PM",
		"%H%%%j%e": "13%217 5", "100%": "100%", "%Q": "%Q", "é": "é", "": "",
	} {
		if got := c.strftime(format); got != want {
			t.Errorf("%s: %q, want %q", format, got, want)
		}
	}
}

func TestATemplateIsSafeForConcurrentUse(t *testing.T) {
	for _, name := range []string{"qwen3", "GLM-4.6"} {
		tmpl := loaded(t, "", textOf(name), Options{MaxTime: time.Minute})
		want := make([]string, 8)
		inputs := make([]Input, len(want))
		for i := range want {
			inputs[i] = Input{Messages: []byte(fmt.Sprintf(`[{"role":"user","content":"%d"}]`, i)), AddGenerationPrompt: true}
			want[i] = rendered(t, tmpl, inputs[i])
		}
		var wg sync.WaitGroup
		for i := range want {
			wg.Go(func() {
				for range 20 {
					out, err := tmpl.Render(context.Background(), nil, inputs[i])
					if err != nil || string(out.Text) != want[i] {
						t.Errorf("%s: %q, %v", name, out.Text, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// Warm memory serves any further chat, and values of one do not show in another.
func TestRenderingAgainAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("pools drop what they hold at random")
	}
	g, chats := goldens(t)
	tmpl := loaded(t, string(g.Templates["qwen3"].Tokens), textOf("qwen3"), Options{Form: VLLM})
	var memory Output
	for _, name := range []string{"turns", "system_turns", "tools", "calls", "parts", "reasoning"} {
		for i := range chats {
			if chats[i].Name != name {
				continue
			}
			in := chats[i].input()
			allocations := testing.AllocsPerRun(100, func() {
				in.Starts = memory.Starts
				out, err := tmpl.Render(context.Background(), memory.Text[:0], in)
				if err != nil || !out.Builtin {
					t.Fatal(err)
				}
				memory = out
			})
			if allocations > 0 {
				t.Errorf("%s: %v allocations", name, allocations)
			}
		}
	}
}
