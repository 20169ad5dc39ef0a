// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

func totals(us ...*Upstream) func(now time.Duration) *Totals {
	return func(now time.Duration) *Totals {
		t := new(Totals)
		for _, u := range us {
			u.AddTo(t, now)
		}
		return t
	}
}

func TestRatesAreOfTheLastTenWholeSeconds(t *testing.T) {
	var u Upstream
	for s := range 100 {
		u.Generated(time.Duration(s)*time.Second+time.Millisecond, 50)
		u.Routed(time.Duration(s)*time.Second+time.Millisecond, 200, 150)
	}
	got := totals(&u)(99 * time.Second)
	if got.Generated != 50 || got.Requests != 1 || got.Computed != 50 {
		t.Errorf("got %v tokens, %v requests, %v computed tokens a second", got.Generated, got.Requests, got.Computed)
	}
	if got.PromptTokens != 61*200 || got.CachedTokens != 61*150 {
		t.Errorf("got %d prompt tokens, %d cached: want a minute's", got.PromptTokens, got.CachedTokens)
	}
	if got := totals(&u)(104 * time.Second); got.Generated != 30 { // 94 to 99
		t.Errorf("five idle seconds later it is %v", got.Generated)
	}
	if got := totals(&u)(200 * time.Second); *got != (Totals{}) {
		t.Errorf("long after there is %v", got.Generated)
	}
}

func TestAYoungUpstreamsRateIsOfItsLife(t *testing.T) {
	var u Upstream
	u.Generated(0, 30)
	u.Generated(time.Second, 50)
	if got := totals(&u)(2 * time.Second); got.Generated != 40 {
		t.Errorf("got %v", got.Generated)
	}
}

func TestQuantilesAreWithinASixteenth(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var u, other Upstream
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(math.Exp(rnd.Float64()*16) * float64(time.Microsecond))
		all = append(all, d)
		if i%3 == 0 {
			other.FirstToken(time.Second, d)
		} else {
			u.FirstToken(time.Second, d)
		}
	}
	slices.Sort(all)
	got := totals(&u, &other)(2 * time.Second)
	if got.FirstToken.Count() != int64(len(all)) {
		t.Fatalf("got %d of %d", got.FirstToken.Count(), len(all))
	}
	for _, share := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
		want := all[min(max(int(math.Ceil(share*float64(len(all))))-1, 0), len(all)-1)]
		if q := got.FirstToken.Quantile(share); math.Abs(float64(q-want)) > float64(want)/16+float64(time.Microsecond) {
			t.Errorf("quantile %v: got %v, want %v", share, q, want)
		}
	}
}

func TestBucketsAreInOrderAndHoldTheirMiddle(t *testing.T) {
	for b := range buckets {
		if got := bucketOf(middle(b)); got != b {
			t.Errorf("the middle of bucket %d, %v, is in %d", b, middle(b), got)
		}
		if b > 0 && middle(b) <= middle(b-1) {
			t.Errorf("bucket %d is not after the one before", b)
		}
	}
	if bucketOf(-time.Second) != 0 || bucketOf(math.MaxInt64) != buckets-1 {
		t.Error("what is out of range has no bucket")
	}
}

func TestLatenciesAreForgottenAfterAMinute(t *testing.T) {
	var u Upstream
	u.InterToken(0, time.Millisecond)
	u.InterToken(40*time.Second, time.Second)
	at := totals(&u)
	for now, want := range map[time.Duration]int64{44 * time.Second: 2, 61 * time.Second: 1, 106 * time.Second: 0, time.Hour: 0} {
		if got := at(now).InterToken.Count(); got != want {
			t.Errorf("after %v there are %d, want %d", now, got, want)
		}
	}
	if got := at(61 * time.Second).InterToken.Quantile(0.5); got < 900*time.Millisecond {
		t.Errorf("the median is %v", got)
	}
}

func TestWritersAndReadersDoNotRace(t *testing.T) {
	var u Upstream
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				now := time.Duration(i) * 50 * time.Millisecond
				u.Routed(now, 10, 5)
				u.Generated(now, 1)
				u.FirstToken(now, time.Duration(w+1)*time.Millisecond)
				if i%100 == 0 {
					totals(&u)(now)
				}
			}
		})
	}
	wg.Wait()
	if got := totals(&u)(100 * time.Second); got.PromptTokens == 0 || got.PromptTokens < got.CachedTokens {
		t.Errorf("got %d prompt tokens, %d cached", got.PromptTokens, got.CachedTokens)
	}
}

func BenchmarkToken(b *testing.B) {
	var u Upstream
	b.ReportAllocs()
	for i := range b.N {
		now := time.Duration(i) * 10 * time.Microsecond
		u.Generated(now, 1)
		u.InterToken(now, 20*time.Millisecond)
	}
}

func BenchmarkAddTo(b *testing.B) {
	var u Upstream
	u.FirstToken(0, time.Second)
	u.InterToken(0, time.Second)
	b.ReportAllocs()
	for range b.N {
		var t Totals
		u.AddTo(&t, time.Second)
	}
}
