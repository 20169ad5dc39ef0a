// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"strings"

	"github.com/ardanlabs/jinja"
)

func dictsort(r *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if _, ok := argument(args, kwargs, 2, "by"); ok {
		return jinja.Value{}, fail(ReasonUnsupported, "form of dictsort")
	}
	v, err := pairs(r, args, nil)
	if err != nil {
		return jinja.Value{}, err
	}
	sensitive, _ := argument(args, kwargs, 1, "case_sensitive")
	backwards, _ := argument(args, kwargs, 3, "reverse")
	return v, sortValues(v.AsList().Items, "", sensitive.IsTruthy(), backwards.IsTruthy())
}

func sorted(_ *run, args engineArgs, kwargs engineKwargs) (jinja.Value, error) {
	if len(args) == 0 {
		return jinja.Value{}, errArguments
	}
	items, err := itemsOf(args[0])
	if err != nil {
		return jinja.Value{}, err
	}
	items = slices.Clone(items)
	backwards, _ := argument(args, kwargs, 1, "reverse")
	sensitive, _ := argument(args, kwargs, 2, "case_sensitive")
	path, by := argument(args, kwargs, 3, "attribute")
	name := ""
	if by && path.IsString() {
		name = path.AsString()
	}
	return jinja.NewList(items), sortValues(items, name, sensitive.IsTruthy(), backwards.IsTruthy())
}

// sortValues sorts strings or numbers; of lists, the first item counts.
func sortValues(items []jinja.Value, path string, sensitive, backwards bool) error {
	var err error
	key := func(v jinja.Value) (string, float64, bool) {
		if path != "" {
			v = attribute(v, path)
		} else if v.IsList() && v.AsList().Len() > 0 {
			v = v.AsList().Get(0)
		}
		switch {
		case v.IsString() && sensitive:
			return v.AsString(), 0, true
		case v.IsString():
			return strings.ToLower(v.AsString()), 0, true
		case v.IsInt():
			return "", float64(v.AsInt()), false
		case v.IsFloat():
			return "", v.AsFloat(), false
		}
		err = fail(ReasonUnsupported, "sort of mixed values")
		return "", 0, false
	}
	slices.SortStableFunc(items, func(a, b jinja.Value) int {
		s, f, isText := key(a)
		t, g, isText2 := key(b)
		if isText != isText2 {
			err = fail(ReasonUnsupported, "sort of mixed values")
		}
		order := strings.Compare(s, t)
		if order == 0 && f != g {
			if order = 1; f < g {
				order = -1
			}
		}
		if backwards {
			return -order
		}
		return order
	})
	return err
}
