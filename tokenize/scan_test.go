// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func scanned(body string) Reason {
	var s scanner
	reason, _ := s.scan([]byte(body))
	return reason
}

func TestMalformedBodiesAreRefusedWithTheirReason(t *testing.T) {
	for body, want := range map[string]Reason{
		"":                   ReasonEmpty,
		" \r\n\t":            ReasonEmpty,
		"\xef\xbb\xbf":       ReasonEmpty,
		"null":               ReasonNotObject,
		`[{"messages":[]}]`:  ReasonNotObject,
		`"text"`:             ReasonNotObject,
		"12":                 ReasonNotObject,
		"hello":              ReasonNotJSON,
		"\x1f\x8b\x08":       ReasonNotJSON,
		"<html>":             ReasonNotJSON,
		"{} {}":              ReasonTrailingData,
		"{}x":                ReasonTrailingData,
		"{}\x00":             ReasonTrailingData,
		"{":                  ReasonTruncated,
		`{"a"`:               ReasonTruncated,
		`{"a":`:              ReasonTruncated,
		`{"a":"`:             ReasonTruncated,
		`{"a":"\`:            ReasonTruncated,
		`{"a":"\u12`:         ReasonTruncated,
		`{"a":tru`:           ReasonTruncated,
		`{"a":-`:             ReasonTruncated,
		`{"a":1.`:            ReasonTruncated,
		`{"a":1e+`:           ReasonTruncated,
		`{"a":[1,`:           ReasonTruncated,
		`{"a":[1`:            ReasonTruncated,
		`{"a":-Inf`:          ReasonTruncated,
		`{"a":trux}`:         ReasonNotJSON,
		`{"a":nul}`:          ReasonNotJSON,
		`{"a" 1}`:            ReasonNotJSON,
		`{"a":1,}`:           ReasonNotJSON,
		`{"a":[1,]}`:         ReasonNotJSON,
		`{"a":[,1]}`:         ReasonNotJSON,
		`{,"a":1}`:           ReasonNotJSON,
		`{"a":1 "b":2}`:      ReasonNotJSON,
		`{"a":[1 2]}`:        ReasonNotJSON,
		`{"a":[}`:            ReasonNotJSON,
		`{"a":{]}`:           ReasonNotJSON,
		`{a:1}`:              ReasonNotJSON,
		`{'a':1}`:            ReasonNotJSON,
		`{"a":01}`:           ReasonNotJSON,
		`{"a":+1}`:           ReasonNotJSON,
		`{"a":.5}`:           ReasonNotJSON,
		`{"a":1.x}`:          ReasonNotJSON,
		`{"a":0x1}`:          ReasonNotJSON,
		`{"a":-x}`:           ReasonNotJSON,
		`{"a":"\x"}`:         ReasonNotJSON,
		`{"a":"\u12g4"}`:     ReasonNotJSON,
		"{\"a\":\"\\\xee\"}": ReasonNotJSON,
		`{"a":"\8"}`:         ReasonNotJSON,
		"{\"a\":\"\n\"}":     ReasonNotJSON, // control characters in strings
		"{\"a\":\"\x00\"}":   ReasonNotJSON,
		"{\"a\":\"" + strings.Repeat("x", 99) + "\t\"}": ReasonNotJSON,
		"{\v}":                                  ReasonNotJSON,
		"{\"a\":1}\xff":                         ReasonTrailingData,
		`{"a":1} // end`:                        ReasonTrailingData,
		`{"x":` + strings.Repeat("[", maxDepth): ReasonTooDeep,
		`{"messages":` + strings.Repeat(`{"content":`, maxDepth): ReasonTooDeep,
	} {
		if got := scanned(body); got != want {
			t.Errorf("%.60q: %q, want %q", body, got, want)
		}
	}
}

func TestBodiesThatPythonTakesAreTaken(t *testing.T) {
	for _, body := range []string{
		`{}`,
		"\xef\xbb\xbf{}",
		"\r\n {\t}\n",
		`{"a":NaN,"b":Infinity,"c":-Infinity,"d":[NaN,1,-Infinity]}`,
		`{"a":-0,"b":0.5e-3,"c":1E+9,"d":123456789012345678901234567890}`,
		`{"a":"\u0000\ud800\udc00\ud800\"\\\/\b\f\n\r\t"}`,
		`{"a":{"b":{}},"c":[[],{},[[1],"x"]]}`,
		`{"a":"` + "\xff\xfe" + `"}`,
		"{\"a\":\"\x7f\"}",
		`{"x":` + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1) + `}`,
	} {
		if reason := scanned(body); reason != "" {
			t.Errorf("%.60q: %q", body, reason)
		}
	}
}

func TestMonstersAreReadOrRefusedInBoundedTime(t *testing.T) {
	const size = 4 << 20
	monsters := map[string]struct {
		body string
		want Reason
	}{
		"brackets":           {strings.Repeat("[", 1<<20), ReasonNotObject},
		"brackets inside":    {`{"messages":` + strings.Repeat("[", size), ReasonTooDeep},
		"no space":           {`{"messages":[{"role":"user","content":"` + strings.Repeat("a", 16<<20) + `"}]}`, ""},
		"escapes":            {`{"messages":[{"role":"user","content":"` + strings.Repeat(`\n`, size/2) + `"}]}`, ""},
		"white space":        {`{"messages":[{"role":"user","content":"x"}]` + strings.Repeat(" ", size) + `}`, ""},
		"many messages":      {`{"messages":[` + strings.Repeat(`{"role":"user","content":[{"type":"text","text":"a"}]},`, 100_000) + `{"role":"user","content":"b"}]}`, ""},
		"empty objects":      {`{"messages":[` + strings.Repeat(`{},`, maxNodes) + `{}]}`, ReasonTooManyValues},
		"empty objects away": {`{"metadata":[` + strings.Repeat(`{},`, size/3) + `{}],"messages":[{"role":"user","content":"x"}]}`, ""},
		"numbers":            {`{"messages":[{"role":"user","content":"x"}],"n":` + strings.Repeat("9", size) + `}`, ""},
		"keys":               {`{` + strings.Repeat(`"model":"m",`, 1<<17) + `"messages":[{"role":"user","content":"x"}]}`, ""},
		"long key":           {`{"` + strings.Repeat(`\u0061`, 1<<20) + `":1,"messages":[{"role":"user","content":"x"}]}`, ""},
	}
	for name, m := range monsters {
		start := time.Now()
		rd := NewReader()
		req, err := rd.Read(OpenAIChat, "/v1/chat/completions", []byte(m.body))
		rd.Chain(req, wordEncoder{}, 16)
		var e *Error
		switch {
		case m.want == "" && (err != nil || len(req.Prompts) != 1):
			t.Errorf("%s: %v", name, err)
		case m.want != "" && (!errors.As(err, &e) || e.Reason != m.want):
			t.Errorf("%s: error %v, want %s", name, err, m.want)
		}
		// Milliseconds are expected; a quadratic reader would take hours.
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// TestAStringEndsWhereAWalkByteByByteSaysAtAnyOffset: strings are read in blocks,
// which end anywhere within them.
func TestAStringEndsWhereAWalkByteByByteSaysAtAnyOffset(t *testing.T) {
	walk := func(b []byte, i int) (end int, flags uint8, reason Reason) {
		for ; i < len(b); i++ {
			switch c := b[i]; {
			case c == '"':
				return i, flags, ""
			case c < 0x20:
				return i, flags, ReasonNotJSON
			case c == '\\':
				flags |= escaped
				n := 2
				if i+1 < len(b) && b[i+1] == 'u' {
					n = 6
				}
				var v string
				if i+n > len(b) {
					return 0, flags, ReasonTruncated
				}
				if json.Unmarshal([]byte(`"`+string(b[i:i+n])+`"`), &v) != nil {
					return 0, flags, ReasonNotJSON
				}
				i += n - 1
			}
		}
		return i, flags, ReasonTruncated
	}
	fragments := []string{"a", "lantern and pier", "é", "日", "\xff", " ", `\n`, `\"`, `\\`, `\/`, `\u00e9`, `\ud83d\ude00`}
	rare := []string{`"`, `"`, "\n", "\x00", `\x`, `\u12`, `\`, "\x7f"}
	for c, n := chance(12), 0; n < 20000; n++ {
		var b []byte
		for range c.next(90) {
			if c.next(40) == 0 {
				b = append(b, rare[c.next(len(rare))]...)
			} else {
				b = append(b, fragments[c.next(len(fragments))]...)
			}
		}
		end, flags, reason := skipString(b, 0)
		wantEnd, wantFlags, want := walk(b, 0)
		switch {
		case reason != want && !(reason == ReasonNotJSON && want == ReasonTruncated):
			t.Fatalf("%q: %q, want %q", b, reason, want)
		case reason == "" && (end != wantEnd || flags&escaped != wantFlags&escaped || flags&nonASCII == 0 && hasHighByte(b[:end])):
			t.Fatalf("%q: end %d and flags %d, want %d and %d", b, end, flags, wantEnd, wantFlags)
		}
	}
}

func hasHighByte(b []byte) bool {
	return slices.ContainsFunc(b, func(c byte) bool { return c >= utf8.RuneSelf })
}

func TestABatchOfTooManyPromptsIsRefused(t *testing.T) {
	body := `{"prompt":[` + strings.Repeat(`"a",`, maxPrompts) + `"a"]}`
	_, err := NewReader().Read(OpenAICompletions, "/v1/completions", []byte(body))
	var e *Error
	if !errors.As(err, &e) || e.Reason != ReasonTooManyValues {
		t.Errorf("error %v", err)
	}
}

func TestIntegersAreReadAsPydanticReadsThem(t *testing.T) {
	for number, want := range map[string]int64{
		"0": 0, "-0": 0, "256": 256, "-1": -1, "256.0": 256, "2e0": 2, "2.56e2": 256,
		"123456789012345": 123456789012345, "9007199254740992": 1 << 53, "1E3": 1000,
	} {
		if got, ok := integerOf([]byte(number)); !ok || got != want {
			t.Errorf("%s = %d, %v; want %d", number, got, ok, want)
		}
	}
	for _, number := range []string{"", "256.5", "1e400", "1e-1", "99999999999999999999", "NaN", "Infinity", "-", "0x10", "12a", strings.Repeat("1", 5000)} {
		if got, ok := integerOf([]byte(number)); ok {
			t.Errorf("%.20s = %d, want unknown", number, got)
		}
	}
}

func depthOf(body []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == '[' || c == '{'):
			depth++
			deepest = max(deepest, depth)
		case !inString && (c == ']' || c == '}'):
			depth--
		}
	}
	return deepest
}

func FuzzScan(f *testing.F) {
	for _, c := range loadCases(f) {
		if len(c.body) < 8<<10 {
			f.Add(c.body)
		}
	}
	for _, seed := range []string{
		`{"model":"a","model":"b","m\u006fdel":"c"}`, `{"n":NaN,"prompt":[1,2,-3,4.0,"x",[5]]}`,
		`{"prompt":"\ud83d\ude80\ud800\udc0\u0000"}`, "{\"prompt\":\"\xe2\x82\"}", `{"tools":[{"a":[{}]}],"messages":[[[{}]]]}`,
		"\xef\xbb\xbf{}", `{"a":"` + strings.Repeat("x", 31) + `\"` + strings.Repeat("é", 20) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var s scanner
		before := bytes.Clone(body)
		reason, at := s.scan(body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if at < 0 || at > len(body) {
			t.Fatalf("offset %d of %d bytes", at, len(body))
		}
		checkNodes(t, &s)

		valid := json.Valid(body)
		isObject := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
		switch {
		case reason != "" && valid && isObject && depthOf(body) <= maxDepth:
			t.Fatalf("%q is valid, and refused: %s at %d", body, reason, at)
		case reason == "" && !valid && !bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) &&
			!bytes.Contains(body, []byte("NaN")) && !bytes.Contains(body, []byte("Infinity")):
			t.Fatalf("%q is not valid, and taken", body)
		}
	})
}

// checkNodes checks that nodes lie in the body and in each other, and that
// strings are read as encoding/json reads them.
func checkNodes(t *testing.T, s *scanner) {
	t.Helper()
	rd := Reader{scanner: *s}
	for i, n := range s.nodes {
		if n.start > n.end || int(n.end) > len(s.body) || int(n.next) <= i || int(n.next) > len(s.nodes) {
			t.Fatalf("node %d of %d: %+v in %d bytes", i, len(s.nodes), n, len(s.body))
		}
		for c := uint32(i) + 1; c < n.next; c = s.nodes[c].next {
			if m := s.nodes[c]; m.start < n.start || m.end > n.end || m.next > n.next {
				t.Fatalf("node %+v in %+v", m, n)
			}
		}
		if n.kind != stringValue {
			continue
		}
		var want string
		if err := json.Unmarshal(s.body[n.start-1:n.end+1], &want); err != nil {
			t.Fatalf("%q was taken for a string: %v", s.body[n.start-1:n.end+1], err)
		}
		if got := rd.stringOf(uint32(i)); i > 0 && string(got) != want {
			t.Fatalf("%q read as %q, want %q", s.body[n.start-1:n.end+1], got, want)
		}
		if compact := rd.compact(s.body[n.start-1 : n.end+1]); len(compact) > 0 {
			var again string
			if err := json.Unmarshal(compact, &again); err != nil || again != want {
				t.Fatalf("%q made compact is %q: %v", s.body[n.start-1:n.end+1], compact, err)
			}
		}
	}
}
