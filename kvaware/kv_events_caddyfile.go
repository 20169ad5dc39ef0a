// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
)

// readKVEvents reads `kv_events` with its block, which may be absent.
func (p *Policy) readKVEvents(d *caddyfile.Dispenser, name string) error {
	k := new(KVEvents)
	p.KVEvents = k
	var credit TierCredit
	if d.NextArg() {
		return d.Errf("%s takes its options in a block, one a line: unexpected argument %q", name, d.Val())
	}
	err := kvcaddyfile.Tail(
		kvcaddyfile.Option{Name: "port", Read: kvcaddyfile.Int(&k.Port, 1, maxPort)},
		kvcaddyfile.Option{Name: "replay_port", Read: kvcaddyfile.Int(&k.ReplayPort, 1, maxPort)},
		kvcaddyfile.Option{Name: "endpoint", Many: true, Read: readEndpoint(&k.Endpoints)},
		kvcaddyfile.Option{Name: "replay", Many: true, Read: readEndpoint(&k.ReplayEndpoints)},
		kvcaddyfile.Option{Name: "topic", Read: kvcaddyfile.String(&k.Topic)},
		kvcaddyfile.Option{Name: "plain", Read: k.readPlain},
		kvcaddyfile.Option{Name: "ranks", Read: kvcaddyfile.Int(&k.Ranks, 1, maxRanks)},
		kvcaddyfile.Option{Name: "listen", Read: k.readListen},
		kvcaddyfile.Option{Name: "predicted_ttl", Read: kvcaddyfile.Duration(&k.PredictedTTL, time.Millisecond)},
		kvcaddyfile.Option{Name: "tier_credit", Read: kvcaddyfile.Sub(
			kvcaddyfile.Option{Name: "cpu", Read: kvcaddyfile.Float(&credit.CPU, 0, 1)},
			kvcaddyfile.Option{Name: "disk", Read: kvcaddyfile.Float(&credit.Disk, 0, 1)},
		)},
		kvcaddyfile.Option{Name: "removals", Read: kvcaddyfile.OneOf(&k.Removals, removalsEach, removalsLast)},
	)(d, name)
	if credit != (TierCredit{}) {
		k.TierCredit = &credit
	}
	return err
}

// readPlain reads `plain <username> <password>`.
func (k *KVEvents) readPlain(d *caddyfile.Dispenser, name string) error {
	var values []string
	if err := kvcaddyfile.Strings(&values)(d, name); err != nil {
		return err
	}
	if len(values) != 2 {
		return d.Errf("%s takes a user name and a password: %d values are given", name, len(values))
	}
	k.Username, k.Password = values[0], values[1]
	return nil
}

// readEndpoint reads `endpoint <url> [<upstream address>]`.
func readEndpoint(dst *[]EventsEndpoint) kvcaddyfile.Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		var values []string
		if err := kvcaddyfile.Strings(&values)(d, name); err != nil {
			return err
		}
		if len(values) > 2 {
			return d.Errf("%s takes a URL and, if it is that of one upstream, the upstream's address: %d values are given", name, len(values))
		}
		e := EventsEndpoint{URL: values[0]}
		if len(values) == 2 {
			e.Upstream = values[1]
		}
		*dst = append(*dst, e)
		return nil
	}
}

// readListen reads `listen <address>` with the topics in its block.
func (k *KVEvents) readListen(d *caddyfile.Dispenser, name string) error {
	if !d.NextArg() {
		return d.Errf("%s has no value: expecting an address to listen at, such as :5557, and a block with the topic of each upstream", name)
	}
	k.Listen = d.Val()
	if d.NextArg() {
		return d.Errf("%s takes one address: unexpected argument %q", name, d.Val())
	}
	return kvcaddyfile.Tail(
		kvcaddyfile.Option{Name: "topic", Many: true, Read: func(d *caddyfile.Dispenser, name string) error {
			var values []string
			if err := kvcaddyfile.Strings(&values)(d, name); err != nil {
				return err
			}
			if len(values) != 2 {
				return d.Errf("%s takes a topic and the address of its upstream: %d values are given", name, len(values))
			}
			if _, twice := k.Topics[values[0]]; twice {
				return d.Errf("%s %q is given twice: keep one of them", name, values[0])
			}
			if k.Topics == nil {
				k.Topics = make(map[string]string)
			}
			k.Topics[values[0]] = values[1]
			return nil
		}},
	)(d, name)
}
