// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// maxSlots bounds the slots of an engine.
const maxSlots = 256

// Cache says how the engines keep their KV caches, where it is not in blocks that
// requests share.
type Cache struct {
	// Slots of each engine, which keep the last sequence that ran there, as in
	// llama.cpp (`--parallel`) and Ollama (`OLLAMA_NUM_PARALLEL`). From 1 to 256.
	Slots int `json:"slots"`

	// Tokens of a slot's context: llama.cpp's `--ctx-size` divided by its slots
	// (the whole of it with `--kv-unified`), Ollama's `num_ctx`. A longer prompt is
	// cut by the engine, or refused: it counts as so long, with nothing cached. At
	// least one block. Default: unknown, taken for `cache_tokens`.
	Context int64 `json:"context,omitempty"`
}

// slots and context are 0 where caches are of blocks, and where it is unknown.
func (c *Cache) slots() int {
	if c == nil {
		return 0
	}
	return c.Slots
}

func (c *Cache) context() int64 {
	if c == nil {
		return 0
	}
	return c.Context
}

// resolveCache takes over what the slots say of the sequences that run at once.
func (p *Policy) resolveCache() {
	if p.MaxSequences == 0 {
		p.MaxSequences = p.Cache.slots()
	}
}

func (p *Policy) checkCache() error {
	c := p.Cache
	switch {
	case c == nil:
	case c.Slots < 1 || c.Slots > maxSlots:
		return fmt.Errorf("cache: %d slots: expecting 1 to %d", c.Slots, maxSlots)
	case c.Context != 0 && (c.Context < int64(p.BlockSize) || c.Context > maxCacheTokens):
		return fmt.Errorf("cache: slots of %d tokens: expecting at least one block of %d tokens, and at most %d", c.Context, p.BlockSize, int64(maxCacheTokens))
	}
	return nil
}

// readCache reads `cache slots <number> [<context tokens>]`.
func (p *Policy) readCache(d *caddyfile.Dispenser, name string) error {
	const form = "`slots <number> [<context tokens>]`"
	args := d.RemainingArgs()
	switch {
	case len(args) == 0:
		return d.Errf("%s has no value: expecting %s", name, form)
	case args[0] != "slots":
		return d.Errf("%s: bad value %q: expecting %s", name, args[0], form)
	case len(args) < 2 || len(args) > 3:
		return d.Errf("%s takes %s: %d values are given", name, form, len(args))
	}
	p.Cache = new(Cache)
	var err error
	if p.Cache.Slots, err = strconv.Atoi(args[1]); err != nil || p.Cache.Slots < 1 || p.Cache.Slots > maxSlots {
		return d.Errf("%s slots: bad value %q: expecting a whole number from 1 to %d", name, args[1], maxSlots)
	}
	if len(args) == 3 {
		if p.Cache.Context, err = strconv.ParseInt(args[2], 10, 64); err != nil || p.Cache.Context < 1 || p.Cache.Context > maxCacheTokens {
			return d.Errf("%s slots: bad context %q: expecting a whole number of tokens from 1 to %d", name, args[2], int64(maxCacheTokens))
		}
	}
	return nil
}

// cut gives what the engine makes of a prompt of so many tokens, as counted: one
// that is longer than a slot's context is cut where nobody knows, or refused.
func (rt *routing) cut(tokens int, chain []uint64) (int, []uint64) {
	most := rt.policy.Cache.context()
	if most == 0 || int64(rt.request.Corrected(tokens)) <= most {
		return tokens, chain
	}
	rt.teaches, rt.comparable = false, false
	return int(float64(most) / rt.request.Ratio), nil
}
