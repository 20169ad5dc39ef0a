// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testdata = "../../testdata/templates"

// golden is what testdata/templates/make.py found.
type golden struct {
	Date      string
	Templates map[string]struct {
		SHA256  string
		Tokens  json.RawMessage
		Results map[string]string // digest, "refused" or "failed" by chat
	}
}

type goldenChat struct {
	Name    string
	Request struct {
		Messages  json.RawMessage `json:"messages"`
		Tools     json.RawMessage `json:"tools"`
		Documents json.RawMessage `json:"documents"`
		Arguments json.RawMessage `json:"chat_template_kwargs"`
		Generate  *bool           `json:"add_generation_prompt"`
		Continue  bool            `json:"continue_final_message"`
	}
}

func (c *goldenChat) input() Input {
	r := &c.Request
	in := Input{
		Messages: r.Messages, Tools: r.Tools, Documents: r.Documents, Arguments: r.Arguments,
		AddGenerationPrompt: !r.Continue, ContinueFinalMessage: r.Continue,
	}
	if r.Generate != nil {
		in.AddGenerationPrompt = *r.Generate
	}
	return in
}

func read(t testing.TB, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testdata, name))
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func goldens(t testing.TB) (g golden, chats []goldenChat) {
	t.Helper()
	read(t, "golden.json", &g)
	read(t, "chats.json", &chats)
	return g, chats
}

func goldenClock(t testing.TB, g golden) func() time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02T15:04:05", g.Date)
	if err != nil {
		t.Fatal(err)
	}
	return func() time.Time { return at }
}

// textOf returns a template's text, from what is committed or was fetched.
func textOf(name string) string {
	for _, folder := range []string{"texts", "fetched"} {
		if raw, err := os.ReadFile(filepath.Join(testdata, folder, name+".jinja")); err == nil {
			return string(raw)
		}
	}
	return ""
}

func shortDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:16]
}

func reasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

func TestTheJinjaEngineWritesWhatPythonsJinja2Writes(t *testing.T) {
	g, chats := goldens(t)
	total, unsupported, extra := 0, 0, 0
	for name, want := range g.Templates {
		text := textOf(name)
		if text == "" {
			continue
		}
		tmpl, err := Load(want.Tokens, text, Options{Form: AsGiven, Now: goldenClock(t, g), NoBuiltin: true, MaxTime: time.Minute})
		if err != nil {
			if reasonOf(err) != ReasonUnsupported {
				t.Errorf("%s: %v", name, err)
			}
			t.Logf("%s is not supported: %v", name, err)
			continue
		}
		for _, chat := range chats {
			total++
			out, err := tmpl.Render(context.Background(), nil, chat.input())
			switch result := want.Results[chat.Name]; {
			case result == "refused":
				if err == nil {
					extra++
					t.Logf("%s, %s: rendered, though Python refuses", name, chat.Name)
				}
			case result == "failed":
				if err == nil {
					extra++
				}
			case reasonOf(err) == ReasonUnsupported:
				unsupported++
				t.Logf("%s, %s: %v", name, chat.Name, err)
			case err != nil:
				t.Errorf("%s, %s: %v", name, chat.Name, err)
			case shortDigest(string(out.Text)) != result:
				t.Errorf("%s, %s: another text, which ends in %q", name, chat.Name, tail(string(out.Text)))
			}
		}
	}
	t.Logf("%d renderings, %d not supported, %d rendered though Python fails", total, unsupported, extra)
}

func tail(s string) string {
	s = strings.ToValidUTF8(s[max(0, len(s)-300):], "")
	return s
}

// A renderer is checked by the digests of what its template makes of each chat,
// so that it does not matter whether the template may be committed.
func TestBuiltinRenderersWriteWhatTheirTemplatesWrite(t *testing.T) {
	g, chats := goldens(t)
	seen := map[string]int{}
	for name, want := range g.Templates {
		b, ok := builtins[want.SHA256]
		if !ok {
			continue
		}
		// Any template will do: it is never asked.
		tmpl, err := Load(want.Tokens, "{{ raise_exception('asked') }}", Options{Form: AsGiven, Now: goldenClock(t, g)})
		if err != nil {
			t.Fatal(err)
		}
		tmpl.plain.builtin = b
		done := 0
		for _, chat := range chats {
			in := chat.input()
			if in.ContinueFinalMessage {
				continue
			}
			out, err := tmpl.Render(context.Background(), nil, in)
			if err != nil {
				continue
			}
			done++
			if got := shortDigest(string(out.Text)); got != want.Results[chat.Name] {
				t.Errorf("%s, %s: %s instead of %s, it ends in %q", name, chat.Name, got, want.Results[chat.Name], tail(string(out.Text)))
			}
			checkStarts(t, out, in)
		}
		t.Logf("%s (%s): %d of %d chats", name, b.family, done, len(chats))
		if done < 12 {
			t.Errorf("%s: only %d chats", name, done)
		}
		seen[want.SHA256]++
	}
	for digest, b := range builtins {
		if seen[digest] == 0 {
			t.Errorf("no golden renderings for %s %s", b.family, digest)
		}
	}
}

func checkStarts(t *testing.T, out Output, in Input) {
	t.Helper()
	// The developer's message may have become one with the system's.
	merged := out.Starts == nil && strings.Contains(string(in.Messages), "developer")
	if messages, err := FromJSON(in.Messages); out.Builtin && !merged && (err != nil || len(out.Starts) != messages.Len()) {
		t.Errorf("%d messages begin, of %d", len(out.Starts), messages.Len())
	}
	last := 0
	for _, at := range out.Starts {
		if at < last || at > len(out.Text) {
			t.Errorf("a message begins at %d after one at %d, of %d", at, last, len(out.Text))
		}
		last = at
	}
}
