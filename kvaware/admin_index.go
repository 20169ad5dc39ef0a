// SPDX-License-Identifier: Apache-2.0

package kvaware

import "net/http"

// indexState is the answer to GET /kv_aware/index.
type indexState struct {
	Pools []poolIndex `json:"pools"`
	// Whether there are more upstreams than are listed.
	Truncated bool `json:"truncated"`
}

// poolIndex is the index of one pool. The sizes include what was forgotten and
// is not freed yet.
type poolIndex struct {
	Pool      string          `json:"pool"`
	Tokenizer string          `json:"tokenizer"`    // its kind and what it needs
	BlockSize int             `json:"block_size"`   // tokens
	Cache     int64           `json:"cache_tokens"` // of each upstream
	Nodes     int             `json:"nodes"`
	Spans     int             `json:"spans"`
	Blocks    int             `json:"blocks"` // different ones
	Bytes     int             `json:"bytes"`
	Known     int             `json:"upstreams_total"`
	Upstreams []upstreamIndex `json:"upstreams"`
}

// upstreamIndex is what an upstream is believed to hold, in blocks.
type upstreamIndex struct {
	Address    string `json:"address"`
	Capacity   int    `json:"capacity"`
	Held       int    `json:"held"`       // the four below
	Pinned     int    `json:"pinned"`     // prompts of running requests
	Idle       int    `json:"idle"`       // prompts of finished requests
	Generating int    `json:"generating"` // output of running requests
	Output     int    `json:"output"`     // output of finished requests
	Evicted    uint64 `json:"evicted_total"`
}

// showIndex answers GET /kv_aware/index[?pool=][&limit=]. Limit bounds the
// upstreams that are listed, all pools together: 0 to 10000, 1000 unless given.
func showIndex(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	left, err := limitAsked(query)
	if err != nil {
		return nil, err
	}
	views, err := poolsAsked(query)
	if err != nil {
		return nil, err
	}
	state := indexState{Pools: []poolIndex{}}
	for _, v := range views {
		size := v.pool.index.Size()
		pi := poolIndex{
			Pool:      v.pool.name,
			Tokenizer: v.params.tokenizer,
			BlockSize: v.params.blockSize,
			Cache:     v.params.cacheTokens,
			Nodes:     size.Nodes,
			Spans:     size.Spans,
			Blocks:    size.Blocks,
			Bytes:     size.Bytes,
			Known:     len(v.upstreams),
			Upstreams: []upstreamIndex{},
		}
		for _, u := range v.upstreams {
			if left == 0 {
				state.Truncated = true
				break
			}
			if _, held, ok := v.pool.state(u.upstream); ok {
				left--
				pi.Upstreams = append(pi.Upstreams, upstreamIndex{
					u.address, held.Capacity, held.Blocks,
					held.Pinned, held.Idle, held.Generating, held.Output, held.Evicted,
				})
			}
		}
		state.Pools = append(state.Pools, pi)
	}
	return state, nil
}

// forgotten is the answer to DELETE /kv_aware/index.
type forgotten struct {
	Upstreams int   `json:"upstreams"`
	Blocks    int   `json:"blocks"`
	Tokens    int64 `json:"tokens"`
}

// forgetIndex answers DELETE /kv_aware/index[?pool=][&address=]. Requests that
// are running go on; only their prompts are not believed cached any more.
func forgetIndex(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	views, err := poolsAsked(query)
	if err != nil {
		return nil, err
	}
	var sum forgotten
	for _, v := range views {
		for _, u := range v.upstreams {
			if query.Has("address") && u.address != query.Get("address") {
				continue
			}
			if blocks, ok := v.pool.invalidate(u.upstream, withdrawnByAdmin); ok {
				sum.Upstreams++
				sum.Blocks += blocks
				sum.Tokens += v.tokens(blocks)
			}
		}
	}
	if query.Has("address") && sum.Upstreams == 0 {
		return nil, refuse(http.StatusNotFound, "no upstream of that address: GET /kv_aware/upstreams lists them")
	}
	return sum, nil
}
