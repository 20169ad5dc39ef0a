// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/choose"
)

// Clients leave while tokens arrive, upstreams fail, retries supersede, and the
// model runs, all at once.
func TestAStormEndsAtExactlyZero(t *testing.T) {
	const workers, requests = 16, 100
	var at atomic.Int64 // the clock, moved by everybody
	l := New(Options{Now: func() time.Duration { return time.Duration(at.Load()) }})
	ups := make([]*Upstream, 5)
	for i := range ups {
		ups[i] = l.NewUpstream()
	}

	stop := make(chan struct{})
	var watchers, storm sync.WaitGroup
	for range 2 {
		watchers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for i, u := range ups {
					s := l.Snapshot(u)
					if s.PrefillTokens < 0 || s.DecodeTokens < 0 || s.Running < 0 || s.Live < 0 ||
						s.ModelledPrefillTokens < 0 || s.ModelledDecodeTokens < 0 || s.FailureScore < 0 {
						t.Errorf("upstream %d is negative: %+v", i, s)
						return
					}
				}
			}
		})
	}
	var released atomic.Int64
	for w := range workers {
		storm.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 99))
			for range requests {
				d := Demand{
					Choices: 1 + rnd.IntN(3), Expected: rnd.IntN(200) - 1,
					Stream: rnd.IntN(3) > 0, Pooling: rnd.IntN(10) == 0, Estimated: rnd.IntN(10) == 0,
				}
				for range rnd.IntN(3) {
					d.Prompts = append(d.Prompts, Prompt{Tokens: rnd.IntN(50_000), Cached: rnd.IntN(50_000), Prefill: time.Duration(rnd.IntN(1e9))})
				}
				tk := new(Ticket)
				n := int64(rnd.IntN(50_000))
				if l.Choose(tk, &d, ups[rnd.IntN(3):], least(n, nil)) < 0 {
					t.Error("no choice")
				}
				outcome, events := Outcome(rnd.IntN(6)), rnd.IntN(60)
				var both sync.WaitGroup
				both.Go(func() { // the body
					for n := range events {
						now := time.Duration(at.Add(int64(3 * time.Millisecond)))
						switch seq := n % 6; {
						case n%17 == 16:
							tk.Finished(seq)
						case n%11 == 0:
							tk.Started(seq, now)
						default:
							tk.Generated(seq, n-n%7, now)
						}
					}
					if tk.Release(Completed, l.Now()) {
						released.Add(1)
					}
				})
				both.Go(func() { // the client, or whoever else ends it
					if tk.Release(outcome, l.Now()) {
						released.Add(1)
					}
				})
				if rnd.IntN(2) == 0 {
					both.Wait()
				} else {
					storm.Go(both.Wait)
				}
			}
		})
	}
	storm.Wait()
	close(stop)
	watchers.Wait()
	if got := released.Load(); got != workers*requests {
		t.Errorf("%d releases took effect, want %d", got, workers*requests)
	}
	expectZero(t, l, ups)
	var charged int64
	for _, u := range ups {
		charged += l.Snapshot(u).Requests
	}
	if charged != workers*requests {
		t.Errorf("%d charged, want %d", charged, workers*requests)
	}
}

func TestTheChosenLoadIsLeastAsTheLedgerShowsIt(t *testing.T) {
	l, c, ups := pool(6)
	rnd := rand.New(rand.NewPCG(5, 6))
	w := choose.Weights{Prefill: 1, Decode: 1}
	var tickets []*Ticket
	for range 3000 {
		d := one(rnd.IntN(20_000), rnd.IntN(5_000), rnd.IntN(500)-1, rnd.IntN(2) == 0)
		tk := new(Ticket)
		l.Choose(tk, &d, ups, func(cands []choose.Candidate) int {
			for i := range cands {
				if cands[i].Prefill != ups[i].prefill.Load() || cands[i].Decode != ups[i].decode.Load() {
					t.Fatalf("candidate %d shows %+v", i, cands[i])
				}
				cands[i].Uncached = int64(rnd.IntN(20_000))
			}
			k := choose.Least(w, cands, rnd)
			for i := range cands {
				if choose.Cost(w, cands[i]) < choose.Cost(w, cands[k]) {
					t.Fatalf("chose %d, but %d is less", k, i)
				}
			}
			return k
		})
		tickets = append(tickets, tk)
		c.at += time.Duration(rnd.IntN(50)) * time.Millisecond
		if k := rnd.IntN(len(tickets)); rnd.IntN(3) > 0 {
			tickets[k].Generated(0, rnd.IntN(400), c.at)
		} else {
			tickets[k].Release(Outcome(rnd.IntN(6)), c.at)
		}
	}
	for _, tk := range tickets {
		tk.Release(Canceled, c.at)
	}
	expectZero(t, l, ups)
}
