// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

const (
	// advanceEvery is how often at most an upstream's model is evaluated: about
	// one decode step of a large model.
	advanceEvery = 20 * time.Millisecond
	// advanceBudget is how many sequences are looked at in one choice, over all
	// upstreams, give or take one ticket; the rest wait for the next ones. One
	// costs 20 to 40 ns.
	advanceBudget = 256

	// streamPatience is how many times the modelled time to first token a
	// stream is waited for before its prefill is taken to be done unseen:
	// queues make that time vary by factors, and the first token is most often
	// still to come, not held back.
	streamPatience = 2
	// silentGaps is how many token gaps a stream that has begun must be quiet
	// to count as silent: engines and parsers send several tokens in one event.
	silentGaps = 16
	// modelFloor is the part, one in so many, that the model leaves of what it
	// advances.
	modelFloor = 10
	// modelMax bounds the tokens that the model adds to a sequence of which no
	// length is expected.
	modelMax = 1 << 15
	// stepTokens is what a prefill costs beyond its tokens, in tokens: an
	// engine's step takes about 12 ms whatever is in it. Without it, an upstream
	// that has seen only short prompts would be taken for a very slow one.
	stepTokens = 256
)

// advance evaluates the model of some of the upstream's tickets, in turn, if it
// has not been done lately, and returns how many sequences it looked at.
func (u *Upstream) advance(now time.Duration, budget int) int {
	if u.live.Load() == 0 || now-time.Duration(u.advanced.Load()) < advanceEvery {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.advanced.Store(int64(now))
	rate, gap := u.PrefillRate(), u.TokenGap()
	spent := 0
	for t, end := u.cursor, u.cursor; t != nil && spent < budget; {
		spent++
		if t.mu.TryLock() {
			if t.living && t.tokens {
				t.advance(now, rate, gap)
				spent += len(t.sequences) - 1
			}
			t.mu.Unlock()
		}
		t = t.next
		u.cursor = t
		if t == end {
			break
		}
	}
	return spent
}

// advance evaluates the model of one ticket. t.mu is held.
func (t *Ticket) advance(now time.Duration, rate float64, gap time.Duration) {
	gap = max(gap, time.Microsecond)
	for k := range t.prompts {
		p := &t.prompts[k]
		if p.open == 0 {
			continue
		}
		if p.phase == waiting {
			wait := t.prefillTime(p, rate)
			if t.stream {
				wait *= streamPatience
			}
			if now-t.sent < wait {
				continue
			}
			p.phase, p.at = assumed, t.sent+wait
			if !t.stream {
				t.up.progress(p.at)
			}
			t.settle(k * t.choices)
		}
		if !t.decodes {
			continue
		}
		for i := k * t.choices; i < (k+1)*t.choices; i++ {
			s := &t.sequences[i]
			if s.finished {
				continue
			}
			since := max(p.at, s.seen)
			if p.phase == done && now-since < silentGaps*gap {
				continue
			}
			most := int64(modelMax)
			if t.expected >= 0 {
				most = max(0, t.expected-s.generated)
			}
			if m := max(0, min(most, int64((now-since)/gap))); m != s.modelled {
				s.modelled = m
				t.settle(i)
			}
		}
	}
}

// prefillTime is how long after the charge a prompt is prefilled by the model: as
// its first token was predicted, at the upstream's pace, where it was; else by
// tokens at a rate, which is learnt from streams only and knows no contexts.
func (t *Ticket) prefillTime(p *prompt, rate float64) time.Duration {
	const most = 24 * time.Hour
	seconds := float64(t.ahead+p.through+stepTokens) / rate
	if t.paced > 0 && len(t.prompts) == 1 {
		seconds = t.paced.Seconds() * t.up.PrefillPace()
	}
	if seconds >= most.Seconds() {
		return most
	}
	return time.Duration(seconds * float64(time.Second))
}
