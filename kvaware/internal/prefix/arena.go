// SPDX-License-Identifier: Apache-2.0

package prefix

const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
)

// arena stores values under small ids in chunks, so that growing moves nothing
// and never pauses. Id 0 is never given out and stands for none.
type arena[T any] struct {
	chunks []*[chunkSize]T
	next   uint32
}

func (a *arena[T]) at(id uint32) *T {
	return &a.chunks[id>>chunkBits][id%chunkSize]
}

// extend returns an id that was never used.
func (a *arena[T]) extend() uint32 {
	if a.next == 0 {
		a.next = 1
	}
	id := a.next
	a.next++
	if int(id>>chunkBits) == len(a.chunks) {
		a.chunks = append(a.chunks, new([chunkSize]T))
	}
	return id
}
