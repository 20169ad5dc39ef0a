// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"slices"
	"unsafe"
)

// arena is the memory of one rendering's values, which all end with it.
// Growing leaves what was handed out where it is. The zero arena is ready.
type arena struct {
	items []Value
	keys  []string
	bytes []byte

	// What a list or dict being read has so far, behind what those around it have.
	openItems []Value
	openKeys  []string
}

// What an arena may keep for the next rendering, in elements: a conversation of
// a thousand messages and 1 MiB of escaped text stays below.
const (
	keptValues = 1 << 13 // 640 KiB
	keptBytes  = 1 << 20
)

// reset forgets all values. They point into the request's body, which must not
// outlive the request.
func (a *arena) reset() {
	a.items, a.keys = forget(a.items), forget(a.keys)
	a.openItems, a.openKeys = forget(a.openItems[:cap(a.openItems)]), forget(a.openKeys[:cap(a.openKeys)])
	if a.bytes = a.bytes[:0]; cap(a.bytes) > keptBytes {
		a.bytes = nil
	}
}

func forget[T any](s []T) []T {
	if cap(s) > keptValues {
		return nil
	}
	clear(s)
	return s[:0]
}

// copied returns a copy of elements in a chunk of memory.
func copied[T any](chunk *[]T, elements []T) []T {
	if len(elements) == 0 {
		return nil
	}
	if cap(*chunk)-len(*chunk) < len(elements) {
		*chunk = make([]T, 0, max(2*cap(*chunk), len(elements), 16))
	}
	at := len(*chunk)
	*chunk = append(*chunk, elements...)
	return slices.Clip((*chunk)[at:])
}

func (a *arena) list(items []Value) Value {
	return Value{kind: List, items: copied(&a.items, items)}
}

func (a *arena) dict(keys []string, items []Value) Value {
	return Value{kind: Dict, keys: copied(&a.keys, keys), items: copied(&a.items, items)}
}

// openDict is a dict that is being built behind what is open in its arena. What
// opens there before it is closed has to be closed first.
type openDict struct {
	arena       *arena
	keys, items int // where its members begin
}

func (a *arena) open() openDict { return openDict{a, len(a.openKeys), len(a.openItems)} }

// add adds a member; its key is another than those before.
func (d openDict) add(key string, v Value) {
	a := d.arena
	a.openKeys, a.openItems = append(a.openKeys, key), append(a.openItems, v)
}

func (d openDict) has(key string) bool { return slices.Contains(d.arena.openKeys[d.keys:], key) }

func (d openDict) close() Value {
	a := d.arena
	dict := a.dict(a.openKeys[d.keys:], a.openItems[d.items:])
	a.openKeys, a.openItems = a.openKeys[:d.keys], a.openItems[:d.items]
	return dict
}

// reserve makes room for n bytes more behind a.bytes.
func (a *arena) reserve(n int) {
	if cap(a.bytes)-len(a.bytes) < n {
		a.bytes = make([]byte, 0, max(2*cap(a.bytes), n))
	}
}

// textFrom returns the bytes written since at as a string; they are not written
// again before reset.
func (a *arena) textFrom(at int) string { return textOver(a.bytes[at:]) }

// textOver views bytes that stay as they are as a string.
func textOver(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // the bytes do not change
}
