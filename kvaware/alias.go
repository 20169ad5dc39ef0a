// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// modelAliases are the other names of models, by alias.
type modelAliases map[string]string

// aliasesOf turns names with their aliases around. The description says the same
// of equal aliases, in whatever order they were given.
func aliasesOf(repl *caddy.Replacer, names map[string][]string) (aliases modelAliases, described string, err error) {
	aliases = make(modelAliases)
	lines := make([]string, 0, len(names))
	models := make(map[string]bool, len(names))
	for name, others := range names {
		if err := replaceKnown(repl, "model_alias", &name); err != nil {
			return nil, "", err
		}
		switch {
		case name == "":
			return nil, "", fmt.Errorf("model_alias: aliases of a model without a name: give the name that stands for all")
		case models[name]:
			return nil, "", fmt.Errorf("model_alias %q is given twice: give all its aliases at once", name)
		case len(others) == 0:
			return nil, "", fmt.Errorf("model_alias %q: no alias is given", name)
		}
		models[name] = true
		others = slices.Clone(others)
		for i := range others {
			if err := replaceKnown(repl, "model_alias", &others[i]); err != nil {
				return nil, "", err
			}
			if another, known := aliases[others[i]]; known && another != name {
				return nil, "", fmt.Errorf("model_alias: %q is an alias of both %q and %q", others[i], min(name, another), max(name, another))
			}
			aliases[others[i]] = name
		}
		slices.Sort(others)
		lines = append(lines, fmt.Sprintf("%q for %q", slices.Compact(others), name))
	}
	for alias, name := range aliases {
		if models[alias] {
			return nil, "", fmt.Errorf("model_alias: %q is an alias of %q and has aliases itself: give them all to one name", alias, name)
		}
	}
	slices.Sort(lines)
	return aliases, strings.Join(lines, ", "), nil
}

// readModelAlias reads `model_alias <name> <alias...>`, which may be given for
// several models.
func (p *Policy) readModelAlias(d *caddyfile.Dispenser, name string) error {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return d.Errf("%s takes a model's name and one or more aliases of it: %d values are given", name, len(args))
	}
	if _, twice := p.ModelAlias[args[0]]; twice {
		return d.Errf("%s %q is given twice: give all its aliases on one line", name, args[0])
	}
	if p.ModelAlias == nil {
		p.ModelAlias = make(map[string][]string)
	}
	p.ModelAlias[args[0]] = args[1:]
	return nil
}
