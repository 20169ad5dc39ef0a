// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"context"
	"strings"
	"testing"
)

func TestEndpointsAreReadAndWritten(t *testing.T) {
	for _, c := range []struct {
		text string
		want Endpoint
		back string
	}{
		{"tcp://engine:5557", Endpoint{"tcp", "engine:5557"}, ""},
		{"tcp://10.0.0.1:5557", Endpoint{"tcp", "10.0.0.1:5557"}, ""},
		{"tcp://[::1]:5557", Endpoint{"tcp", "[::1]:5557"}, ""},
		{"tcp://[fe80::1%eth0]:5557", Endpoint{"tcp", "[fe80::1%eth0]:5557"}, ""},
		{"tcp://*:5557", Endpoint{"tcp", ":5557"}, ""},
		{"tcp://*:*", Endpoint{"tcp", ":0"}, "tcp://*:0"},
		{"tcp://h:05557", Endpoint{"tcp", "h:5557"}, "tcp://h:5557"},
		{"ipc:///run/engine/kv", Endpoint{"unix", "/run/engine/kv"}, ""},
		{"ipc://@kv", Endpoint{"unix", "@kv"}, ""},
		{"unix:///run/kv", Endpoint{"unix", "/run/kv"}, "ipc:///run/kv"},
	} {
		got, err := ParseEndpoint(c.text)
		if err != nil || got != c.want {
			t.Errorf("%s is read as %v (%v), want %v", c.text, got, err, c.want)
			continue
		}
		if c.back == "" {
			c.back = c.text
		}
		if got.String() != c.back {
			t.Errorf("%s is written %s, want %s", c.text, got, c.back)
		}
	}
}

func TestABadEndpointSaysWhatToWriteInstead(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "tcp://host:port",
		"engine:5557":                        "tcp://host:port",
		"http://engine:5557":                 "use tcp or ipc",
		"inproc://x":                         "use tcp or ipc",
		"tcp://":                             "tcp://host:port",
		"tcp://engine":                       "tcp://host:port",
		"tcp://:5557":                        "tcp://*:port",
		"tcp://::1:5557":                     "in brackets",
		"tcp://[::1]":                        "tcp://host:port",
		"tcp://engine:70000":                 "1 to 65535",
		"tcp://engine:-1":                    "1 to 65535",
		"tcp://engine:port":                  "1 to 65535",
		"tcp://a;b:5557":                     "source address",
		"tcp://a b:5557":                     "not a host",
		"ipc://":                             "ipc:///path",
		"ipc:///" + strings.Repeat("x", 107): "longer than 107",
		"ipc:///a\x00b":                      "zero byte",
	} {
		_, err := ParseEndpoint(text)
		if ReasonOf(err) != BadEndpoint || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", text, err, want)
		}
	}
}

func TestConnectingNeedsAHostAndAPort(t *testing.T) {
	for _, text := range []string{"tcp://*:5557", "tcp://engine:0", "tcp://engine:*"} {
		to, err := ParseEndpoint(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Dial(context.Background(), to, Options{Type: SUB}); ReasonOf(err) != BadEndpoint {
			t.Errorf("connecting to %s: %v", text, err)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"tcp://h:1", "tcp://[::1]:5557", "tcp://*:*", "ipc:///a", "ipc://@a", "tcp://::1:5", "x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseEndpoint(text)
		if err != nil {
			if ReasonOf(err) != BadEndpoint {
				t.Fatalf("%v is no error of an endpoint", err)
			}
			return
		}
		again, err := ParseEndpoint(e.String())
		if err != nil || again != e {
			t.Fatalf("%q is read as %v, written %s, read as %v (%v)", text, e, e, again, err)
		}
	})
}
