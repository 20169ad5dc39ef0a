// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"slices"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

func TestWhoSeesEveryTokenInRealitySeesItHere(t *testing.T) {
	see := []string{"dynamo", "dynamo_out", "dynamo_lmetric", "lmetric", "aibrix_token_load"}
	for _, s := range All() {
		_, ok := s.New(replay.Setting{BlockSize: 16, Rand: seeded(1)}).(replay.Streamer)
		if ok != slices.Contains(see, s.Name) {
			t.Errorf("%s sees the tokens of answers that are not streamed: %v", s.Name, ok)
		}
	}
}
