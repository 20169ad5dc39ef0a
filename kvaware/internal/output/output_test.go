// SPDX-License-Identifier: Apache-2.0

package output

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestStagesGrowWithTokens(t *testing.T) {
	last := 0
	for n := int64(0); n < 1<<22; n += 1 + n/64 {
		s := Stage(n)
		if s < last || s >= Bins {
			t.Fatalf("Stage(%d) = %d after %d", n, s, last)
		}
		if m := middle(s); n > 4 && n < maxTokens && (m < float64(n)/1.5 || m > float64(n)*1.5) {
			t.Fatalf("%d tokens are stage %d, whose middle is %v", n, s, m)
		}
		last = s
	}
	if Stage(-5) != 0 || Stage(math.MaxInt64) != Stage(maxTokens) {
		t.Error("counts out of range are no stage")
	}
}

func look(l *Lengths) *Outlook {
	o := new(Outlook)
	l.Look(o)
	return o
}

func TestBeforeAnyOutputThereIsAGuess(t *testing.T) {
	var l Lengths
	if got := look(&l).Mean; got != priorTokens {
		t.Errorf("mean %v", got)
	}
	for n, want := range map[int64]float64{0: priorTokens, 100: priorTokens, 10_000: 10_000} {
		if got := look(&l).Remaining[Stage(n)]; got < want/1.5 || got > want*1.5 {
			t.Errorf("after %d tokens %v remain, want about %v", n, got, want)
		}
	}
	l.Learn(0)
	l.Learn(-1)
	if got := look(&l).Mean; got != priorTokens {
		t.Errorf("nothing was generated, yet the mean is %v", got)
	}
}

func TestWhatRemainsIsLearntFromWhatEnded(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"exponential": func() float64 { return 500 * rnd.ExpFloat64() },
		"constant":    func() float64 { return 1000 },
		"pareto":      func() float64 { return 200 * math.Pow(1-rnd.Float64(), -1/2.5) },
	} {
		var l Lengths
		var all []float64
		var sum float64
		for range 20_000 {
			n := math.Ceil(draw())
			l.Learn(int64(n))
			all = append(all, n)
			sum += n
		}
		if mean := sum / float64(len(all)); math.Abs(look(&l).Mean-mean) > 0.15*mean {
			t.Errorf("%s: mean %v, want about %v", name, look(&l).Mean, mean)
		}
		for _, g := range []float64{0, 64, 256, 700} {
			var n, rest float64
			for _, x := range all {
				if x > g {
					n++
					rest += x - g
				}
			}
			want := rest / n
			if got := look(&l).Remaining[Stage(int64(g))]; got < want*0.6 || got > want*1.6 {
				t.Errorf("%s: %v remain after %v, want about %v", name, got, g, want)
			}
		}
	}
}

func TestWhatIsLearntFollowsTheTraffic(t *testing.T) {
	var l Lengths
	for range 100_000 {
		l.Learn(1 << 40)
	}
	for range 100_000 {
		l.Learn(100)
	}
	if got := look(&l).Mean; math.Abs(got-100) > 5 {
		t.Errorf("mean %v, want 100", got)
	}
}

func BenchmarkLearn(b *testing.B) {
	var l Lengths
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Learn(int64(i % 5000))
	}
}

func BenchmarkLook(b *testing.B) {
	var l Lengths
	var o Outlook
	l.Learn(10)
	b.ReportAllocs()
	for b.Loop() {
		l.Look(&o)
	}
}
