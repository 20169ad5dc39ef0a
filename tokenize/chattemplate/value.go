// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "slices"

// Kind is the kind of a [Value].
type Kind uint8

// The kinds of values. The zero Value is Undefined, as a missing member is.
const (
	Undefined Kind = iota
	Null
	Bool
	Int
	Float
	String
	List
	Dict
)

// Value is a JSON value that keeps the order of an object's members, as
// Python's dict does. A Value is never changed once it is shared.
type Value struct {
	kind  Kind
	truth bool
	text  string   // a string's text, an integer's decimal digits
	float float64  // a float
	keys  []string // a dict's keys; items holds their values
	items []Value
}

// Text returns a string as a Value.
func Text(s string) Value { return Value{kind: String, text: s} }

// Truth returns a boolean as a Value.
func Truth(b bool) Value { return Value{kind: Bool, truth: b} }

// Kind returns the value's kind.
func (v Value) Kind() Kind { return v.kind }

// Len is the number of a list's items or a dict's members.
func (v Value) Len() int { return len(v.items) }

// Get returns a dict's member; Undefined where there is none.
func (v Value) Get(key string) Value {
	if v.kind == Dict {
		for i, k := range v.keys {
			if k == key {
				return v.items[i]
			}
		}
	}
	return Value{}
}

// Has tells whether a dict has a member, be it null.
func (v Value) Has(key string) bool { return v.Get(key).kind != Undefined }

// absent tells whether a value is missing or null.
func (v Value) absent() bool { return v.kind <= Null }

// truthy is Python's truth of a value.
func (v Value) truthy() bool {
	switch v.kind {
	case Bool:
		return v.truth
	case Int:
		return v.text != "0"
	case Float:
		return v.float != 0
	case String:
		return v.text != ""
	case List, Dict:
		return len(v.items) > 0
	}
	return false
}

// with returns a dict with a member set; the dict itself stays as it is.
func (a *arena) with(v *Value, key string, item Value) Value {
	out := a.open()
	a.openKeys, a.openItems = append(a.openKeys, v.keys...), append(a.openItems, v.items...)
	if i := slices.Index(v.keys, key); i >= 0 {
		a.openItems[out.items+i] = item
	} else {
		out.add(key, item)
	}
	return out.close()
}
