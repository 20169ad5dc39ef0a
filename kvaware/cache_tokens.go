// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
)

// CacheTokens is a number of tokens, or `auto`.
type CacheTokens int64

// AutoCacheTokens stands for `auto`.
const AutoCacheTokens CacheTokens = -1

const cacheTokensAuto = "auto"

// MarshalJSON writes a number, or "auto".
func (c CacheTokens) MarshalJSON() ([]byte, error) {
	if c == AutoCacheTokens {
		return json.Marshal(cacheTokensAuto)
	}
	return json.Marshal(int64(c))
}

// UnmarshalJSON reads a number, or "auto".
func (c *CacheTokens) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte(`"`+cacheTokensAuto+`"`)) {
		*c = AutoCacheTokens
		return nil
	}
	var tokens int64
	if err := json.Unmarshal(data, &tokens); err != nil || tokens < 0 {
		return fmt.Errorf("cache_tokens %s: expecting a number of tokens, or \"auto\"", data)
	}
	*c = CacheTokens(tokens)
	return nil
}

// read reads `cache_tokens <tokens>` and `cache_tokens auto`.
func (c *CacheTokens) read(d *caddyfile.Dispenser, name string) error {
	if next := *d; next.NextArg() && next.Val() == cacheTokensAuto && !next.NextArg() {
		d.NextArg()
		*c = AutoCacheTokens
		return nil
	}
	return kvcaddyfile.Int(c, 1, maxCacheTokens)(d, name)
}
