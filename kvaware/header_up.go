// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"golang.org/x/net/http/httpguts"

	kvcaddyfile "github.com/kvaware/caddy-kvaware/caddyfile"
)

// headerUp reads `header_up <name> <value>`, which may be given again for another.
func headerUp(dst *http.Header) kvcaddyfile.Option {
	return kvcaddyfile.Option{Name: "header_up", Many: true, Read: func(d *caddyfile.Dispenser, name string) error {
		var field []string
		if err := kvcaddyfile.Strings(&field)(d, name); err != nil {
			return err
		}
		if len(field) != 2 {
			return d.Errf("%s takes the name of a header and its value: %d values are given", name, len(field))
		}
		if *dst == nil {
			*dst = make(http.Header)
		}
		dst.Add(field[0], field[1])
		return nil
	}}
}

// replacedHeader gives headers with placeholders replaced. Values are left out of
// errors, since they may be keys.
func replacedHeader(repl *caddy.Replacer, given http.Header) (http.Header, error) {
	header := make(http.Header, len(given))
	for name, values := range given {
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, fmt.Errorf("headers: %q is no name of a header", name)
		}
		for _, value := range values {
			value, err := repl.ReplaceOrErr(value, true, true)
			switch {
			case err != nil:
				return nil, fmt.Errorf("headers: %s: %w: only global placeholders such as {env.NAME} that have a value can be used", name, err)
			case !httpguts.ValidHeaderFieldValue(value):
				return nil, fmt.Errorf("headers: %s has bytes that no header may have", name)
			}
			header.Add(name, value)
		}
	}
	return header, nil
}

// describeHeader tells headers apart by name and keyed hash, as this is logged.
func describeHeader(header http.Header) (s string) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		s += fmt.Sprintf(", header %s (%08x)", name, uint32(maphash.String(tokenizerSeed, strings.Join(header[name], "\n"))))
	}
	return s
}
