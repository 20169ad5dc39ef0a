// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"math"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
)

const directive = "kv_aware_engine"

func init() {
	httpcaddyfile.RegisterHandlerDirective(directive, parse)
	// Beside what answers by itself: handlers that change the request or the
	// response run before it, and a reverse_proxy of the same site after it, which
	// then gets nothing.
	httpcaddyfile.RegisterDirectiveOrder(directive, httpcaddyfile.Before, "respond")
}

// parse reads the directive, and names an engine that has no name by its number,
// so that those of several sites are not one.
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	if handler.Name == "" {
		n, _ := h.State[directive].(int)
		h.State[directive] = n + 1
		handler.Name = "engine-" + strconv.Itoa(n+1)
	}
	return handler, nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens. Syntax:
//
//	kv_aware_engine [<matcher>] [<name>] {
//		model                  <name>
//		adapters               <names...>
//		speed                  <factor>
//		block_size             <tokens>
//		kv_tokens              <tokens>
//		max_num_seqs           <sequences>
//		max_num_batched_tokens <tokens>
//		max_model_len          <tokens>
//		output                 <tokens>
//
//		# failures
//		fail                   refuse|500|die[:<tokens>]|stall[:<tokens>]
//		fail_rate              <share>
//
//		# what the KV cache holds, published over ZeroMQ
//		kv_events {
//			endpoint        tcp://<host>:<port>|ipc://<path>
//			replay_endpoint tcp://<host>:<port>|ipc://<path>
//			topic           <text>
//			shape           mixed|arrays|maps
//			buffer_steps    <batches>
//			hwm             <batches>
//		}
//
//		# what a step costs
//		pace {
//			step    <duration>
//			token   <duration>
//			context <duration>
//			pair    <duration>
//		}
//	}
//
// The directive is ordered before respond; it answers every request that it gets.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive
	if d.NextArg() {
		h.Name = d.Val()
		d.Delete()
	}
	const most = math.MaxInt32
	var speed *float64
	pace := new(Pace)
	var kvEvents KVEvents
	var publishes bool
	err := kvcaddyfile.Block(d,
		kvcaddyfile.Option{Name: "model", Read: kvcaddyfile.String(&h.Model)},
		kvcaddyfile.Option{Name: "adapters", Read: kvcaddyfile.Strings(&h.Adapters)},
		kvcaddyfile.Option{Name: "speed", Read: kvcaddyfile.Float(&speed, minSpeed, math.MaxFloat64)},
		kvcaddyfile.Option{Name: "block_size", Read: kvcaddyfile.Int(&h.BlockSize, 1, 1<<16)},
		kvcaddyfile.Option{Name: "kv_tokens", Read: kvcaddyfile.Int(&h.KVTokens, 1, most)},
		kvcaddyfile.Option{Name: "max_num_seqs", Read: kvcaddyfile.Int(&h.MaxNumSeqs, 1, most)},
		kvcaddyfile.Option{Name: "max_num_batched_tokens", Read: kvcaddyfile.Int(&h.MaxNumBatchedTokens, 1, most)},
		kvcaddyfile.Option{Name: "max_model_len", Read: kvcaddyfile.Int(&h.MaxModelLen, 2, most)},
		kvcaddyfile.Option{Name: "output", Read: kvcaddyfile.Int(&h.Output, 1, most)},
		kvcaddyfile.Option{Name: "fail", Read: readFailure(&h.Fail)},
		kvcaddyfile.Option{Name: "fail_rate", Read: kvcaddyfile.Float(&h.FailRate, 0, 1)},
		kvcaddyfile.Option{Name: "kv_events", Read: readKVEvents(&kvEvents, &publishes)},
		kvcaddyfile.Option{Name: "pace", Read: kvcaddyfile.Sub(
			kvcaddyfile.Option{Name: "step", Read: kvcaddyfile.Duration(&pace.Step, 1)},
			kvcaddyfile.Option{Name: "token", Read: kvcaddyfile.Duration(&pace.Token, 1)},
			kvcaddyfile.Option{Name: "context", Read: kvcaddyfile.Duration(&pace.Context, 1)},
			kvcaddyfile.Option{Name: "pair", Read: kvcaddyfile.Duration(&pace.Pair, 1)},
		)},
	)
	if err != nil {
		return err
	}
	if speed != nil {
		h.Speed = *speed
	}
	if *pace != (Pace{}) {
		h.Pace = pace
	}
	if publishes {
		h.KVEvents = &kvEvents
	}
	return nil
}

// minSpeed is slow enough to look at a single step.
const minSpeed = 0.001

// readFailure checks the option's words where file and line are known.
func readFailure(dst *string) kvcaddyfile.Reader {
	read := kvcaddyfile.String(dst)
	return func(d *caddyfile.Dispenser, name string) error {
		if err := read(d, name); err != nil {
			return err
		}
		if _, err := parseFailure(*dst); err != nil {
			return d.Errf("%s: %v", name, err)
		}
		return nil
	}
}

// readKVEvents reads the block, which may be empty.
func readKVEvents(k *KVEvents, given *bool) kvcaddyfile.Reader {
	const most = math.MaxInt32
	read := kvcaddyfile.Sub(
		kvcaddyfile.Option{Name: "endpoint", Read: kvcaddyfile.String(&k.Endpoint)},
		kvcaddyfile.Option{Name: "replay_endpoint", Read: kvcaddyfile.String(&k.ReplayEndpoint)},
		kvcaddyfile.Option{Name: "topic", Read: kvcaddyfile.String(&k.Topic)},
		kvcaddyfile.Option{Name: "shape", Read: kvcaddyfile.String(&k.Shape)},
		kvcaddyfile.Option{Name: "buffer_steps", Read: kvcaddyfile.Int(&k.BufferSteps, 1, most)},
		kvcaddyfile.Option{Name: "hwm", Read: kvcaddyfile.Int(&k.HWM, 1, most)},
	)
	return func(d *caddyfile.Dispenser, name string) error {
		if err := read(d, name); err != nil {
			return err
		}
		*given = true
		checked := *k // with defaults, which the config does not show
		if _, err := checked.settings(); err != nil {
			return d.Errf("%s: %v", name, err)
		}
		return nil
	}
}

// Interface guards
var (
	_ caddyfile.Unmarshaler = (*Handler)(nil)
)
