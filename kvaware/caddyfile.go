// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens. Syntax:
//
//	lb_policy kv_aware {
//		# tokens and the index
//		tokenizer    auto | tiktoken <encoding> | estimate
//		tokenizer    hf <tokenizer.json> {
//			chat_template <tokenizer_config.json or .jinja file>
//			engine        vllm | sglang
//		}
//		tokenizer    remote <base URLs of engines...> {
//			api            render | tokenize
//			timeout        <duration>
//			max_concurrent <questions>
//			header_up      <name> <value>
//		}
//		block_size   <tokens>
//		cache_tokens <tokens> | auto
//		cache        slots <number> [<context tokens>]
//		token_cache  <size>
//		model_alias  <name> <alias...>
//		pool         <name>
//		secret       <text>
//		isolate_by   <placeholder>
//		inject_salt
//
//		# what engines tell of themselves
//		engine {
//			scrape       <duration>
//			header_up    <name> <value>
//			metrics_path <path>
//			models_path  <path>
//			models       auto | off
//		}
//
//		# what engines report
//		kv_events {
//			port          <port>
//			replay_port   <port>
//			endpoint      <url> [<upstream address>]
//			replay        <url> [<upstream address>]
//			topic         <prefix>
//			plain         <username> <password>
//			ranks         <number>
//			listen        <address> {
//				topic <topic> <upstream address>
//			}
//			predicted_ttl <duration>
//			tier_credit {
//				cpu  <part>
//				disk <part>
//			}
//			removals      each | last
//		}
//
//		# request bodies
//		max_body     <size>
//		max_buffered <size>
//
//		# the decision
//		objective    token_load | latency
//		max_sequences <number>
//		weights {
//			prefill <weight>
//			decode  <weight>
//			request <weight>
//		}
//		fallback <policy> [<args...>] {
//			...
//		}
//
//		response_headers
//	}
func (p *Policy) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	return kvcaddyfile.Block(d,
		kvcaddyfile.Option{Name: "tokenizer", Read: p.readTokenizer},
		kvcaddyfile.Option{Name: "block_size", Read: kvcaddyfile.Int(&p.BlockSize, 1, maxBlockSize)},
		kvcaddyfile.Option{Name: "cache_tokens", Read: p.CacheTokens.read},
		kvcaddyfile.Option{Name: "cache", Read: p.readCache},
		kvcaddyfile.Option{Name: "engine", Read: p.readEngineOption},
		kvcaddyfile.Option{Name: "token_cache", Read: kvcaddyfile.Size(&p.TokenCache, 1, maxMemory)},
		kvcaddyfile.Option{Name: "model_alias", Read: p.readModelAlias, Many: true},
		kvcaddyfile.Option{Name: "pool", Read: kvcaddyfile.String(&p.Pool)},
		kvcaddyfile.Option{Name: "secret", Read: kvcaddyfile.Secret(&p.Secret, leastSecret)},
		kvcaddyfile.Option{Name: "isolate_by", Read: kvcaddyfile.String(&p.IsolateBy)},
		kvcaddyfile.Option{Name: "inject_salt", Read: kvcaddyfile.Flag(&p.InjectSalt)},
		kvcaddyfile.Option{Name: "kv_events", Read: p.readKVEvents},
		kvcaddyfile.Option{Name: "max_body", Read: kvcaddyfile.Size(&p.MaxBody, 1, maxBodyLimit)},
		kvcaddyfile.Option{Name: "max_buffered", Read: kvcaddyfile.Size(&p.MaxBuffered, 1, maxMemory)},
		kvcaddyfile.Option{Name: "objective", Read: kvcaddyfile.OneOf(&p.Objective, objectives...)},
		kvcaddyfile.Option{Name: "max_sequences", Read: kvcaddyfile.Int(&p.MaxSequences, 1, maxSequences)},
		kvcaddyfile.Option{Name: "weights", Read: kvcaddyfile.Sub(
			kvcaddyfile.Option{Name: "prefill", Read: kvcaddyfile.Float(&p.Weights.Prefill, 0, maxWeight)},
			kvcaddyfile.Option{Name: "decode", Read: kvcaddyfile.Float(&p.Weights.Decode, 0, maxWeight)},
			kvcaddyfile.Option{Name: "request", Read: kvcaddyfile.Float(&p.Weights.Request, 0, maxWeight)},
		)},
		kvcaddyfile.Option{Name: "fallback", Read: kvcaddyfile.Module[reverseproxy.Selector](
			&p.FallbackRaw, "http.reverse_proxy.selection_policies", "policy")},
		kvcaddyfile.Option{Name: "response_headers", Read: kvcaddyfile.Flag(&p.ResponseHeaders)},
	)
}

// readTokenizer reads `tokenizer auto`, `tokenizer tiktoken <encoding>`,
// `tokenizer hf <file>` and `tokenizer remote <urls...>` with their blocks, or
// `tokenizer estimate`.
func (p *Policy) readTokenizer(d *caddyfile.Dispenser, name string) error {
	const forms = "`auto`, `tiktoken <encoding>`, `hf <tokenizer.json>`, `estimate` or `remote <base URLs of engines...>`"
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Errf("%s has no value: expecting %s", name, forms)
	}
	t := &Tokenizer{Kind: args[0]}
	p.Tokenizer = t
	wants := 1
	switch t.Kind {
	case tokenizerAuto, tokenizerEstimate:
	case tokenizerTiktoken:
		known := tokenize.Encodings()
		if wants = 2; len(args) == wants {
			t.Encoding = args[1]
			if !slices.Contains(known, t.Encoding) && !strings.Contains(t.Encoding, "{") {
				return d.Errf("%s: no encoding %q: expecting one of %s", name, t.Encoding, strings.Join(known, ", "))
			}
		}
	case tokenizerHF:
		if wants = 2; len(args) == wants {
			t.File = args[1]
		}
	case tokenizerRemote:
		wants = max(2, len(args))
		t.Remote = &RemoteTokenizer{Engines: args[1:]}
	default:
		return d.Errf("%s: bad value %q: expecting %s", name, args[0], forms)
	}
	if len(args) != wants {
		return d.Errf("%s takes %s: %d values are given", name, forms, len(args))
	}
	switch t.Kind {
	case tokenizerHF:
		return kvcaddyfile.Tail(
			kvcaddyfile.Option{Name: "chat_template", Read: kvcaddyfile.String(&t.ChatTemplate)},
			kvcaddyfile.Option{Name: "engine", Read: t.readEngine},
		)(d, name)
	case tokenizerRemote:
		return t.Remote.readBlock(d, name)
	}
	return nil
}

// readEngine reads `engine vllm` or `engine sglang`.
func (t *Tokenizer) readEngine(d *caddyfile.Dispenser, name string) error {
	if err := kvcaddyfile.String(&t.Engine)(d, name); err != nil {
		return err
	}
	if _, known := chatForms[t.Engine]; !known && !strings.Contains(t.Engine, "{") {
		return d.Errf("%s: no engine %q: expecting vllm or sglang", name, t.Engine)
	}
	return nil
}

// readBlock reads the block behind `tokenizer remote <urls...>`.
func (t *RemoteTokenizer) readBlock(d *caddyfile.Dispenser, name string) error {
	return kvcaddyfile.Tail(
		kvcaddyfile.Option{Name: "api", Read: func(d *caddyfile.Dispenser, name string) error {
			if err := kvcaddyfile.String(&t.API)(d, name); err != nil {
				return err
			}
			if _, known := remoteAPIs[t.API]; !known {
				return d.Errf("%s: bad value %q: expecting render or tokenize, or no %[1]s to find out", name, t.API)
			}
			return nil
		}},
		kvcaddyfile.Option{Name: "timeout", Read: kvcaddyfile.Duration(&t.Timeout, minRemoteTimeout)},
		kvcaddyfile.Option{Name: "max_concurrent", Read: kvcaddyfile.Int(&t.MaxConcurrent, 1, maxRemoteConcurrent)},
		headerUp(&t.Headers),
	)(d, name)
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Policy)(nil)
