// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"sync"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/prefix"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/stream"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// impliedZeros is how many answers in a row may leave cached tokens out, where
// some were predicted, until that stops to mean none: the engine was started anew
// without telling them.
const impliedZeros = 16

// largestEngineBlock bounds the tokens that an engine's block is taken to have.
// Hybrid models' are the largest, of several hundred.
const largestEngineBlock = 1024

// reporting is what is known of how an upstream reports cached tokens.
type reporting struct {
	mu    sync.Mutex // guards what follows; nothing else is locked under it
	apis  uint32     // in which they were reported, one bit each, see apiBit
	zeros int        // implied ones in a row
	block int        // greatest common divisor of what was reported, 0 before the first

	// Totals over the same answers, in tokens.
	predicted, reported int64
}

// apiBit tells APIs apart, and streams from whole answers: engines report in some
// and not in others.
func apiBit(kind tokenize.Kind, streamed bool) uint32 {
	bit := uint32(kind) * 2
	if streamed {
		bit++
	}
	return 1 << (bit % 32)
}

// take takes in what a whole answer says, -1 for nothing, and where some were
// predicted. It returns the cached tokens that it reports, if it does, and the
// tokens of a block of the engine.
func (r *reporting) take(api uint32, stated, predicted int) (tokens, block int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case stated >= 0:
		r.apis |= api
		r.zeros = 0
		if stated > 0 {
			r.block = gcd(r.block, stated)
		}
	case r.apis&api == 0:
		return 0, 0, false
	default: // vLLM and SGLang leave a zero out
		stated = 0
		if predicted > 0 {
			r.zeros++
		}
		if r.zeros > impliedZeros {
			r.apis, r.zeros = 0, 0
			return 0, 0, false
		}
	}
	r.predicted += int64(predicted)
	r.reported += int64(stated)
	return stated, min(r.block, largestEngineBlock), true
}

// totals returns the cached tokens predicted and reported of the same answers.
func (r *reporting) totals() (predicted, reported int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.predicted, r.reported
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// corrects compares an answer that has ended with what was predicted of it. Only
// those of one prompt and one choice, sent once, that one engine computed, say
// anything.
func (a *attempt) corrects(sum *stream.Summary) {
	rt := a.routing
	d := &rt.request.Demand
	if !sum.EndedNormally || sum.PromptTokens < 0 || sum.Transferred || !rt.comparable || a.again ||
		len(d.Prompts) != 1 || d.Choices != 1 || d.Estimated || !rt.request.Reuses {
		return
	}
	tokens, block, ok := a.upstream.reports.take(apiBit(rt.api, rt.streamed), sum.CachedTokens, a.placement.CachedTokens)
	if !ok {
		return
	}
	if a.placement.SaidCached() > 0 {
		a.placement.FoundCached(tokens)
		return // its events correct the index
	}
	switch a.placement.Reported(tokens, block) {
	case prefix.Shortened:
		a.upstream.labels.shortened.Inc()
	case prefix.Extended:
		a.upstream.labels.extended.Inc()
	case prefix.Disputed:
		a.upstream.labels.disputed.Inc()
	}
}
