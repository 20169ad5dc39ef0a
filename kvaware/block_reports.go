// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

// report gives the router the prompts as engines report their blocks. Only tokens
// that are the engine's own match any. Where tenants are told apart, so do only
// prompts with the tenant's salt: other blocks may be another tenant's.
func (rt *routing) report(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request) {
	p := rt.policy
	reports := p.pool.reported()
	if reports == nil || !rt.exact || !rt.request.Reuses || p.IsolateBy != "" && !rt.salted {
		return
	}
	var space [4]int
	sizes := reports.BlockSizes(space[:0])
	if len(sizes) == 0 {
		return
	}
	rt.request.Reports = reports
	// Blocks with images are reported by names that only the engine can make.
	rt.request.Fresh = req.Images+req.Audio+req.Video+req.Files == 0
	rt.request.Reported = rt.reportedSpace[:0]
	for _, size := range sizes {
		chains := rt.request.Chains
		if size != p.BlockSize {
			if len(req.Prompts) > len(chains) || !rt.chainAgain(ctx, rd, req, size) {
				rt.request.Fresh = false
				continue
			}
			chains = make([][]uint64, 0, len(rt.request.Chains))
			for i := range rt.request.Chains {
				chains = append(chains, append([]uint64(nil), req.Prompts[i].Blocks...))
				req.Prompts[i].Blocks = rt.request.Chains[i]
			}
		}
		rt.request.Reported = append(rt.request.Reported, route.ReportedChains{BlockSize: size, Chains: chains})
	}
}

// chainAgain fills the blocks of prompts that were exact with such of another
// size, or reports that it would have to ask an engine for them.
func (rt *routing) chainAgain(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request, blockSize int) bool {
	p := rt.policy
	if p.tokens.remote != nil {
		return p.chainRemembered(rd, req, blockSize)
	}
	return rd.ChainExact(ctx, req, p.tokens.exact, p.encoder(req.Model, rt.keys), blockSize)
}
