// SPDX-License-Identifier: Apache-2.0

package caddyfile

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// FuzzCaddyfile gives the readers any tokens at all. Whatever they are, reading
// ends without a panic, an error names the block or one of its options and says
// where, and what was accepted is within the options' bounds.
func FuzzCaddyfile(f *testing.F) {
	for _, seed := range []string{
		"",
		"kv_aware",
		"kv_aware {\n}",
		"kv_aware {\n name a\n labels a b\n loud\n block_size 16\n max_body 16MiB\n idle 5m\n}",
		"kv_aware {\n weights {\n  prefill 1\n  decode 0.5\n }\n}",
		"kv_aware {\n fallback parrot a {\n  times 3\n }\n block_size 1\n}",
		"kv_aware {\n block_size {env.X}\n}",
		"kv_aware {\n name {\n }\n}",
		"kv_aware { name a",
		"kv_aware {\n weights {\n",
		"kv_aware {\n fallback parrot {\n {\n",
		"kv_aware {\n {\n }\n}",
		"kv_aware {\n name \"a\nb\" }\n}",
		"kv_aware {\n max_body 1e99EiB\n idle 99999999d\n weights {\n prefill 0x1p-2\n }\n}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		tokens, err := caddyfile.Tokenize(input, "Fuzzfile")
		if err != nil {
			return
		}
		var s settings
		d := caddyfile.NewDispenser(tokens)
		d.Next()
		owner := d.Val()
		options := s.options()
		err = Block(d, options...)
		if err != nil {
			if !strings.Contains(err.Error(), ", at ") {
				t.Errorf("no place in %q", err)
			}
			if !strings.Contains(err.Error(), owner) && !namesAny(err.Error(), options) {
				t.Errorf("neither %q nor an option in %q", owner, err)
			}
			return
		}
		if s.Blocks < 0 || s.Blocks > 4096 || s.Tokens < 0 || s.Body < 0 {
			t.Errorf("out of bounds: %+v", s)
		}
		if s.Idle != 0 && time.Duration(s.Idle) < time.Second {
			t.Errorf("idle is %v", time.Duration(s.Idle))
		}
		for _, w := range []*float64{s.Prefill, s.Decode} {
			if w != nil && (!(*w >= 0) || math.IsInf(*w, 0)) {
				t.Errorf("weight is %v", *w)
			}
		}
	})
}

func namesAny(text string, options []Option) bool {
	for _, o := range options {
		if strings.Contains(text, o.Name) {
			return true
		}
	}
	return false
}
