// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/pace"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/reuse"
)

// script turns bytes into operations, so that the property tests and the fuzz
// target share one driver. It reads zeros past its end.
type script []byte

func (s *script) next(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

// chain returns a prompt out of a small family that branches often: stretches
// of blocks whose content depends on one choice each.
func (s *script) chain() []uint64 {
	var chain []uint64
	hash := uint64(0)
	for range s.next(5) {
		branch := s.next(7) / 3 // uneven, so that upstreams share much
		for i := range 1 + s.next(6) {
			if i > 0 {
				branch = 0
			}
			hash = mix64(hash + uint64(branch) + 1)
			chain = append(chain, hash)
		}
	}
	return chain
}

type duo struct {
	real  Path
	model *modelPath

	ns   uint64
	last uint64 // the prompt's last block
}

// rehearse runs a script against the index and the model, and compares them
// after every step.
func rehearse(s script) error {
	m := &model{ttl: uint32(DefaultPredictedTTL / reuse.Tick)}
	x := New(func() time.Duration { return time.Duration(m.tick) * reuse.Tick })
	x.reapSteps = s.next(4) // few, so that dead spans are met
	var running, ended []*duo
	for range 3 {
		n := 10 + s.next(50)
		m.holders = append(m.holders, newModelCache(n))
		x.Add(n)
	}
	var recent [8][]uint64 // prompts come again, there or elsewhere, whole or in part
	chain := func() []uint64 {
		i := s.next(2 * len(recent))
		if i < len(recent) {
			return recent[i][:len(recent[i])-min(len(recent[i]), s.next(12)/3)]
		}
		recent[i-len(recent)] = s.chain()
		return recent[i-len(recent)]
	}
	live := func() (Holder, bool) {
		h := Holder(s.next(4))
		return h, int(h) < len(m.holders) && m.holders[h] != nil
	}
	for step := 0; len(s) > 0; step++ {
		op := s.next(100)
		m.tick += uint32(s.next(40) * s.next(3))
		switch {
		case op == 0:
			if h, ok := live(); ok {
				x.Remove(h)
				m.holders[h] = nil
			} else {
				// The index gives the slot freed last, the model the lowest: let
				// the model follow.
				n := s.next(60)
				got := x.Add(n)
				for int(got) >= len(m.holders) {
					m.holders = append(m.holders, nil)
				}
				if m.holders[got] != nil {
					return fmt.Errorf("step %d: slot %d given twice", step, got)
				}
				m.holders[got] = newModelCache(n)
			}
		case op == 1:
			if h, ok := live(); ok {
				x.Forget(h)
				m.forget(h)
			}
		case op < 4:
			if h, ok := live(); ok {
				n := s.next(80)
				x.SetCapacity(h, n)
				if c := m.holders[h]; n != c.told {
					c.told, c.wanted = n, n
				}
				m.holders[h].settle()
			}
		case op == 4:
			if h, ok := live(); ok {
				on := s.next(3) > 0
				x.SetReported(h, on)
				m.holders[h].reports = on
			}
		case op == 5:
			m.ttl = uint32(s.next(60))
			x.SetPredictedTTL(time.Duration(m.ttl)*reuse.Tick - time.Duration(min(1, m.ttl)))
		case op < 45 && len(running) < 8: // more would leave nothing idle
			h, ok := live()
			ns, prompt := uint64(s.next(8)/7), chain()
			d := &duo{real: x.Pin(h, ns, prompt), model: &modelPath{}, ns: ns}
			if len(prompt) > 0 {
				d.last = prompt[len(prompt)-1]
			}
			if ok {
				d.model = m.pin(h, ns, prompt)
			}
			running = append(running, d)
		case len(running) == 0:
		case op >= 45 && op < 60:
			d, n := running[s.next(len(running))], s.next(30)-2
			x.Grow(&d.real, n)
			m.grow(d.model, n)
		case op >= 60 && op < 65:
			d := running[s.next(len(running))]
			d.model.kind = Content(s.next(Contents))
			x.Answered(&d.real, d.model.kind)
			if got := d.real.Before(); got != d.model.before {
				return fmt.Errorf("step %d: %+v before, want %+v", step, got, d.model.before)
			}
			switch s.next(4) {
			case 0:
				x.Met(&d.real)
				m.met(d.model)
			case 1, 2:
				n := s.next(30) - 1
				x.Missed(&d.real, n)
				m.missed(d.model, n)
			default:
				x.Exceeded(&d.real)
				m.exceeded(d.model)
			}
		case op >= 45 && op < 75:
			d := running[s.next(len(running))]
			x.Confirm(&d.real)
			m.confirm(d.model)
		default:
			i := s.next(len(running))
			d := running[i]
			running = slices.Delete(running, i, i+1)
			ended = append(ended, d)
			served := op%3 > 0
			if s.next(2) > 0 {
				output := d.goOn(&s)
				x.Continue(&d.real, d.ns, output)
				m.goOn(d.model, d.ns, output)
				if err := compare(x, m, recent[:]); err != nil {
					return fmt.Errorf("step %d, going on by %d: %w", step, len(output), err)
				}
				if i := s.next(2 * len(recent)); i < len(recent) && d.model.whole {
					recent[i] = d.model.chain() // a next turn
				}
			}
			if served {
				x.Done(&d.real)
			} else {
				x.Abort(&d.real)
			}
			m.finish(d.model, served)
		}
		if len(ended) > 0 {
			d := ended[s.next(len(ended))]
			x.Abort(&d.real) // whatever ended stays ended
			x.Done(&d.real)
			x.Grow(&d.real, 5)
			x.Continue(&d.real, d.ns, []uint64{1, 2})
			x.Confirm(&d.real)
		}
		if err := compare(x, m, recent[:]); err != nil {
			return fmt.Errorf("step %d, operation %d: %w", step, op, err)
		}
	}
	for _, d := range running {
		x.Abort(&d.real)
		m.finish(d.model, false)
	}
	for h, c := range m.holders {
		if c == nil {
			continue
		}
		if st := x.Stats(Holder(h)); st.Pinned != 0 || st.Generating != 0 {
			return fmt.Errorf("nothing runs, yet %+v", st)
		}
		x.Remove(Holder(h))
	}
	for range 10000 {
		if x.Size().Doomed == 0 {
			break
		}
		x.reapSteps = 32
		x.Forget(x.Add(0))
	}
	if err := x.check(); err != nil {
		return err
	}
	if sz := x.Size(); sz.Nodes != 0 || sz.Spans != 0 || sz.Blocks != 0 {
		return fmt.Errorf("all upstreams are gone, yet %+v", sz)
	}
	return nil
}

func compare(x *Index, m *model, prompts [][]uint64) error {
	if err := x.check(); err != nil {
		return err
	}
	if x.Slots() != len(m.holders) {
		return fmt.Errorf("%d slots, want %d", x.Slots(), len(m.holders))
	}
	for h, c := range m.holders {
		want := Stats{}
		if c != nil {
			want = c.stats()
		}
		if got := x.Stats(Holder(h)); got != want {
			return fmt.Errorf("upstream %d: %+v, want %+v", h, got, want)
		}
	}
	dst, pinned := make([]int32, len(m.holders)), make([]int32, len(m.holders))
	outs := make([]Output, len(m.holders))
	uses := make([]Use, len(m.holders))
	x.Uses(uses)
	for ns := range uint64(2) {
		for i, chain := range prompts {
			x.Match(ns, chain, dst)
			if want := m.match(ns, chain); !slices.Equal(dst, want) {
				return fmt.Errorf("match of %d blocks: %v, want %v", len(chain), dst, want)
			}
			if i != m.clock%len(prompts) {
				continue // one prompt each time is enough for the rest
			}
			x.Find(ns, chain, &Found{Held: dst, Pinned: pinned, Outputs: outs, Fresh: true})
			if want := m.outputs(ns, chain); !slices.Equal(outs, want) {
				return fmt.Errorf("outputs %v behind %v of %d blocks, want %v", outs, m.match(ns, chain), len(chain), want)
			}
			if want := m.matchFresh(ns, chain); !slices.Equal(dst, want) {
				return fmt.Errorf("%v of %d blocks are fresh, want %v", dst, len(chain), want)
			}
			for h, c := range m.holders {
				if c == nil {
					continue
				}
				if want := c.pinnedPart(ns, chain); int(pinned[h]) != want {
					return fmt.Errorf("%d of %d blocks pinned, want %d", pinned[h], len(chain), want)
				}
				if err := comparePrice(x, m, Holder(h), uses[h], Eviction{Pace: &pace.Prior, BlockSize: 16, Namespace: ns, Chain: chain}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// comparePrice compares prices of making room for some more blocks.
func comparePrice(x *Index, m *model, h Holder, use Use, e Eviction) error {
	c := m.holders[h]
	st := c.stats()
	if want := (Use{Capacity: st.Capacity, Running: st.Pinned + st.Generating, Free: st.Capacity - st.Blocks}); use != want {
		return fmt.Errorf("upstream %d: %+v, want %+v", h, use, want)
	}
	spans := 0
	for id := x.slots[h].idleSpans.oldest; id != 0; id = x.spans.at(id).newer {
		spans++
	}
	if spans > priceSteps {
		return nil // the rest is extrapolated
	}
	for _, n := range [...]int{0, 1, 7, use.Free, use.Free + 3, 1000} {
		got, want := x.Price(h, n, &e), m.price(c, n, &e, x.history.Chance)
		if math.Abs(got-want) > 1e-9 {
			return fmt.Errorf("room for %d blocks costs %v, want %v", n, got, want)
		}
	}
	return nil
}

func randomScript(r *rand.Rand, n int) script {
	s := make(script, n)
	for i := range s {
		s[i] = byte(r.Uint32())
	}
	return s
}

func TestIndexAgreesWithTheRulesOnRandomTraffic(t *testing.T) {
	seeds := 30
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		if err := rehearse(randomScript(rand.New(rand.NewPCG(uint64(seed), 7)), 10000)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzIndexAgreesWithTheRules(f *testing.F) {
	for seed := range uint64(8) {
		f.Add([]byte(randomScript(rand.New(rand.NewPCG(seed, 11)), 300)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1000 {
			b = b[:1000]
		}
		if err := rehearse(script(b)); err != nil {
			t.Fatal(err)
		}
	})
}

// Hashes that are no chain at all may match wrongly, but must not break
// anything.
func TestHashesThatAreNoChainLeaveTheIndexConsistent(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		x := unclocked()
		var running []Path
		for range 4 {
			x.Add(r.IntN(50))
		}
		dst := make([]int32, 4)
		for step := range 2000 {
			chain := make([]uint64, r.IntN(12))
			for i := range chain {
				chain[i] = uint64(r.IntN(3))
			}
			x.Match(0, chain, dst)
			p := x.Pin(Holder(r.IntN(5)), 0, chain)
			x.Grow(&p, r.IntN(10))
			running = append(running, p)
			if len(running) > 5 {
				i := r.IntN(len(running))
				if r.IntN(2) == 0 {
					x.Done(&running[i])
				} else {
					x.Abort(&running[i])
				}
				running = slices.Delete(running, i, i+1)
			}
			if r.IntN(100) == 0 {
				x.Forget(Holder(r.IntN(4)))
			}
			if err := x.check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
}
