// SPDX-License-Identifier: Apache-2.0

package caddyfile

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// String reads one argument that is not empty, placeholders left as they are.
func String(dst *string) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, "one value")
		if err != nil {
			return err
		}
		if value == "" {
			return bad(d, name, value, "one that is not empty")
		}
		*dst = value
		return nil
	}
}

// Secret reads one argument of at least so many bytes, placeholders left as they
// are. Its errors quote nothing of the line.
func Secret(dst *string, least int) Reader {
	want := fmt.Sprintf("one secret of at least %d bytes, or a placeholder such as {env.NAME} or {file./path} that has one", least)
	return func(d *caddyfile.Dispenser, name string) error {
		if !d.NextArg() {
			return d.Errf("%s has no value: expecting %s", name, want)
		}
		value := d.Val()
		switch {
		case d.CountRemainingArgs() > 0:
			return d.Errf("%s takes %s: more follows on its line", name, want)
		case opensBlock(d):
			return d.Errf("%s takes %s, and no block", name, want)
		case len(value) < least && !strings.Contains(value, "{"):
			return d.Errf("%s: %d bytes are too few: expecting %s", name, len(value), want)
		}
		*dst = value
		return nil
	}
}

// OneOf reads one argument that is among the given ones.
func OneOf(dst *string, values ...string) Reader {
	want := strings.Join(values, " or ")
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, want)
		if err != nil {
			return err
		}
		if !slices.Contains(values, value) {
			return bad(d, name, value, want)
		}
		*dst = value
		return nil
	}
}

// Strings reads one or more arguments, placeholders left as they are.
func Strings(dst *[]string) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		const want = "one or more values"
		values := d.RemainingArgs()
		if len(values) == 0 {
			return d.Errf("%s has no value: expecting %s", name, want)
		}
		if err := noMore(d, name, want); err != nil {
			return err
		}
		*dst = values
		return nil
	}
}

// Flag reads an option without arguments: to give it is to switch it on.
func Flag(dst *bool) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		if err := noMore(d, name, "no value, it is on when it is given"); err != nil {
			return err
		}
		*dst = true
		return nil
	}
}

// Int reads a whole number within [least, most].
func Int[T ~int | ~int64](dst *T, least, most T) Reader {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, want)
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return bad(d, name, value, want)
		}
		*dst = T(n)
		return nil
	}
}

// Float reads a number within [least, most]. The field is a pointer, so that 0
// can be told from an option that was not given.
func Float(dst **float64, least, most float64) Reader {
	plain := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	want := "a number of at least " + plain(least)
	if most < math.MaxFloat64 {
		want = "a number from " + plain(least) + " to " + plain(most)
	}
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, want)
		if err != nil {
			return err
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil || !(f >= least && f <= most) { // NaN passes no comparison
			return bad(d, name, value, want)
		}
		*dst = &f
		return nil
	}
}

// Size reads a number of bytes within [least, most], with or without a unit
// (16MiB, 1GB, 65536).
func Size[T ~int | ~int64](dst *T, least, most T) Reader {
	want := fmt.Sprintf("a size from %s to %s, such as 16MiB", sized(least), sized(most))
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, want)
		if err != nil {
			return err
		}
		n, err := humanize.ParseBytes(value)
		if err != nil || n > math.MaxInt64 || int64(n) < int64(least) || int64(n) > int64(most) {
			return bad(d, name, value, want)
		}
		*dst = T(n)
		return nil
	}
}

func sized[T ~int | ~int64](n T) string {
	return strings.ReplaceAll(strings.Replace(humanize.IBytes(uint64(n)), ".0", "", 1), " ", "")
}

// Duration reads a duration of at least the given one (30s, 5m, 1d).
func Duration(dst *caddy.Duration, least time.Duration) Reader {
	want := "a duration such as 30s or 5m"
	if least > 0 {
		want += fmt.Sprintf(" of at least %v", least)
	}
	return func(d *caddyfile.Dispenser, name string) error {
		value, err := argument(d, name, want)
		if err != nil {
			return err
		}
		dur, err := caddy.ParseDuration(value)
		if err != nil || dur < least {
			return bad(d, name, value, want)
		}
		*dst = caddy.Duration(dur)
		return nil
	}
}

// Module reads a module of the namespace, named by the first argument, and all
// that belongs to it on the line and in a block; it is stored as JSON with its
// name under the inline key. T is the interface that the module must have.
func Module[T any](dst *json.RawMessage, namespace, inlineKey string) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		if !d.NextArg() {
			return d.Errf("%s has no value: expecting the name of a module of %s", name, namespace)
		}
		module := d.Val()
		if _, err := caddy.GetModule(namespace + "." + module); err != nil {
			return d.Errf("%s: no module %s in %s", name, shown(module), namespace)
		}
		unm, err := caddyfile.UnmarshalModule(d, namespace+"."+module)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, ok := unm.(T); !ok {
			return d.Errf("%s: module %s.%s (%T) cannot be used here", name, namespace, module, unm)
		}
		var warnings []caddyconfig.Warning
		raw := caddyconfig.JSONModuleObject(unm, inlineKey, module, &warnings)
		if len(warnings) > 0 {
			return d.Errf("%s: module %s.%s: %s", name, namespace, module, warnings[0].Message)
		}
		*dst = raw
		return nil
	}
}
