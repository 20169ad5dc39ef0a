// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestWhereAnUpstreamPublishesIsSaidByPortOrEndpoint(t *testing.T) {
	host := upstreamHost
	for name, tt := range map[string]struct {
		events  KVEvents
		address string
		rank    int
		publish string // "" where nothing is followed
		replay  string
	}{
		"the default port of its own host":   {KVEvents{}, "10.0.0.1:8000", 0, "tcp://10.0.0.1:5557", ""},
		"ports":                              {KVEvents{Port: 7000, ReplayPort: 7100}, "gpu-1:8000", 0, "tcp://gpu-1:7000", "tcp://gpu-1:7100"},
		"an IPv6 address":                    {KVEvents{ReplayPort: 5558}, "[2001:db8::1]:8000", 0, "tcp://[2001:db8::1]:5557", "tcp://[2001:db8::1]:5558"},
		"a rank":                             {KVEvents{Ranks: 4, ReplayPort: 6000}, "10.0.0.1:8000", 3, "tcp://10.0.0.1:5560", "tcp://10.0.0.1:6003"},
		"an endpoint with the host":          {KVEvents{Endpoints: []EventsEndpoint{{URL: "tcp://" + host + ":1"}}}, "10.0.0.1:8000", 0, "tcp://10.0.0.1:1", ""},
		"an endpoint with the host, IPv6":    {KVEvents{Endpoints: []EventsEndpoint{{URL: "tcp://" + host + ":1"}}}, "[::1]:8000", 0, "tcp://[::1]:1", ""},
		"an endpoint of its own":             {KVEvents{Endpoints: []EventsEndpoint{{URL: "tcp://a:1"}, {URL: "tcp://b:2", Upstream: "10.0.0.1:8000"}}}, "10.0.0.1:8000", 0, "tcp://b:2", ""},
		"the endpoint of another":            {KVEvents{Endpoints: []EventsEndpoint{{URL: "tcp://b:2", Upstream: "10.0.0.2:8000"}}}, "10.0.0.1:8000", 0, "tcp://10.0.0.1:5557", ""},
		"a unix socket":                      {KVEvents{}, "unix//run/vllm.sock", 0, "", ""},
		"a unix socket with an endpoint":     {KVEvents{Endpoints: []EventsEndpoint{{URL: "ipc:///run/kv", Upstream: "unix//run/vllm.sock"}}}, "unix//run/vllm.sock", 0, "ipc:///run/kv", ""},
		"a unix socket and the host's place": {KVEvents{Endpoints: []EventsEndpoint{{URL: "tcp://" + host + ":1"}}}, "unix//run/vllm.sock", 0, "", ""},
		"a replay endpoint":                  {KVEvents{ReplayEndpoints: []EventsEndpoint{{URL: "tcp://" + host + ":9"}}}, "10.0.0.1:8000", 0, "tcp://10.0.0.1:5557", "tcp://10.0.0.1:9"},
	} {
		t.Run(name, func(t *testing.T) {
			conf, err := tt.events.provision(caddy.NewReplacer(), "")
			if err != nil {
				t.Fatal(err)
			}
			for replay, want := range map[bool]string{false: tt.publish, true: tt.replay} {
				at, ok, err := conf.endpointOf(tt.address, tt.rank, replay)
				if err != nil || ok != (want != "") || ok && at.String() != want {
					t.Errorf("replay %v: %s, %v, %v, want %q", replay, at, ok, err, want)
				}
			}
		})
	}
}

func TestEventOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, k := range map[string]KVEvents{
		"port 70000":           {Port: 70000},
		"replay_port -1":       {ReplayPort: -1},
		"ranks 5000":           {Ranks: 5000},
		"at port 65536":        {Port: 65535, Ranks: 2},
		"port 5557 and rep":    {ReplayPort: 5557},
		"for 4 ranks they":     {Port: 5560, ReplayPort: 5557, Ranks: 4},
		"endpoint tcp://*:1":   {Endpoints: []EventsEndpoint{{URL: "tcp://*:1"}}},
		"replay tcp://a:0":     {ReplayEndpoints: []EventsEndpoint{{URL: "tcp://a:0"}}},
		"predicted_ttl":        {PredictedTTL: caddy.Duration(2 * time.Hour)},
		`removals "some"`:      {Removals: "some"},
		"tier_credit: 2":       {TierCredit: &TierCredit{CPU: new(2.0)}},
		"no scheme":            {Endpoints: []EventsEndpoint{{URL: "host:5557"}}},
		"udp":                  {Endpoints: []EventsEndpoint{{URL: "udp://host:5557"}}},
		"only global":          {Endpoints: []EventsEndpoint{{URL: "tcp://{http.request.host}:5557"}}},
		"no address":           {Endpoints: []EventsEndpoint{{URL: "tcp://a:1", Upstream: "{http.request.host}:1"}}},
		"twice for all":        {Endpoints: []EventsEndpoint{{URL: "tcp://a:1"}, {URL: "tcp://b:1"}}},
		"twice for a:8000":     {ReplayEndpoints: []EventsEndpoint{{URL: "tcp://a:1", Upstream: "a:8000"}, {URL: "tcp://b:1", Upstream: "a:8000"}}},
		"topics need listen":   {Topics: map[string]string{"kv": "a:8000"}},
		"needs the topic":      {Listen: ":5557"},
		"engines connect":      {Listen: ":5557", Port: 1, Topics: map[string]string{"kv": "a:8000"}},
		"ranks that connect":   {Listen: ":5557", Ranks: 2, Topics: map[string]string{"kv": "a:8000"}},
		"listen: zmtp":         {Listen: "host", Topics: map[string]string{"kv": "a:8000"}},
		"no address of an":     {Listen: ":5557", Topics: map[string]string{"kv": ""}},
		"an upstream has one":  {Listen: ":5557", Topics: map[string]string{"kv": "a:8000", "other": "a:8000"}},
		"empty once its place": {Listen: "{env.KV_EVENTS_NOT_SET}", Topics: map[string]string{"kv": "a:8000"}},
	} {
		if _, err := k.provision(caddy.NewReplacer(), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
}

func TestUpstreamsOfWhichNobodyCanTellWhereTheyPublishAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ upstream, options, want string }{
		"a unix socket":          {"unix//run/vllm.sock", "kv_events", "upstream unix//run/vllm.sock: a unix socket has no host"},
		"one told by requests":   {"{http.request.header.X}:80", "kv_events", "only known with a request"},
		"engines of one host":    {"10.0.0.1:8000 10.0.0.1:8001", "kv_events", "upstreams 10.0.0.1:8000 and 10.0.0.1:8001 would both be followed at tcp://10.0.0.1:5557"},
		"one endpoint for all":   {"10.0.0.1:8000 10.0.0.2:8000", "kv_events {\nendpoint tcp://proxy:5557\n}", "both be followed at tcp://proxy:5557"},
		"ranks over each other":  {"10.0.0.1:8000 10.0.0.1:8001", "kv_events {\nendpoint tcp://10.0.0.1:5558 10.0.0.1:8001\nranks 2\n}", "both be followed at tcp://10.0.0.1:5558"},
		"replays at one place":   {"10.0.0.1:8000 10.0.0.2:8000", "kv_events {\nreplay tcp://proxy:5558\n}", "10.0.0.1:8000 and 10.0.0.2:8000 would both replay at tcp://proxy:5558"},
		"events and replays":     {"10.0.0.1:8000", "kv_events {\nreplay tcp://{rp.upstream.host}:5557\n}", "would both be at tcp://10.0.0.1:5557"},
		"another's replays":      {"10.0.0.1:8000 10.0.0.2:8000", "kv_events {\nreplay_port 5558\nendpoint tcp://10.0.0.1:5558 10.0.0.2:8000\n}", "the events of upstream 10.0.0.2:8000 and the replays of 10.0.0.1:8000"},
		"ranks over replays":     {"10.0.0.1:8000", "kv_events {\nendpoint tcp://{rp.upstream.host}:5557\nreplay_port 5558\nranks 2\n}", "would both be at tcp://10.0.0.1:5558"},
		"ranks at a unix socket": {"127.0.0.1:1", "kv_events {\nendpoint ipc:///run/kv 127.0.0.1:1\nranks 2\n}", "ranks are at ports"},
	} {
		if err := caddyErr(t, tt.upstream, tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	for name, tt := range map[string]struct{ upstream, options string }{
		"one upstream, listed twice":          {"10.0.0.1:8000 10.0.0.1:8000", "kv_events {\nreplay_port 5558\n}"},
		"ranks with their replays apart":      {"10.0.0.1:8000", "kv_events {\nport 5557\nreplay_port 5561\nranks 4\n}"},
		"a unix socket with an endpoint":      {"unix//run/vllm.sock", "kv_events {\nendpoint tcp://127.0.0.1:1 unix//run/vllm.sock\n}"},
		"one of several told by requests":     {"{http.request.header.X}:80", "kv_events {\nendpoint tcp://127.0.0.1:1 127.0.0.1:80\n}"},
		"a unix socket of engines to connect": {"unix//run/vllm.sock", "kv_events {\nlisten 127.0.0.1:5557 {\ntopic kv unix//run/vllm.sock\n}\n}"},
	} {
		if err := caddyErr(t, tt.upstream, tt.options); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// caddyErr validates a site.
func caddyErr(t *testing.T, upstream, options string) error {
	t.Helper()
	var conf caddy.Config
	if err := caddy.StrictUnmarshalJSON(proxytest.Adapt(t, site(upstream, options, "")), &conf); err != nil {
		t.Fatal(err)
	}
	return caddy.Validate(&conf)
}

func TestTierCreditsLeftOutAreTheDefaults(t *testing.T) {
	k := KVEvents{TierCredit: &TierCredit{Disk: new(0.0)}}
	conf, err := k.provision(caddy.NewReplacer(), "sglang")
	if err != nil {
		t.Fatal(err)
	}
	if conf.credit != [kvevents.Tiers]float32{1, 0.75, 0} || !conf.clearsAll || conf.lastRemoval || conf.ranks != 1 || conf.ttl != 5*time.Second {
		t.Errorf("%+v", conf)
	}
}

func TestPoliciesOfOnePoolListenToTheSame(t *testing.T) {
	a, b := KVEvents{}, KVEvents{ReplayPort: 5558}
	one, err := a.provision(caddy.NewReplacer(), "")
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.provision(caddy.NewReplacer(), "")
	if err != nil {
		t.Fatal(err)
	}
	if option, _, _ := (poolParams{events: one.described}).difference(poolParams{events: two.described}); option != "kv_events" {
		t.Errorf("the difference is %q", option)
	}
}
