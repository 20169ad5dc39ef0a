// SPDX-License-Identifier: Apache-2.0

package stream

const (
	memoryMax = 256
	memoryMin = 48 // a shorter beginning is not worth comparing
	memoryTry = 4  // misses in a row after which nothing is remembered any more
)

// memory holds how the last event began and what that said. Chat chunks
// differ only behind "choices": what comes before is half of the event, and
// comparing it is cheaper than reading it again.
//
// What a beginning says must not depend on what came before it in the
// response. The only thing that does is whether an id is captured, and a
// beginning that holds a captured one is not remembered.
type memory struct {
	length int
	bytes  [memoryMax]byte
	field  field // of the value that follows
	object objectFacts
	engine Engine
	misses int
}

// recall takes the beginning of p from memory, up to the first value that has
// to be entered, and returns its length, or 0.
func (o *Observer) recall(p []byte) int {
	m := &o.memory
	n := m.length
	if n == 0 {
		return 0
	}
	if len(p) < n || string(p[:n]) != string(m.bytes[:n]) {
		m.misses++
		return 0
	}
	m.misses = 0
	s := &o.scanner
	s.nodes[0] = frame{node: nodeRoot, field: fieldBatchItem}
	s.depth, s.inside, s.state = 1, inObject, atValue
	s.field, s.root = m.field, m.field
	o.object = m.object
	o.event.engine = m.engine
	return n
}

// remember notes the beginning of an event: from its bracket to the colon
// before its first value that has to be entered.
func (o *Observer) remember(beginning []byte) {
	m := &o.memory
	if len(beginning) < memoryMin || len(beginning) > memoryMax || m.misses > memoryTry || o.object.idLen > 0 {
		return
	}
	m.length = copy(m.bytes[:], beginning)
	m.field, m.object, m.engine = o.scanner.field, o.object, o.event.engine
}
