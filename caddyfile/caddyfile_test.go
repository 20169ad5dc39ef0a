// SPDX-License-Identifier: Apache-2.0

package caddyfile

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// settings has one field for each kind of reader.
type settings struct {
	Name     string
	Labels   []string
	Loud     bool
	Blocks   int
	Tokens   int64
	Body     int64
	Idle     caddy.Duration
	Prefill  *float64
	Decode   *float64
	Fallback json.RawMessage
}

func (s *settings) options() []Option {
	return []Option{
		{Name: "name", Read: String(&s.Name)},
		{Name: "labels", Read: Strings(&s.Labels)},
		{Name: "loud", Read: Flag(&s.Loud)},
		{Name: "block_size", Read: Int(&s.Blocks, 1, 4096)},
		{Name: "cache_tokens", Read: Int(&s.Tokens, 1, 1<<40)},
		{Name: "max_body", Read: Size(&s.Body, 1, 1<<40)},
		{Name: "idle", Read: Duration(&s.Idle, time.Second)},
		{Name: "weights", Read: Sub(
			Option{Name: "prefill", Read: Float(&s.Prefill, 0, math.MaxFloat64)},
			Option{Name: "decode", Read: Float(&s.Decode, 0, 100)},
		)},
		{Name: "fallback", Read: Module[speaker](&s.Fallback, "test_speakers", "speaker")},
	}
}

func read(input string) (settings, error) {
	var s settings
	d := caddyfile.NewTestDispenser(input)
	d.Next()
	if err := Block(d, s.options()...); err != nil {
		return s, err
	}
	if d.Next() {
		return s, errors.New("not consumed: " + d.Val())
	}
	return s, nil
}

// speaker is the interface of the modules that the fallback option loads.
type speaker interface{ Speak() }

type parrot struct {
	Words []string `json:"words,omitempty"`
	Times int      `json:"times,omitempty"`
}

func (parrot) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "test_speakers.parrot", New: func() caddy.Module { return new(parrot) }}
}
func (parrot) Speak() {}
func (p *parrot) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	p.Words = d.RemainingArgs()
	return readOptions(d, "parrot", "", []Option{{Name: "times", Read: Int(&p.Times, 1, 9)}})
}

// stone is in the namespace of speakers, but is none.
type stone struct{}

func (stone) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "test_speakers.stone", New: func() caddy.Module { return new(stone) }}
}
func (*stone) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func init() {
	caddy.RegisterModule(parrot{})
	caddy.RegisterModule(stone{})
}

func ptr(f float64) *float64 { return &f }

func TestBlockReadsEveryKindOfOption(t *testing.T) {
	got, err := read(`kv_aware {
		name {env.NAME}
		labels a "b c"
		loud
		block_size 16
		cache_tokens 200000
		max_body 16MiB
		idle 1d
		weights {
			prefill 0
			decode 1.5
		}
		fallback parrot hello you {
			times 2
		}
	}`)
	if err != nil {
		t.Fatal(err)
	}
	want := settings{
		Name: "{env.NAME}", Labels: []string{"a", "b c"}, Loud: true, Blocks: 16, Tokens: 200000,
		Body: 16 << 20, Idle: caddy.Duration(24 * time.Hour), Prefill: ptr(0), Decode: ptr(1.5),
		Fallback: json.RawMessage(`{"speaker":"parrot","times":2,"words":["hello","you"]}`),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestBlockMayBeAbsentOrEmpty(t *testing.T) {
	for _, input := range []string{"kv_aware", "kv_aware {\n}", "kv_aware\nnext_directive"} {
		d := caddyfile.NewTestDispenser(input)
		d.Next()
		var s settings
		if err := Block(d, s.options()...); err != nil {
			t.Errorf("%q: %v", input, err)
		}
		if !reflect.DeepEqual(s, settings{}) {
			t.Errorf("%q: something was set: %+v", input, s)
		}
	}
}

func TestOptionsAfterASubBlockOrModuleAreStillRead(t *testing.T) {
	got, err := read("kv_aware {\n fallback parrot {\n times 3\n }\n weights {\n decode 2\n }\n block_size 8\n}")
	if err != nil {
		t.Fatal(err)
	}
	if got.Blocks != 8 || *got.Decode != 2 || string(got.Fallback) != `{"speaker":"parrot","times":3}` {
		t.Errorf("got %+v", got)
	}
}

func TestMistakesAreNamedWithFileAndLine(t *testing.T) {
	for _, tt := range []struct {
		mistake, input string
		want           string
		line           string
	}{
		{"argument before the block", "kv_aware fast {\n}", `kv_aware takes its options in a block, one a line: unexpected argument "fast"`, "1"},
		{"missing value", "kv_aware {\n name\n}", "name has no value: expecting one value", "2"},
		{"missing number", "kv_aware {\n\n block_size\n}", "block_size has no value: expecting a whole number from 1 to 4096", "3"},
		{"missing list", "kv_aware {\n labels\n}", "labels has no value: expecting one or more values", "2"},
		{"missing module", "kv_aware {\n fallback\n}", "fallback has no value: expecting the name of a module of test_speakers", "2"},
		{"missing sub-block", "kv_aware {\n weights\n}", "weights needs a block with prefill, decode, one a line", "2"},
		{"missing value in a sub-block", "kv_aware {\n weights {\n  decode\n }\n}", "weights decode has no value: expecting a number from 0 to 100", "3"},
		{"extra value", "kv_aware {\n name a b\n}", `name takes one value: unexpected argument "b"`, "2"},
		{"extra value of a flag", "kv_aware {\n loud yes\n}", `loud takes no value, it is on when it is given: unexpected argument "yes"`, "2"},
		{"sub-block on one line", "kv_aware {\n weights prefill 1\n}", `weights takes a block with prefill, decode, one a line: unexpected argument "prefill"`, "2"},
		{"block where none belongs", "kv_aware {\n name a {\n  b\n }\n}", "name takes one value, and no block", "2"},
		{"empty block where none belongs", "kv_aware {\n labels a {\n }\n}", "labels takes one or more values, and no block", "2"},
		{"block after a flag", "kv_aware {\n loud {\n }\n}", "loud takes no value, it is on when it is given, and no block", "2"},
		{"block instead of a value", "kv_aware {\n name {\n }\n}", "name has no value", "2"},
		{"twice", "kv_aware {\n name a\n loud\n name a\n}", "name is given twice, first at Testfile:2: keep one of them", "4"},
		{"twice in a sub-block", "kv_aware {\n weights {\n  decode 1\n  decode 2\n }\n}", "weights decode is given twice, first at Testfile:3", "4"},
		{"sub-block twice", "kv_aware {\n weights {\n  decode 1\n }\n weights {\n  prefill 1\n }\n}", "weights is given twice, first at Testfile:2", "5"},
		{"unknown", "kv_aware {\n colour red\n}", `kv_aware has no option "colour": its options are name, labels, loud, block_size, cache_tokens, max_body, idle, weights, fallback`, "2"},
		{"misspelt", "kv_aware {\n max_boddy 1MiB\n}", `kv_aware has no option "max_boddy" (did you mean max_body?): its options are`, "2"},
		{"dashes", "kv_aware {\n Max-Body 1MiB\n}", `(did you mean max_body?)`, "2"},
		{"unknown in a sub-block", "kv_aware {\n weights {\n  request 1\n }\n}", `weights has no option "request": its options are prefill, decode`, "3"},
		{"empty string", "kv_aware {\n name \"\"\n}", `name: bad value "": expecting one that is not empty`, "2"},
		{"not a number", "kv_aware {\n block_size many\n}", `block_size: bad value "many": expecting a whole number from 1 to 4096`, "2"},
		{"fraction", "kv_aware {\n block_size 1.5\n}", `block_size: bad value "1.5"`, "2"},
		{"below the least", "kv_aware {\n block_size 0\n}", `block_size: bad value "0"`, "2"},
		{"above the most", "kv_aware {\n block_size 4097\n}", `block_size: bad value "4097"`, "2"},
		{"beyond 64 bits", "kv_aware {\n cache_tokens 99999999999999999999\n}", `cache_tokens: bad value "99999999999999999999": expecting a whole number from 1 to 1099511627776`, "2"},
		{"negative weight", "kv_aware {\n weights {\n  prefill -1\n }\n}", `weights prefill: bad value "-1": expecting a number of at least 0`, "3"},
		{"weight that is no number", "kv_aware {\n weights {\n  prefill NaN\n }\n}", `weights prefill: bad value "NaN"`, "3"},
		{"endless weight", "kv_aware {\n weights {\n  prefill Inf\n }\n}", `weights prefill: bad value "Inf"`, "3"},
		{"bad unit", "kv_aware {\n max_body 16parsecs\n}", `max_body: bad value "16parsecs": expecting a size from 1B to 1TiB, such as 16MiB`, "2"},
		{"size of nothing", "kv_aware {\n max_body 0\n}", `max_body: bad value "0"`, "2"},
		{"size beyond 63 bits", "kv_aware {\n max_body 15EiB\n}", `max_body: bad value "15EiB"`, "2"},
		{"bad duration", "kv_aware {\n idle soon\n}", `idle: bad value "soon": expecting a duration such as 30s or 5m of at least 1s`, "2"},
		{"duration below the least", "kv_aware {\n idle 5ms\n}", `idle: bad value "5ms"`, "2"},
		{"runtime placeholder for a number", "kv_aware {\n block_size {env.BLOCK}\n}", `block_size: the placeholder "{env.BLOCK}" has no value when the Caddyfile is read: write {$VAR} for an environment variable, or a whole number from 1 to 4096`, "2"},
		{"unknown module", "kv_aware {\n fallback crow\n}", `fallback: no module "crow" in test_speakers`, "2"},
		{"module of the wrong kind", "kv_aware {\n fallback stone\n}", "fallback: module test_speakers.stone (*caddyfile.stone) cannot be used here", "2"},
		{"mistake within the module", "kv_aware {\n fallback parrot {\n  times 10\n }\n}", `fallback: times: bad value "10": expecting a whole number from 1 to 9`, "3"},
		{"block in the block", "kv_aware {\n {\n }\n}", "kv_aware: unexpected '{': the option before it takes no block", "2"},
		{"block left open", "kv_aware {\n name a\n", "the block of kv_aware is not closed: expecting '}'", "2"},
	} {
		t.Run(tt.mistake, func(t *testing.T) {
			_, err := read(tt.input)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			if place := ", at Testfile:" + tt.line; !strings.HasSuffix(err.Error(), place) {
				t.Errorf("got  %v\nwant it to end in %q", err, place)
			}
		})
	}
}

func TestErrorsStayShortWhateverTheToken(t *testing.T) {
	long := strings.Repeat("é", 100000)
	for _, input := range []string{
		"kv_aware {\n " + long + "\n}",
		"kv_aware {\n block_size " + long + "\n}",
		"kv_aware {\n name a " + long + "\n}",
		"kv_aware {\n fallback " + long + "\n}",
		"kv_aware " + long,
	} {
		_, err := read(input)
		if err == nil {
			t.Fatalf("%.40q: no error", input)
		}
		if len(err.Error()) > 500 {
			t.Errorf("%.40q: an error of %d bytes", input, len(err.Error()))
		}
	}
}

func TestNearestSuggestsOnlyWhatIsLikelyMeant(t *testing.T) {
	options := []Option{{Name: "pool"}, {Name: "max_body"}, {Name: "max_buffered"}, {Name: "weights"}}
	for given, want := range map[string]string{
		"pol": "pool", "pools": "pool", "poll": "pool", "POOL": "pool", "po": "",
		"maxbody": "max_body", "max_bodies": "", "max_bufered": "max_buffered", "weight": "weights",
		"": "", "x": "", "tokenizer": "",
	} {
		if got, _ := nearest(given, options); got != want {
			t.Errorf("%q: got %q, want %q", given, got, want)
		}
	}
}
