// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"testing"
	"time"
)

func TestProdStackWeighsCachedShareAndRelativeLoad(t *testing.T) {
	prompt := chain(nil, 1, 10)
	for _, c := range []struct {
		held    int // blocks at replica 0; 8 are 2 chunks of 256 tokens: 0.8
		running []int
		want    int
	}{
		{8, []int{0, 0}, 0}, // 0.8 and 0
		{8, []int{1, 0}, 1}, // 0.8 − 0.5 and 0 + 0.5
		{8, []int{3, 0}, 1}, // 0.8 − 1 and 0 + 1
		{8, []int{5, 4}, 0}, // 0.8 − 0.11 and 0.11
		{7, []int{7, 5}, 0}, // 0.4 − 0.17 and 0.17: one chunk
		{0, []int{3, 2}, 0}, // nothing held: the first that was never asked
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p := made[*prodStack](t, "prodstack_loadaware")
			tell(p, 0, prompt[:c.held])
			p.fleet(ofTwo)
			copy(p.running, c.running)
			got := route(p, asking(prompt), ofTwo...)
			if got != c.want {
				t.Errorf("went to %d, want %d", got, c.want)
			}
		})
	}
}

func TestProdStackFallsBackWhereNothingIsHeld(t *testing.T) {
	p := made[*prodStack](t, "prodstack_loadaware")
	prompt := chain(nil, 1, 10)
	tell(p, 1, prompt[:3]) // less than a chunk
	up := []int{0, 1, 2}
	at := func(s, want int) {
		t.Helper()
		if got := p.Route(time.Duration(s)*time.Second, asking(prompt), up); got != want {
			t.Errorf("at %d s to %d, want %d", s, got, want)
		}
	}
	at(0, 0) // never asked yet
	at(1, 1)
	at(2, 2)
	at(3, 0)  // all have one: the first
	at(62, 1) // 0 has one of the last minute, 1 and 2 have none or one
	r := asking(prompt)
	r.Session = 5
	want := route(p, r, up...)
	for range 10 {
		if got := route(p, r, up...); got != want {
			t.Error("a session moved")
		}
	}
}
