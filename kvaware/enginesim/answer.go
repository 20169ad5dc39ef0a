// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/binary"
	"strings"
)

// words are what answers are made of. All have three letters, so that each with
// the space behind it is a token.
var words = strings.Fields(`
	sun sea oak fog ice elm bay fen dew ash log bee owl fox elk cod eel hen jay
	ant bat cat dog yak emu gnu ram sow hay rye oat fig pea nut yam jam pie bun
	tea cup pan pot jar lid keg urn map pen ink pad box bag net rod oar
	arc orb hub rim cog cam fin`)

// answer is an invented one: what follows from a seed.
type answer struct {
	seed   uint64
	tokens int
	stops  bool // its last token is the invisible one that ends it
}

// invent decides how long an answer is. It never exceeds room, the tokens that are
// left for it.
func invent(c *call, seed uint64, mean, room int) answer {
	natural := max(2, mean/4+int(mix(seed, 0)%uint64(mean*3/2+1)), c.minTokens)
	limit := room
	if c.maxTokens > 0 {
		limit = min(limit, c.maxTokens)
	}
	if c.ignoreEOS || natural > limit {
		return answer{seed, limit, false}
	}
	return answer{seed, natural, true}
}

// token returns the i-th token.
func (a answer) token(i int) uint32 {
	if a.stops && i == a.tokens-1 {
		return tokenEnd
	}
	text := a.text(i)
	return binary.LittleEndian.Uint32([]byte(text))
}

// text returns what the i-th token shows: 4 bytes of ASCII, or nothing.
func (a answer) text(i int) string {
	if a.stops && i == a.tokens-1 {
		return ""
	}
	word := words[mix(a.seed, uint64(i)+1)%uint64(len(words))]
	if i == 0 {
		word = strings.ToUpper(word[:1]) + word[1:]
	}
	if a.stops && i == a.tokens-2 {
		return word + "."
	}
	return word + " "
}

func (a answer) reason() int {
	if a.stops {
		return finishStop
	}
	return finishLength
}

// mix spreads a pair over 64 bits (the finaliser of splitmix64).
func mix(a, b uint64) uint64 {
	x := a + (b+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
