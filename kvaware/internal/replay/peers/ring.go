// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// ring is a consistent hash ring with several points for each replica.
type ring struct {
	each    int // points per replica
	members []int
	points  []point
}

type point struct {
	at      uint64
	replica int
}

// place makes the ring that of the replicas in up.
func (r *ring) place(up []int) {
	if slices.Equal(r.members, up) {
		return
	}
	r.members = append(r.members[:0], up...)
	r.points = r.points[:0]
	for _, i := range up {
		for k := range r.each {
			r.points = append(r.points, point{mix(mix(uint64(i)) + uint64(k)), i})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.replica, b.replica))
	})
}

// search returns the position of the first point at or after the key's place.
func (r *ring) search(key uint64) int {
	i, _ := slices.BinarySearchFunc(r.points, mix(key), func(p point, at uint64) int { return cmp.Compare(p.at, at) })
	return i % len(r.points)
}

// mix is the finalizer of SplitMix64: neighbouring keys become far apart.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sessionHash is Ray Serve's ConsistentHashRouter: a session's requests go to its
// place on the ring, whatever is there.
//
// Source: ray:doc/source/serve/llm (ConsistentHashRouter, x-session-id). The
// number of points per replica is not documented; 100 is usual.
type sessionHash struct {
	base
	ring ring
}

func newSessionHash(s replay.Setting) replay.Policy {
	return &sessionHash{base: newBase(s), ring: ring{each: 100}}
}

func (p *sessionHash) Route(_ time.Duration, r *replay.Request, up []int) int {
	if r.Session == 0 {
		return up[p.rand.IntN(len(up))]
	}
	p.ring.place(up)
	return p.ring.points[p.ring.search(r.Session)].replica
}

// boundedHash is consistent hashing with bounded loads: from the prefix's place on
// the ring on, the first replica with at most 1.25 times the mean load.
//
// Source: kubeai:internal/loadbalancer/balance_chwbl.go; defaults of
// kubeai:api/k8s/v1/model_types.go: 125 %, 256 points, 100 characters. Of a chat
// KubeAI takes the characters of the user's first message, which tells
// conversations apart but for their system prompt: a request that names its session
// has that for them. Of other prompts it is the block that holds the 25th token; a
// prompt without it has a place of its own.
type boundedHash struct {
	base
	ring  ring
	total int
}

const (
	boundedFactor = 1.25
	boundedPrefix = 100 / charsPerToken
)

func newBoundedHash(s replay.Setting) replay.Policy {
	return &boundedHash{base: newBase(s), ring: ring{each: 256}}
}

func (p *boundedHash) Route(_ time.Duration, r *replay.Request, up []int) int {
	p.fleet(up)
	p.ring.place(up)
	var key uint64
	switch k := (boundedPrefix - 1) / p.block; {
	case r.Session != 0:
		key = r.Session
	case k < len(r.Blocks):
		key = r.Blocks[k]
	default:
		key = p.rand.Uint64()
	}
	at := p.ring.search(key)
	chosen := p.ring.points[at].replica
	if p.total > 0 {
		bound := boundedFactor * float64(p.total+1) / float64(len(up))
		for k := range p.ring.points {
			i := p.ring.points[(at+k)%len(p.ring.points)].replica
			if float64(p.running[i]) <= bound {
				chosen = i
				break
			}
		}
	}
	p.sent(chosen)
	p.total++
	return chosen
}

func (p *boundedHash) Ended(now time.Duration, r *replay.Request, replica int, o replay.Outcome, u replay.Usage) {
	p.base.Ended(now, r, replica, o, u)
	p.total = max(p.total-1, 0)
}
