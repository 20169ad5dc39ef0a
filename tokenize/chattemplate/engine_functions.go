// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

type (
	engineArgs   = []jinja.Value
	engineKwargs = map[string]jinja.Value
	engineFunc   = func(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error)
)

// filters are the filters a template may use; each is a function of ours.
var filters = map[string]bool{}

// methods are the methods of strings and dicts that are functions of ours.
var methods = map[string]bool{}

// functionTable holds our functions by the name the rewritten template calls.
var functionTable = map[string]engineFunc{}

func init() {
	for name, f := range filterFunctions {
		filters[name] = true
		functionTable[ours+name] = f
	}
	for name, f := range methodFunctions {
		methods[name] = true
		functionTable[ours+"m_"+name] = f
	}
	functionTable[ours+"print"] = printValue
	functionTable[ours+"summand"] = summand
	functionTable[ours+"factor"] = factor
	functionTable[ours+"method"] = boundMethod
	functionTable[ours+"item"] = item
	functionTable[ours+"iter"] = func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		if len(args) == 1 && args[0].IsList() {
			return args[0], nil
		}
		return list(nil, args, nil)
	}
	functionTable[ours+"is_iterable"] = func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		v := args[0]
		return jinja.NewBool(v.IsList() || v.IsDict() || v.IsString() || v.IsUndefined()), nil
	}
	functionTable[ours+"is_number"] = func(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		return jinja.NewBool(args[0].IsNumber() || args[0].IsBool()), nil
	}
	functionTable[ours+"tick"] = func(r *run, _ engineArgs, _ engineKwargs) (jinja.Value, error) {
		return jinja.None(), r.step()
	}
	functionTable[ours+"enter"] = func(r *run, _ engineArgs, _ engineKwargs) (jinja.Value, error) {
		if r.depth++; r.depth > maxMacroDepth {
			return jinja.Value{}, fail(ReasonTooLarge, "macro depth")
		}
		return jinja.None(), r.step()
	}
	functionTable[ours+"leave"] = func(r *run, _ engineArgs, _ engineKwargs) (jinja.Value, error) {
		r.depth--
		return jinja.None(), nil
	}
	functionTable["raise_exception"] = func(*run, engineArgs, engineKwargs) (jinja.Value, error) {
		return jinja.Value{}, fail(ReasonRefused, "")
	}
	functionTable["strftime_now"] = func(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
		format, err := stringArg(args, 0)
		return jinja.NewString(r.chat.clock.strftime(format)), err
	}
	functionTable["range"] = boundedRange
}

// summand is an operand of +.
func summand(r *run, args engineArgs, _ engineKwargs) (v jinja.Value, err error) {
	switch v = args[0]; {
	case v.IsString():
		err = r.operand(len(v.AsString()))
	case v.IsList():
		err = r.operand(itemBytes * v.AsList().Len())
	}
	return v, err
}

// factor is an operand of * or %. Python also repeats and formats texts by these.
func factor(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if !args[0].IsNumber() && !args[0].IsBool() {
		return jinja.Value{}, fail(ReasonUnsupported, "arithmetic with what is no number")
	}
	return args[0], nil
}

// functions binds the table to a rendering.
func (r *run) functions(vars map[string]jinja.Value) {
	for name, f := range functionTable {
		vars[name] = jinja.NewCallable(name, func(args []jinja.Value, kwargs map[string]jinja.Value) (jinja.Value, error) {
			return f(r, args, kwargs)
		})
	}
}

var errArguments = &Error{Reason: ReasonTemplate, Detail: "arguments of a function"}

func stringArg(args engineArgs, i int) (string, error) {
	if i >= len(args) || !args[i].IsString() {
		return "", errArguments
	}
	return args[i].AsString(), nil
}

// text is str(v) of an argument, as Jinja2's filters take it.
func text(args engineArgs, i int) (string, error) {
	if i >= len(args) {
		return "", errArguments
	}
	if args[i].IsString() {
		return args[i].AsString(), nil
	}
	v, err := fromEngine(args[i])
	if err != nil {
		return "", err
	}
	return string(appendStr(nil, v)), nil
}

// argument is an argument by position or name.
func argument(args engineArgs, kwargs engineKwargs, i int, name string) (jinja.Value, bool) {
	if i < len(args) {
		return args[i], true
	}
	v, ok := kwargs[name]
	return v, ok
}

func printValue(r *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.NewString(""), nil
	}
	s, err := text(args, 0)
	if err != nil {
		return jinja.Value{}, err
	}
	if err := r.spend(len(s)); err != nil {
		return jinja.Value{}, err
	}
	if args[0].IsString() {
		return args[0], nil
	}
	return jinja.NewString(s), nil
}

// boundMethod stands for a dict's method that is named but not called, or for a
// member of another value.
func boundMethod(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) == 2 && args[0].IsDict() {
		return jinja.NewCallable("method", func([]jinja.Value, map[string]jinja.Value) (jinja.Value, error) {
			return jinja.Value{}, errArguments
		}), nil
	}
	return jinja.Undefined(), nil
}

// item is a subscript: a list's or string's by number, a dict's by name, where
// Jinja2 falls back to its methods.
func item(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	if len(args) != 2 {
		return jinja.Value{}, errArguments
	}
	switch v, key := args[0], args[1]; {
	case v.IsDict() && key.IsString():
		if member, ok := v.AsDict().Get(key.AsString()); ok {
			return member, nil
		}
		if dictMethods[key.AsString()] {
			return boundMethod(nil, args, nil)
		}
	case v.IsList() && key.IsInt():
		items, i := v.AsList().Items, key.AsInt()
		if i < 0 {
			i += int64(len(items))
		}
		if i >= 0 && i < int64(len(items)) {
			return items[i], nil
		}
	case v.IsString() && key.IsInt():
		runes, i := []rune(v.AsString()), key.AsInt()
		if i < 0 {
			i += int64(len(runes))
		}
		if i >= 0 && i < int64(len(runes)) {
			return jinja.NewString(string(runes[i])), nil
		}
	}
	return jinja.Undefined(), nil
}

// maxRange is how many numbers range gives at most, as in Jinja2's sandbox.
const maxRange = 100_000

func boundedRange(_ *run, args engineArgs, _ engineKwargs) (jinja.Value, error) {
	bounds := []int64{0, 0, 1}
	if len(args) < 1 || len(args) > 3 {
		return jinja.Value{}, errArguments
	}
	for i, a := range args {
		if !a.IsInt() {
			return jinja.Value{}, errArguments
		}
		if len(args) == 1 {
			i = 1
		}
		bounds[i] = a.AsInt()
	}
	from, to, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		return jinja.Value{}, errArguments
	}
	var items []jinja.Value
	for n := from; step > 0 && n < to || step < 0 && n > to; n += step {
		if len(items) == maxRange {
			return jinja.Value{}, fail(ReasonTooLarge, "range")
		}
		items = append(items, jinja.NewInt(n))
	}
	return jinja.NewList(items), nil
}

// maxParts bounds the lists that are made of a text's parts.
const maxParts = 1 << 20

// itemsOf lists what Python iterates over.
func itemsOf(v jinja.Value) ([]jinja.Value, error) {
	switch {
	case v.IsList():
		return v.AsList().Items, nil
	case v.IsDict():
		keys := v.AsDict().Keys
		items := make([]jinja.Value, len(keys))
		for i, key := range keys {
			items[i] = jinja.NewString(key)
		}
		return items, nil
	case v.IsString():
		if len(v.AsString()) > maxParts {
			return nil, fail(ReasonTooLarge, "characters of a text")
		}
		var items []jinja.Value
		for _, c := range v.AsString() {
			items = append(items, jinja.NewString(string(c)))
		}
		return items, nil
	case v.IsUndefined():
		return nil, nil
	}
	return nil, errArguments
}

// attribute is what Jinja2's attribute= finds: a path of members.
func attribute(v jinja.Value, path string) jinja.Value {
	for part := range strings.SplitSeq(path, ".") {
		if !v.IsDict() {
			return jinja.Undefined()
		}
		v, _ = v.AsDict().Get(part)
	}
	return v
}

// selects applies a test of select, reject, selectattr and rejectattr.
func selects(v jinja.Value, args engineArgs) (bool, error) {
	if len(args) == 0 {
		return v.IsTruthy(), nil
	}
	name, err := stringArg(args, 0)
	if err != nil {
		return false, err
	}
	switch name {
	case "defined":
		return !v.IsUndefined(), nil
	case "undefined":
		return v.IsUndefined(), nil
	case "none":
		return v.IsNone(), nil
	case "string":
		return v.IsString(), nil
	case "mapping":
		return v.IsDict(), nil
	case "equalto", "eq", "==":
		return len(args) > 1 && v.Equals(args[1]), nil
	case "ne", "!=":
		return len(args) > 1 && !v.Equals(args[1]), nil
	case "in":
		if len(args) > 1 && args[1].IsList() {
			return slices.ContainsFunc(args[1].AsList().Items, v.Equals), nil
		}
	}
	return false, fail(ReasonUnsupported, "test of a selection")
}
