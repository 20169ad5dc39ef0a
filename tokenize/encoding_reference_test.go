// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pkoukk/tiktoken-go"
	ranks "github.com/pkoukk/tiktoken-go-loader"
)

// reference returns tiktoken-go's encoder of that name.
func reference(t testing.TB, name string) *tiktoken.Tiktoken {
	t.Helper()
	useEmbeddedRanks()
	r, err := tiktoken.GetEncoding(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var useEmbeddedRanks = sync.OnceFunc(func() { tiktoken.SetBpeLoader(ranks.NewOfflineLoader()) })

func FuzzEncodeAgainstTiktokenGo(f *testing.F) {
	g := goldenOf(f)
	for _, fragment := range g.Fragments {
		f.Add(fragment + "a" + fragment + " " + fragment + fragment)
	}
	c := chance(6)
	for range 200 {
		f.Add(fuzzedText(&c, g.Fragments))
	}
	for _, name := range []string{"english.txt", "european.txt", "code.txt", "json.txt", "cjk.txt", "controls.txt"} {
		f.Add(string(corpus(f, name)))
	}
	names := []string{"cl100k_base", "o200k_base"}
	references := []*tiktoken.Tiktoken{reference(f, names[0]), reference(f, names[1])}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "\ufffd")
		if len(text) > 5000 {
			t.Skip("tiktoken-go is quadratic")
		}
		for _, r := range text {
			for _, later := range laterRanges {
				if later.lo <= r && r <= later.hi {
					t.Skip("tiktoken-go has the tables of Unicode 15.0")
				}
			}
		}
		for i, name := range names {
			if name == "o200k_base" && strings.Contains(text, "'\u017f") {
				continue // tiktoken-go does not take it for a contraction; tiktoken does
			}
			var want []uint32
			for _, id := range references[i].EncodeOrdinary(text) {
				want = append(want, uint32(id))
			}
			if got := encodingOf(t, name).Append(nil, []byte(text)); !slices.Equal(got, want) {
				t.Errorf("%s of %q:\n got %v\nwant %v", name, text, got, want)
			}
		}
	})
}
