// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// filterFunctions are Jinja2's filters, and tojson as transformers defines it.
var filterFunctions = map[string]engineFunc{
	"tojson": tojson,
	"string": stringFilter,
	"safe":   stringFilter,
	"trim":   func(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) { return strip(args, kwargs, 3) },
	"upper": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return cased(args, strings.ToUpper)
	},
	"lower": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return cased(args, strings.ToLower)
	},
	"capitalize": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return cased(args, capitalized) },
	"length":     length,
	"count":      length,
	"default":    defaulted,
	"d":          defaulted,
	"join":       join,
	"items":      pairs,
	"list":       list,
	"first":      func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return end(args, false) },
	"last":       func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return end(args, true) },
	"replace":    replace,
	"map":        mapped,
	"select":     func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return selected(args, false, true) },
	"reject": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return selected(args, false, false)
	},
	"selectattr": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return selected(args, true, true) },
	"rejectattr": func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) { return selected(args, true, false) },
	"dictsort":   dictsort,
	"sort":       sorted,
	"reverse":    reversed,
	"int":        integer,
	"indent":     indent,
}

func stringFilter(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	s, err := text(args, 0)
	if err == nil {
		err = r.operand(len(s))
	}
	return jinja.NewString(s), err
}

func tojson(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 || args[0].IsUndefined() {
		return jinja.Value{}, errArguments
	}
	style := plainJSON
	style.most = r.most
	if v, ok := argument(args, kwargs, 1, "ensure_ascii"); ok {
		style.ascii = v.IsTruthy()
	}
	if v, ok := argument(args, kwargs, 2, "indent"); ok && !v.IsNone() {
		style.pretty, style.item = true, ","
		switch {
		case v.IsInt() && v.AsInt() < 64:
			style.indent = strings.Repeat(" ", int(max(0, v.AsInt())))
		case v.IsString():
			style.indent = v.AsString()
		default:
			return jinja.Value{}, errArguments
		}
	}
	if v, ok := argument(args, kwargs, 3, "separators"); ok && !v.IsNone() {
		if !v.IsList() || v.AsList().Len() != 2 || !v.AsList().Get(0).IsString() || !v.AsList().Get(1).IsString() {
			return jinja.Value{}, errArguments
		}
		style.item, style.key = v.AsList().Get(0).AsString(), v.AsList().Get(1).AsString()
	}
	if v, ok := argument(args, kwargs, 4, "sort_keys"); ok {
		style.sorted = v.IsTruthy()
	}
	v, err := fromEngine(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	s := string(appendJSON(nil, v, &style, 0))
	return jinja.NewString(s), r.spend(len(s))
}

func length(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	switch v := args[0]; {
	case v.IsList():
		return jinja.NewInt(int64(v.AsList().Len())), nil
	case v.IsDict():
		return jinja.NewInt(int64(v.AsDict().Len())), nil
	case v.IsString():
		return jinja.NewInt(int64(utf8.RuneCountInString(v.AsString()))), nil
	case v.IsUndefined():
		return jinja.NewInt(0), nil
	}
	return jinja.Value{}, errArguments
}

func defaulted(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	otherwise, ok := argument(args, kwargs, 1, "default_value")
	if !ok {
		otherwise = jinja.NewString("")
	}
	boolean, _ := argument(args, kwargs, 2, "boolean")
	if args[0].IsUndefined() || boolean.IsTruthy() && !args[0].IsTruthy() {
		return otherwise, nil
	}
	return args[0], nil
}

func join(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := itemsOf(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	separator := ""
	if v, ok := argument(args, kwargs, 1, "d"); ok {
		if separator, err = text(engineArgs{v}, 0); err != nil {
			return jinja.Value{}, err
		}
	}
	path, by := argument(args, kwargs, 2, "attribute")
	var b strings.Builder
	for i, item := range items {
		if by && path.IsString() {
			item = attribute(item, path.AsString())
		}
		s, err := text(engineArgs{item}, 0)
		if err != nil {
			return jinja.Value{}, err
		}
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(s)
		if b.Len() > r.most {
			return jinja.Value{}, fail(ReasonTooLarge, "text")
		}
	}
	return jinja.NewString(b.String()), r.spend(b.Len())
}

func pairs(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 0 || !args[0].IsDict() && !args[0].IsUndefined() {
		return jinja.Value{}, errArguments
	}
	if args[0].IsUndefined() {
		return jinja.NewList(nil), nil
	}
	d := args[0].AsDict()
	items := make([]jinja.Value, len(d.Keys))
	for i, key := range d.Keys {
		items[i] = jinja.NewList([]jinja.Value{jinja.NewString(key), d.Data[key]})
	}
	return jinja.NewList(items), nil
}

func list(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := itemsOf(args[0])
	return jinja.NewList(slices.Clone(items)), err
}

// end is the first or the last item.
func end(args engineArgs, last bool) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := itemsOf(args[0])
	switch {
	case err != nil || len(items) == 0:
		return jinja.Undefined(), err
	case last:
		return items[len(items)-1], nil
	}
	return items[0], nil
}

func replace(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	s, err := text(args, 0)
	old, err2 := stringArg(args, 1)
	with, err3 := stringArg(args, 2)
	if err != nil || err2 != nil || err3 != nil {
		return jinja.Value{}, errArguments
	}
	n := -1
	if v, ok := argument(args, kwargs, 3, "count"); ok && v.IsInt() {
		n = int(v.AsInt())
	}
	if places := strings.Count(s, old); len(with) > len(old) && places > (r.most-len(s))/(len(with)-len(old)) {
		return jinja.Value{}, fail(ReasonTooLarge, "text")
	}
	s = strings.Replace(s, old, with, n)
	return jinja.NewString(s), r.spend(len(s))
}

func mapped(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := chosen(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	out := make([]jinja.Value, len(items))
	path, by := kwargs["attribute"]
	otherwise := kwargs["default"]
	for i, item := range items {
		switch {
		case by && path.IsString():
			if out[i] = attribute(item, path.AsString()); out[i].IsUndefined() {
				out[i] = otherwise
			}
		case len(args) > 1 && args[1].IsString() && args[1].AsString() != "map" && filterOf(args[1].AsString()) != nil:
			if out[i], err = filterOf(args[1].AsString())(r, append(engineArgs{item}, args[2:]...), kwargs); err != nil {
				return jinja.Value{}, err
			}
		default:
			return jinja.Value{}, fail(ReasonUnsupported, "form of map")
		}
	}
	return jinja.NewList(out), nil
}

// chosen lists what map and the selections go through: nothing for whatever is
// false.
func chosen(v jinja.Value) ([]jinja.Value, error) {
	if !v.IsTruthy() {
		return nil, nil
	}
	return itemsOf(v)
}

func filterOf(name string) engineFunc { return functionTable[ours+name] }

func selected(args engineArgs, byAttribute, keep bool) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := chosen(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	test, path := args[1:], ""
	if byAttribute {
		if path, err = stringArg(args, 1); err != nil {
			return jinja.Value{}, err
		}
		test = args[2:]
	}
	var out []jinja.Value
	for _, item := range items {
		v := item
		if byAttribute {
			v = attribute(item, path)
		}
		ok, err := selects(v, test)
		if err != nil {
			return jinja.Value{}, err
		}
		if ok == keep {
			out = append(out, item)
		}
	}
	return jinja.NewList(out), nil
}

func reversed(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := itemsOf(args[0])
	items = slices.Clone(items)
	slices.Reverse(items)
	if args[0].IsString() {
		return join(r, engineArgs{jinja.NewList(items)}, nil)
	}
	return jinja.NewList(items), err
}

func integer(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	otherwise, ok := argument(args, kwargs, 1, "default")
	if !ok {
		otherwise = jinja.NewInt(0)
	}
	base := 10
	if v, ok := argument(args, kwargs, 2, "base"); ok && v.IsInt() {
		base = int(v.AsInt())
	}
	switch v := args[0]; {
	case v.IsInt():
		return v, nil
	case v.IsFloat():
		return jinja.NewInt(int64(v.AsFloat())), nil
	case v.IsBool():
		if v.AsBool() {
			return jinja.NewInt(1), nil
		}
		return jinja.NewInt(0), nil
	case v.IsString() && (base == 10 || base == 16 || base == 8 || base == 2):
		s := trimSpace(v.AsString())
		if base == 16 {
			s = strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X")
		}
		if n, err := strconv.ParseInt(s, base, 64); err == nil {
			return jinja.NewInt(n), nil
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && base == 10 {
			return jinja.NewInt(int64(f)), nil
		}
	}
	return otherwise, nil
}

func indent(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	s, err := stringArg(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	by := "    "
	if v, ok := argument(args, kwargs, 1, "width"); ok {
		switch {
		case v.IsString():
			by = v.AsString()
		case v.IsInt() && v.AsInt() < 64:
			by = strings.Repeat(" ", int(max(0, v.AsInt())))
		default:
			return jinja.Value{}, errArguments
		}
	}
	first, _ := argument(args, kwargs, 2, "first")
	blank, _ := argument(args, kwargs, 3, "blank")
	if strings.ContainsAny(s, "\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029") {
		return jinja.Value{}, fail(ReasonUnsupported, "line ends in indent")
	}
	lines := strings.Split(s, "\n")
	if len(by) > 0 && len(lines) > r.most/len(by) {
		return jinja.Value{}, fail(ReasonTooLarge, "text")
	}
	for i, line := range lines {
		if (i > 0 || first.IsTruthy()) && (line != "" || blank.IsTruthy() || i == 0) {
			lines[i] = by + line
		}
	}
	s = strings.Join(lines, "\n")
	return jinja.NewString(s), r.spend(len(s))
}
