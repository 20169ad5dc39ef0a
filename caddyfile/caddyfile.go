// SPDX-License-Identifier: Apache-2.0

// Package caddyfile reads the options of a Caddyfile block into typed fields,
// so that every option of every module of this plugin answers a mistake in the
// same words, with the file and the line.
//
// A module lists its options, and the list is its grammar:
//
//	func (m *Module) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
//		d.Next() // the module's own name
//		return kvcaddyfile.Block(d,
//			kvcaddyfile.Option{Name: "block_size", Read: kvcaddyfile.Int(&m.BlockSize, 1, 4096)},
//			kvcaddyfile.Option{Name: "max_body", Read: kvcaddyfile.Size(&m.MaxBody, 1)},
//		)
//	}
//
// The package knows Caddyfile text and nothing of the modules that use it. The
// UnmarshalCaddyfile methods cannot live here: Go wants them beside their types,
// and those packages import this one.
//
// # Placeholders
//
// Caddy expands {$VAR} before any option is read, so it works in every value.
// A runtime placeholder such as {env.VAR} has no value yet at this time: it is
// kept as it is by [String] and [Strings], for the module to replace when it is
// provisioned, and refused by the readers of numbers, sizes and durations with
// an error that says to write {$VAR}.
package caddyfile

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Reader reads one option. It is called with the dispenser on the option's
// name, and leaves it on the option's last token. The name is how errors call
// the option: within a sub-block it has the outer option's name before it.
type Reader func(d *caddyfile.Dispenser, name string) error

// Option is one option that a block knows.
type Option struct {
	Name string
	Read Reader
	Many bool // it may be given more than once
}

// Block reads the block that may follow the current token, a directive or
// module name without arguments. The block may be absent or empty. Each option
// may be given once, unless it says otherwise.
func Block(d *caddyfile.Dispenser, options ...Option) error {
	owner := d.Val()
	if d.NextArg() {
		if len(options) == 0 {
			return d.Errf("%s has no options: unexpected argument %s", owner, shown(d.Val()))
		}
		return d.Errf("%s takes its options in a block, one a line: unexpected argument %s", owner, shown(d.Val()))
	}
	return readOptions(d, owner, "", options)
}

// Sub reads an option that is itself a block of options, which may not be
// absent.
func Sub(options ...Option) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		if d.NextArg() {
			return d.Errf("%s takes a block with %s, one a line: unexpected argument %s", name, names(options), shown(d.Val()))
		}
		if !opensBlock(d) {
			return d.Errf("%s needs a block with %s, one a line", name, names(options))
		}
		return readOptions(d, name, name+" ", options)
	}
}

// Tail reads the block of options that may follow an option's arguments, which
// have been taken.
func Tail(options ...Option) Reader {
	return func(d *caddyfile.Dispenser, name string) error {
		return readOptions(d, name, name+" ", options)
	}
}

// readOptions reads a block, if one opens on this line. Prefix goes before the
// options' names in errors.
func readOptions(d *caddyfile.Dispenser, owner, prefix string, options []Option) error {
	first := make(map[string]string, len(options)) // option → where it was first given
	nesting := d.Nesting()
	for d.NextBlock(nesting) {
		option, known := find(options, d.Val())
		if !known {
			return unknown(d, owner, options)
		}
		name := prefix + option.Name
		if at, twice := first[option.Name]; twice && !option.Many {
			return d.Errf("%s is given twice, first at %s: keep one of them", name, at)
		}
		first[option.Name] = fmt.Sprintf("%s:%d", d.File(), d.Line())
		if err := option.Read(d, name); err != nil {
			return err
		}
	}
	if d.Nesting() != nesting {
		return d.Errf("the block of %s is not closed: expecting '}'", owner)
	}
	return nil
}

// argument loads the one argument of an option, and refuses more of them or a
// block. Want says in a few words what is wanted, with an example.
func argument(d *caddyfile.Dispenser, name, want string) (string, error) {
	if !d.NextArg() {
		return "", d.Errf("%s has no value: expecting %s", name, want)
	}
	value := d.Val()
	return value, noMore(d, name, want)
}

// noMore refuses what follows a complete option on its line.
func noMore(d *caddyfile.Dispenser, name, want string) error {
	if d.NextArg() {
		return d.Errf("%s takes %s: unexpected argument %s", name, want, shown(d.Val()))
	}
	if opensBlock(d) {
		return d.Errf("%s takes %s, and no block", name, want)
	}
	return nil
}

// opensBlock tells whether a block opens behind the current token. It must be
// asked only where NextArg said that no argument is left.
func opensBlock(d *caddyfile.Dispenser) bool {
	if d.NextLine() {
		d.Prev()
		return false
	}
	// What stands on the same line and is no argument is an opening brace.
	if d.Next() {
		d.Prev()
		return true
	}
	return false
}

// bad is the error for a value that cannot be used.
func bad(d *caddyfile.Dispenser, name, value, want string) error {
	if strings.Contains(value, "{") {
		return d.Errf("%s: the placeholder %s has no value when the Caddyfile is read: write {$VAR} for an environment variable, or %s",
			name, shown(value), want)
	}
	return d.Errf("%s: bad value %s: expecting %s", name, shown(value), want)
}

// unknown is the error for an option that the block does not know.
func unknown(d *caddyfile.Dispenser, owner string, options []Option) error {
	if d.Val() == "{" { // left by a reader that looks for no block
		return d.Errf("%s: unexpected '{': the option before it takes no block", owner)
	}
	if len(options) == 0 {
		return d.Errf("%s has no options: unexpected %s", owner, shown(d.Val()))
	}
	hint := ""
	if near, ok := nearest(d.Val(), options); ok {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return d.Errf("%s has no option %s%s: its options are %s", owner, shown(d.Val()), hint, names(options))
}

func find(options []Option, name string) (Option, bool) {
	for _, o := range options {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}

func names(options []Option) string {
	all := make([]string, len(options))
	for i, o := range options {
		all[i] = o.Name
	}
	return strings.Join(all, ", ")
}

// shown quotes a piece of the Caddyfile for an error. A token can be as long as
// the file (a heredoc, a forgotten quote); an error line should not be.
func shown(value string) string {
	const most = 64
	if len(value) <= most {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%q…", value[:most])
}
