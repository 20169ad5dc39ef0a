// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// adapt returns the handlers of a Caddyfile in their order.
func adapt(t *testing.T, text string) ([]json.RawMessage, error) {
	t.Helper()
	adapter := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}
	config, _, err := adapter.Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return nil, err
	}
	var handlers []json.RawMessage
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			if v["handler"] == directive {
				raw, _ := json.Marshal(v)
				handlers = append(handlers, raw)
			}
			for _, key := range []string{"apps", "http", "servers", "srv0", "srv1", "routes", "handle"} {
				walk(v[key])
			}
		}
	}
	var tree any
	if err := json.Unmarshal(config, &tree); err != nil {
		t.Fatal(err)
	}
	walk(tree)
	return handlers, nil
}

func TestTheCaddyfileSetsEveryOption(t *testing.T) {
	handlers, err := adapt(t, `:9001 {
	kv_aware_engine a {
		model                  llama
		speed                  2.5
		block_size             32
		kv_tokens              64000
		max_num_seqs           8
		max_num_batched_tokens 512
		max_model_len          4096
		output                 64
		fail                   die:20
		fail_rate              0.1
		pace {
			step    6ms
			token   25us
			context 15ns
			pair    1ns
		}
	}
}`)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"block_size":32,"fail":"die:20","fail_rate":0.1,"handler":"kv_aware_engine","kv_tokens":64000,"max_model_len":4096,` +
		`"max_num_batched_tokens":512,"max_num_seqs":8,"model":"llama","name":"a","output":64,` +
		`"pace":{"context":15,"pair":1,"step":6000000,"token":25000},"speed":2.5}`
	if len(handlers) != 1 || string(handlers[0]) != want {
		t.Errorf("%s\nwant %s", handlers, want)
	}
}

func TestTheDirectiveNeedsNoOptionsAndNamesEnginesApart(t *testing.T) {
	for _, text := range []string{
		":9001 {\n\tkv_aware_engine\n}\n:9002 {\n\tkv_aware_engine {\n\t}\n}",
		":9001 {\n\troute {\n\t\tkv_aware_engine\n\t}\n}\n:9002 {\n\thandle {\n\t\tkv_aware_engine /v1/*\n\t}\n}",
	} {
		handlers, err := adapt(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if strings.Contains(text, "route") {
			continue // nested: that it adapts is enough
		}
		got := string(bytes.Join([][]byte{handlers[0], handlers[1]}, []byte(" ")))
		if !strings.Contains(got, `"engine-1"`) || !strings.Contains(got, `"engine-2"`) {
			t.Errorf("%s", got)
		}
	}
}

func TestMistakesInTheCaddyfileAreExplained(t *testing.T) {
	for name, c := range map[string]struct{ block, says string }{
		"unknown":         {"sped 2", `kv_aware_engine has no option "sped" (did you mean speed?)`},
		"missing":         {"speed", "speed has no value"},
		"extra":           {"speed 2 3", `unexpected argument "3"`},
		"twice":           {"output 2\noutput 3", "output is given twice"},
		"not a number":    {"kv_tokens many", "kv_tokens: bad value"},
		"too small":       {"speed 0", "speed: bad value"},
		"fail":            {"fail often", "expecting refuse, 500"},
		"fail tokens":     {"fail die:-1", "die:<tokens>"},
		"pace unknown":    {"pace {\nstride 1ms\n}", `pace has no option "stride"`},
		"pace twice":      {"pace {\nstep 1ms\nstep 2ms\n}", "pace step is given twice"},
		"pace no block":   {"pace 1ms", "pace takes a block"},
		"too many braces": {"} }", ""},
	} {
		_, err := adapt(t, ":9001 {\n\tkv_aware_engine a {\n"+c.block+"\n}\n}")
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		} else if c.says != "" && !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: no file and line in %v", name, err)
		}
	}
	if _, err := adapt(t, ":9001 {\n\tkv_aware_engine a b\n}"); err == nil || !strings.Contains(err.Error(), `unexpected argument "b"`) {
		t.Errorf("two names: %v", err)
	}
}
