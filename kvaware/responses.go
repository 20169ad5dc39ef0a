// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
)

// maxResponses bounds the responses whose upstream is remembered, in each of
// two generations.
const maxResponses = 1 << 15

// responseOwners remembers which upstream made which response of the responses
// API, since only that one can continue or show it. It keeps keyed hashes of
// ids, at least the last maxResponses of them. The zero value is ready.
type responseOwners struct {
	once sync.Once
	seed maphash.Seed

	mu      sync.Mutex // guards what follows
	recent  map[uint64]*upstream
	earlier map[uint64]*upstream // takes the place of an eviction order
}

// key gives the hash of an id; never 0.
func (o *responseOwners) key(id string) uint64 {
	o.once.Do(func() { o.seed = maphash.MakeSeed() })
	return maphash.String(o.seed, id) | 1
}

// remember notes that u made the response.
func (o *responseOwners) remember(key uint64, u *upstream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.recent == nil || len(o.recent) >= maxResponses {
		o.earlier, o.recent = o.recent, make(map[uint64]*upstream)
	}
	o.recent[key] = u
}

// owner gives the upstream that made the response, or nil.
func (o *responseOwners) owner(key uint64) *upstream {
	o.mu.Lock()
	defer o.mu.Unlock()
	if u, ok := o.recent[key]; ok {
		return u
	}
	return o.earlier[key]
}

// namedResponse gives the key of the response that a request reads, cancels or
// deletes by id (`/v1/responses/{id}`, `/v1/responses/{id}/cancel`), or 0.
func (p *Policy) namedResponse(r *http.Request) uint64 {
	_, rest, found := strings.Cut(r.URL.Path, "/responses/")
	if !found {
		return 0
	}
	id, _, _ := strings.Cut(rest, "/")
	if id == "" {
		return 0
	}
	return p.pool.responses.key(id)
}
