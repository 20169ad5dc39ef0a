// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math"
	"sync"
	"sync/atomic"
)

// RatioKey names what a ratio is learnt for.
type RatioKey struct {
	Model  uint64 // [Request.Namespace], mixed with what tells the encoder
	Script Script
}

const (
	// maxRatios bounds how many keys are known at a time; each takes about 100
	// bytes.
	maxRatios = 1024
	// evictionSample is how many of them are looked at to find one to give up, and
	// evictionMost how many if all of those are of use.
	evictionSample = 8
	evictionMost   = 64

	// ratioLeastCounted is the shortest prompt, in counted tokens, that is learnt
	// from. In shorter ones the chat template, which counts only guess at,
	// outweighs the text.
	ratioLeastCounted = 64
	// ratioMostCounted bounds the weight of one prompt, in counted tokens.
	ratioMostCounted = 8192
	// ratioKeep is what is left of older reports after each new one: the last
	// fifty or so decide.
	ratioKeep = 1 - 1./50
	// ratioLeastReports is how many reports it takes before a ratio is used.
	ratioLeastReports = 4
	// ratioOutlier is the factor by which a report may differ from what the
	// ratio leads one to expect. Below, it is not of the whole prompt; above, it
	// counts as if it were that much.
	ratioOutlier = 2
	// ratioMost bounds every ratio from above, and its inverse from below. The
	// byte-fallback vocabularies of 32,000 tokens need about three tokens for one
	// of o200k_base in the scripts that suit them least.
	ratioMost = 4
)

// Ratios learns by how much the counts of an encoder that is not the model's own
// are off: the ratio of the prompt tokens that responses report to those that
// were counted, for each model and script. It knows a bounded number of models,
// giving up those that were not asked for of late, and no names. It is safe for
// concurrent use.
type Ratios struct {
	mu    sync.RWMutex // guards known
	known map[RatioKey]*ratio
	// lessons counts reports. It is the clock by which a ratio's last use is told.
	lessons atomic.Uint64
}

// ratio is what is known of one key.
type ratio struct {
	value atomic.Uint64 // float bits; 1 before there are enough reports
	used  atomic.Uint64 // Ratios.lessons when last asked for or taught

	// mu guards the decayed sums below. It is held for arithmetic alone, and
	// never together with Ratios.mu.
	mu                         sync.Mutex
	reports, reported, counted float64
}

// NewRatios returns a Ratios that has learnt nothing.
func NewRatios() *Ratios {
	return &Ratios{known: make(map[RatioKey]*ratio)}
}

// Ratio returns what a count for key is to be multiplied with, from 1/4 to 4.
// It is 1 until enough was learnt.
func (r *Ratios) Ratio(key RatioKey) float64 {
	k := r.get(key)
	if k == nil {
		return 1
	}
	return k.load()
}

// Learn tells that a prompt for which counted tokens were counted took reported
// ones by the engine's own count. Counted is the encoder's count, not one that
// was multiplied with a ratio.
//
// Only reports of a whole prompt may be given, and only if all of that prompt
// was text to be counted:
//   - usage.prompt_tokens of OpenAI's APIs and input_tokens of its responses API
//     include cached tokens and are whole;
//   - Anthropic's input_tokens leave out what was read from or written to the
//     cache: cache_read_input_tokens and cache_creation_input_tokens are to be
//     added;
//   - llama.cpp's prompt_n leaves out what was cached: cache_n is to be added, or
//     nothing learnt where it is not stated;
//   - Ollama's prompt_eval_count is of the prompt after it was cut to the context
//     window, and older versions leave out what was cached;
//   - a batch of prompts is reported as one sum, and needs the sum of the counts;
//   - nothing is to be learnt from a prompt with images, sound or files, whose
//     counts are guesses, or one of which the body holds a part only
//     ([Request.WholePrompt]).
//
// As an engine cannot be asked whether it cut a prompt, a report below half of
// what was to be expected teaches nothing. If such reports persist, what was
// learnt before is forgotten.
func (r *Ratios) Learn(key RatioKey, counted, reported int) {
	if counted < ratioLeastCounted || reported <= 0 {
		return
	}
	r.lessons.Add(1)
	k := r.get(key)
	if k == nil {
		if reported < counted/ratioOutlier {
			return // nothing to forget
		}
		k = r.add(key)
	}
	k.learn(float64(counted), float64(reported))
}

func (r *Ratios) get(key RatioKey) *ratio {
	r.mu.RLock()
	k := r.known[key]
	r.mu.RUnlock()
	if k != nil {
		// Written only if it changes: else the line is shared by all readers.
		if now := r.lessons.Load(); k.used.Load() != now {
			k.used.Store(now)
		}
	}
	return k
}

// add returns the ratio of key, which it makes if there is none.
func (r *Ratios) add(key RatioKey) *ratio {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.known[key]; k != nil {
		return k
	}
	if len(r.known) >= maxRatios {
		r.evict()
	}
	k := new(ratio)
	k.value.Store(math.Float64bits(1))
	k.used.Store(r.lessons.Load())
	r.known[key] = k
	return k
}

// evict removes one of a few keys taken at random, as maps are walked from a
// random place: the one used longest ago, but first one that has too few reports
// to be of use. So names made up by clients push out each other. r.mu is held.
func (r *Ratios) evict() {
	const ofUse = 1 << 63
	var victim RatioKey
	least, seen := uint64(math.MaxUint64), 0
	for key, k := range r.known {
		used := k.used.Load()
		if k.load() != 1 {
			used |= ofUse
		}
		if used < least {
			victim, least = key, used
		}
		if seen++; seen >= evictionSample && least < ofUse || seen == evictionMost {
			break
		}
	}
	delete(r.known, victim)
}

func (k *ratio) load() float64 { return math.Float64frombits(k.value.Load()) }

func (k *ratio) learn(counted, reported float64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.load()
	k.reports *= ratioKeep
	k.reported *= ratioKeep
	k.counted *= ratioKeep
	if reported >= known*counted/ratioOutlier {
		weight := min(1, ratioMostCounted/counted)
		k.reports++
		k.reported += weight * min(reported, known*counted*ratioOutlier)
		k.counted += weight * counted
	}
	value := 1.0
	switch {
	case k.reports > ratioLeastReports-0.5: // less than 4 after decay
		value = max(1./ratioMost, min(k.reported/k.counted, ratioMost))
	case known != 1:
		k.reports, k.reported, k.counted = 0, 0, 0
	}
	k.value.Store(math.Float64bits(value))
}
