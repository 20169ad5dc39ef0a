// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Buckets are of microseconds: exact below 8, from there on eight to each power of
// two, so that the middle of one is off by at most 1/16 (as in HdrHistogram). The
// last one takes all from about 18 minutes on.
const (
	octaves = 30 - 3
	buckets = (octaves + 1) * 8
)

func bucketOf(d time.Duration) int {
	us := uint64(max(0, d/time.Microsecond))
	if us < 8 {
		return int(us)
	}
	exponent := bits.Len64(us) - 4
	return min(exponent*8+int(us>>exponent), buckets-1)
}

// middle is the time that a bucket stands for.
func middle(bucket int) time.Duration {
	if bucket < 8 {
		return time.Duration(bucket) * time.Microsecond
	}
	exponent := bucket/8 - 1
	from := uint64(bucket%8+8) << exponent
	return time.Duration(from+(uint64(1)<<exponent)/2) * time.Microsecond
}

const (
	quarters = 4
	quarter  = Window / quarters
)

// Sketch is the distribution of times of the last minute: of three to four
// quarters of it. It takes memory with its first time. The zero value is ready.
type Sketch struct {
	mu       sync.Mutex // held while an old quarter is cleared
	quarters atomic.Pointer[[quarters]part]
}

type part struct {
	number atomic.Int64 // from 1 on
	counts [buckets]atomic.Uint32
}

func (s *Sketch) add(now, d time.Duration) {
	n := int64(now/quarter) + 1
	parts := s.quarters.Load()
	if parts == nil || parts[n%quarters].number.Load() != n {
		parts = s.turn(n)
	}
	parts[n%quarters].counts[bucketOf(d)].Add(1)
}

// turn makes room for a new quarter.
func (s *Sketch) turn(n int64) *[quarters]part {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := s.quarters.Load()
	if parts == nil {
		parts = new([quarters]part)
		s.quarters.Store(parts)
	}
	if p := &parts[n%quarters]; p.number.Load() < n {
		for i := range p.counts {
			p.counts[i].Store(0)
		}
		p.number.Store(n)
	}
	return parts
}

func (s *Sketch) addTo(d *Distribution, now time.Duration) {
	parts := s.quarters.Load()
	if parts == nil {
		return
	}
	oldest := int64(now/quarter) + 1 - quarters
	for i := range parts {
		if parts[i].number.Load() <= max(0, oldest) {
			continue
		}
		for b := range parts[i].counts {
			n := parts[i].counts[b].Load()
			d.counts[b] += n
			d.n += int64(n)
		}
	}
}

// Distribution is the sum of sketches at one time.
type Distribution struct {
	n      int64
	counts [buckets]uint32
}

// Count is how many times there are.
func (d *Distribution) Count() int64 { return d.n }

// Quantile gives the nearest-rank quantile at a share from 0 to 1; 0 if there is
// nothing.
func (d *Distribution) Quantile(share float64) time.Duration {
	if d.n == 0 {
		return 0
	}
	rank := min(max(int64(share*float64(d.n)+0.999999), 1), d.n)
	var seen int64
	for b, n := range d.counts {
		if seen += int64(n); seen >= rank {
			return middle(b)
		}
	}
	return 0
}
