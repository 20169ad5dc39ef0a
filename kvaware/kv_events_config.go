// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// DefaultEventsPort is where vLLM publishes unless it is told otherwise.
const DefaultEventsPort = 5557

// The bounds of the options.
const (
	maxPort         = 65535
	maxRanks        = 1024
	maxPredictedTTL = time.Hour
)

// What KVEvents.Removals may be.
const (
	removalsEach = "each"
	removalsLast = "last"
)

// KVEvents has engines' own words taken for what their KV caches hold: the events
// that vLLM and SGLang, and others after them, publish over ZeroMQ
// (`--kv-events-config`). What upstreams report counts beside what is predicted from
// the router's own decisions, whichever is more; upstreams that report nothing stay
// with the prediction.
//
// Reports are of use where prompts become the engine's own tokens: with the
// tokenizer `hf` and its chat template, or with `remote`.
type KVEvents struct {
	// Port of each upstream's own host where its engine publishes. Default: 5557.
	Port int `json:"port,omitempty"`

	// Port of each upstream's own host where its engine replays what it has
	// published (vLLM's and SGLang's `replay_endpoint`). Without one, what was
	// published before the router came or while messages were lost is never known.
	// Default: none.
	ReplayPort int `json:"replay_port,omitempty"`

	// Where upstreams publish, instead of `port`: tcp://host:port or ipc:///path.
	// `{http.reverse_proxy.upstream.host}` stands for the upstream's host, with
	// brackets where that is an IPv6 address. An endpoint for one upstream goes before
	// one for all. Upstreams at unix sockets and those whose address is only known
	// with a request need endpoints of their own.
	Endpoints []EventsEndpoint `json:"endpoints,omitempty"`

	// Where upstreams replay, likewise.
	ReplayEndpoints []EventsEndpoint `json:"replay_endpoints,omitempty"`

	// The beginning of the topics to subscribe to. Default: empty, all of them.
	Topic string `json:"topic,omitempty"`

	// What is shown to the engines' sockets, or by engines that connect, where they ask
	// for it by ZeroMQ's mechanism PLAIN: each at most 255 bytes, sent as they are.
	// Global placeholders such as {env.NAME} and {file./path} are replaced. vLLM and
	// SGLang do not ask; a proxy before them may. Default: none.
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`

	// How many data-parallel ranks each engine has. Each rank has a KV cache and a
	// queue of its own, publishes and replays at the ports plus its number, and is a
	// candidate of its own: the one chosen is told to the engine in the header
	// X-Data-Parallel-Rank. From 1 to 1024. Default: 1.
	Ranks int `json:"ranks,omitempty"`

	// Where to listen for engines that connect instead of being connected to, such
	// as `:5557`. Upstreams are then told apart by topic, and ports and endpoints are
	// for replays only. Needs `topics`.
	Listen string `json:"listen,omitempty"`

	// The upstream of each topic, to the letter, by its address; with `listen`.
	Topics map[string]string `json:"topics,omitempty"`

	// How long what is predicted of an upstream counts, from a request's first
	// token, where the upstream reports. From 1ms to 1h. Default: 5s.
	PredictedTTL caddy.Duration `json:"predicted_ttl,omitempty"`

	// What a block is worth that lies in the host's memory or on disk, as a part of
	// one in the accelerator's memory.
	TierCredit *TierCredit `json:"tier_credit,omitempty"`

	// What an engine that stored a block several times tells of its removal: `each`
	// of them, or only the `last`. Default: `each`, as vLLM and SGLang do.
	Removals string `json:"removals,omitempty"`
}

// EventsEndpoint is where one upstream, or each of them, publishes or replays.
type EventsEndpoint struct {
	URL string `json:"url,omitempty"`
	// The address of the one upstream, as the proxy lists it. Default: all.
	Upstream string `json:"upstream,omitempty"`
}

// TierCredit is what blocks outside of the accelerator's memory are worth, from 0 to
// 1: fetching them back takes time, and less of it than computing them anew.
type TierCredit struct {
	CPU  *float64 `json:"cpu,omitempty"`  // Default: 0.75.
	Disk *float64 `json:"disk,omitempty"` // Default: 0.25.
}

// eventsConfig is what the option `kv_events` comes to.
type eventsConfig struct {
	// described tells configurations apart that need other connections or another
	// index; predicted_ttl needs neither.
	described string

	port, replayPort   int // 0: none
	endpoints, replays []EventsEndpoint
	topic              string
	username, password string
	ranks              int
	listen             zmtp.Endpoint     // zero without
	topics             map[string]string // by upstream address
	ttl                time.Duration
	credit             [kvevents.Tiers]float32
	lastRemoval        bool
	clearsAll          bool
}

// sockets are the options of sockets to and from engines.
func (c *eventsConfig) sockets() zmtp.Options {
	return zmtp.Options{Username: c.username, Password: c.password}
}

// maxCredential is the most bytes that ZeroMQ's mechanism PLAIN carries.
const maxCredential = 255

// upstreamHost is the placeholder that endpoints may have.
const upstreamHost = "{http.reverse_proxy.upstream.host}"

// provision checks the option and resolves its placeholders; nil gives nil. Engine
// is the kind of engine that the tokenizer is told.
func (k *KVEvents) provision(repl *caddy.Replacer, engine string) (*eventsConfig, error) {
	if k == nil {
		return nil, nil
	}
	c := &eventsConfig{
		port:        cmp.Or(k.Port, DefaultEventsPort),
		replayPort:  k.ReplayPort,
		topic:       repl.ReplaceKnown(k.Topic, ""),
		username:    repl.ReplaceKnown(k.Username, ""),
		password:    repl.ReplaceKnown(k.Password, ""),
		ranks:       cmp.Or(k.Ranks, 1),
		ttl:         cmp.Or(time.Duration(k.PredictedTTL), prefix.DefaultPredictedTTL),
		credit:      [kvevents.Tiers]float32{1, 0.75, 0.25},
		lastRemoval: k.Removals == removalsLast,
		clearsAll:   engine == "sglang",
	}
	switch {
	case c.port < 1 || c.port > maxPort:
		return nil, fmt.Errorf("port %d: expecting 1 to %d", c.port, maxPort)
	case c.replayPort < 0 || c.replayPort > maxPort:
		return nil, fmt.Errorf("replay_port %d: expecting 1 to %d", c.replayPort, maxPort)
	case c.ranks < 1 || c.ranks > maxRanks:
		return nil, fmt.Errorf("ranks %d: expecting 1 to %d", c.ranks, maxRanks)
	case c.replayPort > 0 && max(c.port-c.replayPort, c.replayPort-c.port) < c.ranks && len(k.Endpoints)+len(k.ReplayEndpoints) == 0 && k.Listen == "":
		return nil, fmt.Errorf("port %d and replay_port %d: rank r has both plus r, so for %d ranks they must be as far apart", c.port, c.replayPort, c.ranks)
	case max(c.port, c.replayPort)+c.ranks-1 > maxPort:
		return nil, fmt.Errorf("the last of %d ranks would be at port %d: there are %d", c.ranks, max(c.port, c.replayPort)+c.ranks-1, maxPort)
	case c.ttl < time.Millisecond || c.ttl > maxPredictedTTL:
		return nil, fmt.Errorf("predicted_ttl %s: expecting 1ms to %s", c.ttl, maxPredictedTTL)
	case max(len(c.username), len(c.password)) > maxCredential:
		return nil, fmt.Errorf("plain: a user name and a password have at most %d bytes each", maxCredential)
	case k.Username != "" && c.username == "" || k.Password != "" && c.password == "":
		return nil, fmt.Errorf("plain: the user name or the password is empty once its placeholders are replaced: give the variable a value")
	case k.Removals != "" && k.Removals != removalsEach && k.Removals != removalsLast:
		return nil, fmt.Errorf("removals %q: expecting each or last", k.Removals)
	}
	if k.TierCredit != nil {
		for tier, given := range map[kvevents.Tier]*float64{kvevents.CPU: k.TierCredit.CPU, kvevents.Disk: k.TierCredit.Disk} {
			credit := valueOr(given, float64(c.credit[tier]))
			if !(credit >= 0 && credit <= 1) {
				return nil, fmt.Errorf("tier_credit: %g is not from 0 to 1", credit)
			}
			c.credit[tier] = float32(credit)
		}
	}
	var err error
	if c.endpoints, err = resolveEndpoints(repl, "endpoint", k.Endpoints); err != nil {
		return nil, err
	}
	if c.replays, err = resolveEndpoints(repl, "replay", k.ReplayEndpoints); err != nil {
		return nil, err
	}
	if err := k.provisionListen(repl, c); err != nil {
		return nil, err
	}
	c.described = c.describe()
	return c, nil
}

// provisionListen resolves what engines that connect need.
func (k *KVEvents) provisionListen(repl *caddy.Replacer, c *eventsConfig) error {
	listen := repl.ReplaceKnown(k.Listen, "")
	switch {
	case k.Listen == "" && len(k.Topics) > 0:
		return fmt.Errorf("topics need listen: an upstream's own port needs none")
	case k.Listen == "":
		return nil
	case listen == "":
		return fmt.Errorf("listen %q is empty once its placeholders are replaced", k.Listen)
	case len(k.Topics) == 0:
		return fmt.Errorf("listen %s needs the topic of each upstream, by which they are told apart", listen)
	case len(k.Endpoints) > 0 || k.Port != 0:
		return fmt.Errorf("listen %s: engines connect, so there is no port and no endpoint to connect to: give either", listen)
	case c.ranks > 1:
		return fmt.Errorf("listen %s: ranks that connect are not told apart: give the engines ports of their own", listen)
	}
	if !strings.Contains(listen, "://") {
		if strings.HasPrefix(listen, ":") {
			listen = "*" + listen
		}
		listen = "tcp://" + listen
	}
	var err error
	if c.listen, err = zmtp.ParseEndpoint(listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	c.topics = make(map[string]string, len(k.Topics))
	for _, topic := range slices.Sorted(maps.Keys(k.Topics)) {
		address, ok := plainAddress(repl.ReplaceKnown(k.Topics[topic], ""))
		if !ok {
			return fmt.Errorf("topic %q: %q is no address of an upstream", topic, k.Topics[topic])
		}
		if other, twice := c.topics[address]; twice {
			return fmt.Errorf("topics %q and %q are both of upstream %s: an upstream has one", other, topic, address)
		}
		c.topics[address] = topic
	}
	return nil
}

// plainAddress gives a dial string as the pool calls the upstream behind it.
func plainAddress(dial string) (string, bool) {
	addr, err := caddy.ParseNetworkAddress(dial)
	if err != nil || dial == "" || addr.PortRangeSize() != 1 || strings.Contains(dial, "{") {
		return "", false
	}
	return poolAddress(addr), true
}

// resolveEndpoints replaces global placeholders, and checks that the endpoints are
// some once that of the upstream's host is replaced.
func resolveEndpoints(repl *caddy.Replacer, option string, given []EventsEndpoint) ([]EventsEndpoint, error) {
	var all []EventsEndpoint
	seen := make(map[string]bool)
	for _, e := range given {
		var r EventsEndpoint
		const stand = "\x00"
		r.URL = strings.ReplaceAll(repl.ReplaceKnown(strings.ReplaceAll(e.URL, upstreamHost, stand), ""), stand, upstreamHost)
		if rest := strings.ReplaceAll(r.URL, upstreamHost, ""); strings.Contains(rest, "{") {
			return nil, fmt.Errorf("%s %s: only global placeholders such as {env.NAME} and %s, the upstream's host, can be used", option, e.URL, upstreamHost)
		}
		at, err := zmtp.ParseEndpoint(strings.ReplaceAll(r.URL, upstreamHost, "host"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", option, err)
		}
		if at.Network == "tcp" && (strings.HasPrefix(at.Address, ":") || strings.HasSuffix(at.Address, ":0")) {
			return nil, fmt.Errorf("%s %s: that is how an engine listens; to connect to each one's own host, write tcp://{rp.upstream.host}:<port>", option, e.URL)
		}
		if e.Upstream != "" {
			address, ok := plainAddress(repl.ReplaceKnown(e.Upstream, ""))
			if !ok {
				return nil, fmt.Errorf("%s %s: %q is no address of an upstream", option, e.URL, e.Upstream)
			}
			r.Upstream = address
		}
		if seen[r.Upstream] {
			return nil, fmt.Errorf("%s is given twice for %s", option, cmp.Or(r.Upstream, "all upstreams"))
		}
		seen[r.Upstream] = true
		all = append(all, r)
	}
	return all, nil
}

// describe tells what connections and which index a configuration needs.
func (c *eventsConfig) describe() string {
	parts := []string{fmt.Sprint("port ", c.port)}
	add := func(given bool, what ...any) {
		if given {
			parts = append(parts, fmt.Sprint(what...))
		}
	}
	if c.listen != (zmtp.Endpoint{}) {
		parts[0] = fmt.Sprint("listen ", c.listen)
	}
	add(c.replayPort > 0, "replay_port ", c.replayPort)
	for _, e := range c.endpoints {
		add(true, strings.TrimSpace("endpoint "+e.URL+" "+e.Upstream))
	}
	for _, e := range c.replays {
		add(true, strings.TrimSpace("replay "+e.URL+" "+e.Upstream))
	}
	add(c.topic != "", "topic ", c.topic)
	if c.username != "" || c.password != "" {
		add(true, fmt.Sprintf("plain %s (%08x)", c.username, uint32(maphash.String(tokenizerSeed, c.password))))
	}
	add(c.ranks > 1, "ranks ", c.ranks)
	for _, upstream := range slices.Sorted(maps.Keys(c.topics)) {
		add(true, "topic ", c.topics[upstream], " of ", upstream)
	}
	add(true, "tier_credit cpu ", c.credit[kvevents.CPU], " disk ", c.credit[kvevents.Disk])
	add(c.lastRemoval, "removals last")
	add(c.clearsAll, "as sglang")
	return strings.Join(parts, ", ")
}

// endpointOf gives where a rank of the engine at an address publishes, or replays.
// It is not ok where nothing is said of it.
func (c *eventsConfig) endpointOf(address string, rank int, replay bool) (at zmtp.Endpoint, ok bool, err error) {
	given, port := c.endpoints, c.port
	if replay {
		given, port = c.replays, c.replayPort
	}
	host, isUnix := hostOf(address)
	url := ""
	for _, e := range given {
		if e.Upstream == address || e.Upstream == "" && url == "" {
			url = e.URL
		}
	}
	switch {
	case url == "" && (port == 0 || isUnix):
		return zmtp.Endpoint{}, false, nil
	case url == "":
		url = fmt.Sprintf("tcp://%s:%d", host, port)
	case strings.Contains(url, upstreamHost) && isUnix:
		return zmtp.Endpoint{}, false, nil
	default:
		url = strings.ReplaceAll(url, upstreamHost, host)
	}
	if at, err = zmtp.ParseEndpoint(url); err != nil {
		return zmtp.Endpoint{}, false, err
	}
	at, err = atRank(at, rank)
	return at, err == nil, err
}

// atRank gives the endpoint of a data-parallel rank: the port plus its number. At
// unix sockets, vLLM and SGLang have no convention.
func atRank(at zmtp.Endpoint, rank int) (zmtp.Endpoint, error) {
	if rank == 0 {
		return at, nil
	}
	host, text, err := net.SplitHostPort(at.Address)
	if err != nil || at.Network != "tcp" {
		return at, fmt.Errorf("endpoint %s: ranks are at ports, and this has none", at)
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil || port+rank > maxPort {
		return at, fmt.Errorf("endpoint %s: there is no port for rank %d", at, rank)
	}
	at.Address = net.JoinHostPort(host, fmt.Sprint(port+rank))
	return at, nil
}

// hostOf gives the host of an upstream's address, ready for a URL.
func hostOf(address string) (host string, isUnix bool) {
	if network, rest, found := strings.Cut(address, "/"); found {
		if caddy.IsUnixNetwork(network) {
			return "", true
		}
		address = rest
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", true
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host, false
}
