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
		adapters               sql poet
		fail                   die:20
		fail_rate              0.1
		kv_events {
			endpoint        tcp://*:5557
			replay_endpoint ipc:///run/replay
			topic           kv@a
			shape           arrays
			buffer_steps    500
			hwm             1000
		}
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
	want := `{"adapters":["sql","poet"],"block_size":32,"fail":"die:20","fail_rate":0.1,"handler":"kv_aware_engine",` +
		`"kv_events":{"buffer_steps":500,"endpoint":"tcp://*:5557","hwm":1000,"replay_endpoint":"ipc:///run/replay","shape":"arrays","topic":"kv@a"},` +
		`"kv_tokens":64000,"max_model_len":4096,` +
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

func TestKVEventsNeedNoOptions(t *testing.T) {
	handlers, err := adapt(t, ":9001 {\n\tkv_aware_engine a {\n\t\tkv_events {\n\t\t}\n\t}\n}")
	if want := `{"handler":"kv_aware_engine","kv_events":{},"name":"a"}`; err != nil || len(handlers) != 1 || string(handlers[0]) != want {
		t.Errorf("%s (%v)\nwant %s", handlers, err, want)
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
		"events argument": {"kv_events 5557", "kv_events takes a block"},
		"events twice":    {"kv_events {\n}\nkv_events {\n}", "kv_events is given twice"},
		"events unknown":  {"kv_events {\nport 5557\n}", `kv_events has no option "port"`},
		"events missing":  {"kv_events {\nendpoint\n}", "kv_events endpoint has no value"},
		"events extra":    {"kv_events {\ntopic a b\n}", `unexpected argument "b"`},
		"topic twice":     {"kv_events {\ntopic a\ntopic b\n}", "kv_events topic is given twice"},
		"endpoint":        {"kv_events {\nendpoint 127.0.0.1:5557\n}", "write tcp://host:port"},
		"replay endpoint": {"kv_events {\nreplay_endpoint tcp://::1:5557\n}", "in brackets"},
		"same endpoint":   {"kv_events {\nreplay_endpoint tcp://127.0.0.1:5557\n}", "give it another port"},
		"shape":           {"kv_events {\nshape round\n}", "must be mixed, arrays or maps"},
		"buffer steps":    {"kv_events {\nbuffer_steps 0\n}", "kv_events buffer_steps: bad value"},
		"hwm":             {"kv_events {\nhwm none\n}", "kv_events hwm: bad value"},
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
