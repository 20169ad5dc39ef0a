// SPDX-License-Identifier: Apache-2.0

package prefix

// close ends a cache's life. Its spans are left for reap.
func (x *Index) close(c *cache) {
	c.slot = dead
	x.slotOf[c.id] = dead
	x.doomed = append(x.doomed, c)
	if c.slotted != nil {
		x.slottedCaches--
	}
}

// reap frees some spans of dead caches, more than the change added that calls
// it. Their order is that of both lists, idle ones first, so that no span goes
// before its children.
func (x *Index) reap(added int) {
	for steps := x.reapSteps + 2*added; steps > 0 && len(x.doomed) > 0; steps-- {
		c := x.doomed[0]
		l := &c.idleSpans
		if l.oldest == 0 {
			l = &c.pinnedSpans
		}
		id := l.oldest
		if id == 0 {
			x.caches[c.id] = nil
			x.freeCaches = append(x.freeCaches, c.id)
			x.doomed[0] = nil
			x.doomed = x.doomed[1:]
			continue
		}
		l.unlink(&x.spans, id)
		x.freeSpan(id)
	}
}
