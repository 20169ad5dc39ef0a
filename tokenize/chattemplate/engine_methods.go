// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// methodFunctions are Python's methods of strings and dicts; the receiver is
// the first argument.
var methodFunctions = map[string]engineFunc{
	"strip": func(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
		return stripMethod(args, kwargs, 3)
	},
	"lstrip": func(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
		return stripMethod(args, kwargs, 1)
	},
	"rstrip": func(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
		return stripMethod(args, kwargs, 2)
	},
	"upper": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return casedMethod(args, strings.ToUpper)
	},
	"lower": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return casedMethod(args, strings.ToLower)
	},
	"capitalize": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return casedMethod(args, capitalized)
	},
	"split": split,
	"startswith": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return affix(args, strings.HasPrefix)
	},
	"endswith": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return affix(args, strings.HasSuffix)
	},
	"replace": replaceMethod,
	"find":    find,
	"format":  format,
	"join":    joinMethod,
	"items":   items,
	"keys":    keys,
	"values":  values,
	"get":     get,

	// What changes a list or a dict is forbidden in the sandbox of transformers.
	"append": forbidden, "extend": forbidden, "insert": forbidden, "remove": forbidden,
	"pop": forbidden, "popitem": forbidden, "clear": forbidden, "sort": forbidden,
	"reverse": forbidden, "update": forbidden, "setdefault": forbidden,
	// Not reproduced.
	"title": notReproduced, "count": notReproduced,
}

func forbidden(*run, engineArgs, engineKwargs) (jinja.Value, error) {
	return jinja.Value{}, fail(ReasonTemplate, "a method that changes its object")
}

func notReproduced(*run, engineArgs, engineKwargs) (jinja.Value, error) {
	return jinja.Value{}, fail(ReasonUnsupported, "a method of strings")
}

// strip removes white space, or the characters given, from the sides that are
// set in sides: 1 left, 2 right.
func strip(args engineArgs, kwargs engineKwargs, sides int) (jinja.Value, error) {
	s, err := text(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	cut := isSpace
	if v, ok := argument(args, kwargs, 1, "chars"); ok && !v.IsNone() {
		if !v.IsString() {
			return jinja.Value{}, errArguments
		}
		chars := v.AsString()
		cut = func(r rune) bool { return strings.ContainsRune(chars, r) }
	}
	if sides&1 != 0 {
		s = strings.TrimLeftFunc(s, cut)
	}
	if sides&2 != 0 {
		s = strings.TrimRightFunc(s, cut)
	}
	return jinja.NewString(s), nil
}

func stripMethod(args engineArgs, kwargs engineKwargs, sides int) (jinja.Value, error) {
	if _, err := stringArg(args, 0); err != nil {
		return jinja.Value{}, err
	}
	return strip(args, kwargs, sides)
}

// cased changes case. Python maps some characters to several, Go to one.
func cased(args engineArgs, change func(string) string) (jinja.Value, error) {
	s, err := text(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	for _, c := range s {
		if c <= 0xff && c != 0xdf {
			continue
		}
		if unicode.In(c, unicode.Ll, unicode.Lu, unicode.Lt, unicode.Mn) || unicode.ToUpper(c) != c || unicode.ToLower(c) != c {
			return jinja.Value{}, fail(ReasonUnsupported, "case of text beyond Latin-1")
		}
	}
	return jinja.NewString(change(s)), nil
}

func casedMethod(args engineArgs, change func(string) string) (jinja.Value, error) {
	if _, err := stringArg(args, 0); err != nil {
		return jinja.Value{}, err
	}
	return cased(args, change)
}

func capitalized(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:])
}

func split(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	s, err := stringArg(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	most := -1
	if v, ok := argument(args, kwargs, 2, "maxsplit"); ok {
		if !v.IsInt() {
			return jinja.Value{}, errArguments
		}
		most = int(v.AsInt())
	}
	var parts []string
	if v, ok := argument(args, kwargs, 1, "sep"); ok && !v.IsNone() {
		if !v.IsString() || v.AsString() == "" {
			return jinja.Value{}, errArguments
		}
		if most >= 0 {
			most++
		} else if strings.Count(s, v.AsString()) > maxParts {
			return jinja.Value{}, fail(ReasonTooLarge, "parts of a text")
		}
		parts = strings.SplitN(s, v.AsString(), most)
	} else if most >= 0 {
		return jinja.Value{}, fail(ReasonUnsupported, "form of split")
	} else if len(s) > 2*maxParts {
		return jinja.Value{}, fail(ReasonTooLarge, "parts of a text")
	} else {
		parts = strings.FieldsFunc(s, isSpace)
	}
	out := make([]jinja.Value, len(parts))
	for i, part := range parts {
		out[i] = jinja.NewString(part)
	}
	return jinja.NewList(out), nil
}

// affix tests for a prefix or suffix, or any of a tuple of them.
func affix(args engineArgs, has func(s, affix string) bool) (jinja.Value, error) {
	s, err := stringArg(args, 0)
	if err != nil || len(args) != 2 {
		return jinja.Value{}, errArguments
	}
	candidates := args[1:]
	if args[1].IsList() {
		candidates = args[1].AsList().Items
	}
	for i := range candidates {
		c, err := stringArg(candidates, i)
		if err != nil {
			return jinja.Value{}, err
		}
		if has(s, c) {
			return jinja.NewBool(true), nil
		}
	}
	return jinja.NewBool(false), nil
}

func replaceMethod(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if _, err := stringArg(args, 0); err != nil {
		return jinja.Value{}, err
	}
	return replace(r, args, kwargs)
}

func find(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	s, err := stringArg(args, 0)
	sub, err2 := stringArg(args, 1)
	if err != nil || err2 != nil || len(args) != 2 {
		return jinja.Value{}, errArguments
	}
	i := strings.Index(s, sub)
	if i > 0 {
		i = utf8.RuneCountInString(s[:i])
	}
	return jinja.NewInt(int64(i)), nil
}

// format is str.format with plain fields, {} and {0}.
func format(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	s, err := stringArg(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	var b strings.Builder
	next := 1
	for i := 0; i < len(s); i++ {
		if s[i] != '{' && s[i] != '}' {
			b.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == s[i] {
			b.WriteByte(s[i])
			i++
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 1 {
			return jinja.Value{}, errArguments
		}
		at := next
		switch field := s[i+1 : i+end]; {
		case field == "":
			next++
		case len(field) == 1 && field[0]-'0' <= 9:
			at = 1 + int(field[0]-'0')
		default:
			return jinja.Value{}, fail(ReasonUnsupported, "form of format")
		}
		value, err := text(args, at)
		if err != nil {
			return jinja.Value{}, err
		}
		b.WriteString(value)
		i += end
	}
	return jinja.NewString(b.String()), r.spend(b.Len())
}

func joinMethod(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if _, err := stringArg(args, 0); err != nil || len(args) != 2 {
		return jinja.Value{}, errArguments
	}
	return join(r, engineArgs{args[1], args[0]}, nil)
}

func items(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsDict() {
		return jinja.Value{}, errArguments
	}
	return pairs(r, args, nil)
}

func keys(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsDict() {
		return jinja.Value{}, errArguments
	}
	list, err := itemsOf(args[0])
	return jinja.NewList(list), err
}

func values(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) != 1 || !args[0].IsDict() {
		return jinja.Value{}, errArguments
	}
	d := args[0].AsDict()
	out := make([]jinja.Value, len(d.Keys))
	for i, key := range d.Keys {
		out[i] = d.Data[key]
	}
	return jinja.NewList(out), nil
}

func get(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) < 2 || !args[0].IsDict() {
		return jinja.Value{}, errArguments
	}
	if args[1].IsString() {
		if v, ok := args[0].AsDict().Get(args[1].AsString()); ok {
			return v, nil
		}
	}
	if len(args) > 2 {
		return args[2], nil
	}
	return jinja.None(), nil
}
