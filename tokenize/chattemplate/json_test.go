// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestJSONIsReadAndSpeltAsPythonDoes(t *testing.T) {
	for raw, want := range map[string]string{
		`{"b":1,"a":2,"b":3}`:                        `{"b": 3, "a": 2}`,
		` [ 1 , -0, 1.0, 1e2, 1E+16, 1e-5, 0.0001] `: `[1, 0, 1.0, 100.0, 1e+16, 1e-05, 0.0001]`,
		`[NaN,Infinity,-Infinity,1e999]`:             `[NaN, Infinity, -Infinity, Infinity]`,
		`123456789012345678901234567890`:             `123456789012345678901234567890`,
		`-0.0`:                                       `-0.0`,
		`123456789.125`:                              `123456789.125`,
		`1e15`:                                       `1000000000000000.0`,
		`"\u00e9\ud83d\ude80\/\u0041"`:               `"é🚀/A"`,
		`"\ud800x\udc00"`:                            "\"\ufffdx\ufffd\"",
		`"\ud83d\ud83d\ude80"`:                       "\"\ufffd🚀\"",
		"\"a\xffb\"":                                 "\"a\ufffdb\"",
		`"\b\f\n\r\t\"\\\u0000\u001f\u007f\u2028<>&'"`: "\"\\b\\f\\n\\r\\t\\\"\\\\\\u0000\\u001f\u007f\u2028<>&'\"",
		`{}`:                      `{}`,
		`[]`:                      `[]`,
		`{"a":{"b":[null,true]}}`: `{"a": {"b": [null, true]}}`,
	} {
		v, err := FromJSON([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if got := string(appendJSON(nil, v, &plainJSON, 0)); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func TestWhatIsNoJSONIsATypedError(t *testing.T) {
	for _, raw := range []string{
		`{`, `[1,]`, `{"a"}`, `{"a":1,}`, `{a:1}`, `01`, `1.`, `.5`, `+1`, `1e`, `--1`, `"a`, "\"\n\"", `"\x"`, `"\u12"`, `tru`, `nul`,
		`[1] 2`, `'a'`, `{"a":1 "b":2}`, "\"a\\", strings.Repeat("9", maxDigits+1),
	} {
		if v, err := FromJSON([]byte(raw)); reasonOf(err) != ReasonJSON {
			t.Errorf("%.40q: %v, %v", raw, v, err)
		}
	}
	for _, raw := range []string{
		strings.Repeat("[", 1<<20), strings.Repeat(`{"a":`, maxDepth+2) + "1", "[" + strings.Repeat("0,", maxValues) + "0]",
	} {
		if _, err := FromJSON([]byte(raw)); reasonOf(err) != ReasonTooLarge {
			t.Errorf("%.20q: %v", raw, err)
		}
	}
}

func TestManyKeysAreReadInLinearTimeAndTheLastOfEachCounts(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range 100_000 {
		b.WriteString(`"k` + strings.Repeat("x", i%100) + `":1,`)
		b.WriteString(`"n` + string(rune('0'+i%10)) + string(rune('A'+i/4000)) + `":2,`)
	}
	b.WriteString(`"n0A":3}`)
	v, err := FromJSON([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if v.Len() != 100+250 || v.Get("n0A").text != "3" || v.keys[0] != "k" {
		t.Errorf("%d keys, n0A is %s, first is %s", v.Len(), v.Get("n0A").text, v.keys[0])
	}
}

func TestValuesAreSpeltAsPythonsReprDoes(t *testing.T) {
	for raw, want := range map[string]string{
		`"x"`:  `x`,
		`null`: `None`,
		`[true,1.0,"a'b","\"'",null,"\n\u0001\u00ad\u200b\ud83d\ude80é"]`: `[True, 1.0, "a'b", '"\'', None, '\n\x01\xad\u200b🚀é']`,
		`{"a":{"b":[]}}`:       `{'a': {'b': []}}`,
		`[NaN,-Infinity,1e-7]`: `[nan, -inf, 1e-07]`,
	} {
		v, err := FromJSON([]byte(raw))
		if got := string(appendStr(nil, v)); err != nil || got != want {
			t.Errorf("%s: %s, want %s (%v)", raw, got, want, err)
		}
	}
}

func TestJSONStyles(t *testing.T) {
	v, _ := FromJSON([]byte(`{"b":["é🚀\u007f",[]],"a":{}}`))
	for want, style := range map[string]jsonStyle{
		"{\"b\": [\"\\u00e9\\ud83d\\ude80\\u007f\", []], \"a\": {}}":     {item: ", ", key: ": ", ascii: true},
		"{\n  \"a\": {},\n  \"b\": [\n    \"é🚀\u007f\",\n    []\n  ]\n}": {item: ",", key: ": ", indent: "  ", pretty: true, sorted: true},
	} {
		if got := string(appendJSON(nil, v, &style, 0)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// What encoding/json takes is taken, up to the bounds, and means the same.
func FuzzFromJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.5,-3e4,"x\u00e9\ud800\n",null,true,{}]}`, `[[[]]]`, `"` + strings.Repeat("abcdefg\\\\", 5) + `"`, `NaN`, `{"a":1,"a":2}`, "\"a\xffbcdefgh\"",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := FromJSON(raw)
		var want any
		valid := json.Unmarshal(raw, &want) == nil
		if err != nil {
			if valid && reasonOf(err) == ReasonJSON && len(raw) < maxDigits {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		spelt := appendJSON(nil, v, &plainJSON, 0)
		if !valid {
			return
		}
		var got any
		if err := json.Unmarshal(spelt, &got); err != nil {
			t.Fatalf("%s: %v", spelt, err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
