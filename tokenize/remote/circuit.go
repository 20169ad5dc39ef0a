// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"sync"
	"time"
)

const (
	// failuresInARow open a circuit: a few may be long prompts.
	failuresInARow = 5
	// retryAfter is how long an engine that fails is left alone before one
	// question tries it again.
	retryAfter = 5 * time.Second
)

// circuit keeps questions from an engine that does not answer them.
type circuit struct {
	mu       sync.Mutex // guards the rest; held for a few instructions
	failures int        // in a row
	until    time.Time  // open until then, and after it until a probe succeeds
	probing  bool       // a question is trying
}

// verdict is what a question says about its engine.
type verdict uint8

const (
	nothing verdict = iota // the question was withdrawn
	alive
	failed
)

// admit tells whether a question may go to the engine. If so, settle must follow.
func (c *circuit) admit(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures < failuresInARow {
		return true
	}
	if c.probing || now.Before(c.until) {
		return false
	}
	c.probing = true
	return true
}

// settle takes in what a question that was admitted says.
func (c *circuit) settle(v verdict, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = false
	switch v {
	case alive:
		c.failures = 0
	case failed:
		c.failures++
		c.until = now.Add(retryAfter)
	}
}
