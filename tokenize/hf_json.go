// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// readFull fills b from r as far as r goes.
func readFull(r io.Reader, b []byte) (int, error) {
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}

// jsonCursor reads a JSON text from left to right. The first failure sticks:
// every later call returns at once, so that callers look at err once per value.
type jsonCursor struct {
	b   []byte
	i   int
	err *HFError
}

func (c *jsonCursor) fail(format string, a ...any) {
	if c.err == nil {
		c.err = broken(fmt.Sprintf("byte %d", c.i), format, a...)
	}
}

// peek returns the next byte that is no white space, or 0 at the end.
func (c *jsonCursor) peek() byte {
	if c.err != nil {
		return 0
	}
	if c.i = skipSpace(c.b, c.i); c.i >= len(c.b) {
		c.fail("the file ends in the middle")
		return 0
	}
	return c.b[c.i]
}

// open takes the bracket that begins a container.
func (c *jsonCursor) open(bracket byte) bool {
	if c.peek() == bracket {
		c.i++
		return true
	}
	c.fail("%q expected", bracket)
	return false
}

// more tells whether another value follows in the container that ends with
// bracket, and takes the comma before it or the bracket.
func (c *jsonCursor) more(first bool, bracket byte) bool {
	switch b := c.peek(); {
	case c.err != nil:
		return false
	case b == bracket:
		c.i++
		return false
	case first:
		return true
	case b == ',':
		c.i++
		return true
	}
	c.fail("a comma or %q expected", bracket)
	return false
}

// text reads a string. Without escapes it is a part of the file.
func (c *jsonCursor) text() []byte {
	if c.peek() != '"' {
		c.fail("a string expected")
		return nil
	}
	start := c.i + 1
	end, flags, reason := skipString(c.b, start)
	if reason != "" {
		c.i = end
		c.fail("a string that does not end or holds a control character")
		return nil
	}
	c.i = end + 1
	if flags&escaped == 0 {
		return c.b[start:end:end]
	}
	return appendUnescaped(nil, c.b[start:end])
}

// key reads a member's key and the colon after it.
func (c *jsonCursor) key() []byte {
	k := c.text()
	if c.peek() != ':' {
		c.fail("a colon expected")
		return nil
	}
	c.i++
	return k
}

// id reads an integer from 0 to below 1<<31.
func (c *jsonCursor) id() uint32 {
	if c.peek()-'0' > 9 {
		c.fail("an id expected")
		return 0
	}
	n := uint64(0)
	for ; c.i < len(c.b) && c.b[c.i]-'0' <= 9; c.i++ {
		if n = 10*n + uint64(c.b[c.i]-'0'); n > maxHFID {
			c.fail("an id above %d", maxHFID)
			return 0
		}
	}
	if c.i < len(c.b) && (c.b[c.i] == '.' || c.b[c.i]|0x20 == 'e') {
		c.fail("an id that is no integer")
		return 0
	}
	return uint32(n)
}

// number reads a finite number.
func (c *jsonCursor) number() float64 {
	if b := c.peek(); b != '-' && b-'0' > 9 {
		c.fail("a number expected")
		return 0
	}
	end, reason := skipNumber(c.b, c.i)
	if reason != "" {
		c.fail("a number expected")
		return 0
	}
	x := serdeFloat(c.b[c.i:end])
	if math.IsInf(x, 0) || math.IsNaN(x) {
		c.fail("a number out of range")
		return 0
	}
	c.i = end
	return x
}

// serdeFloat reads a number as Rust's serde_json does, which the tokenizers
// library uses: the digits that fit a 64-bit integer, times or over a power of
// ten. The last bit may differ from the nearest value, and scores that tie by
// one reading do not by the other.
func serdeFloat(b []byte) float64 {
	significand, exponent := uint64(0), 0
	full, fraction := false, false
	i := 0
	if b[0] == '-' {
		i++
	}
	for ; i < len(b) && b[i]|0x20 != 'e'; i++ {
		if b[i] == '.' {
			fraction = true
			continue
		}
		digit := uint64(b[i] - '0')
		full = full || significand > (math.MaxUint64-digit)/10
		switch {
		case !full:
			significand = 10*significand + digit
			if fraction {
				exponent--
			}
		case !fraction:
			exponent++
		}
	}
	if i < len(b) {
		// Out of range for int is out of range for a float as well.
		e, _ := strconv.Atoi(string(b[i+1:]))
		exponent += max(-1<<30, min(e, 1<<30))
	}
	x := float64(significand)
	for x != 0 && exponent < -308 {
		x /= 1e308
		exponent += 308
	}
	switch {
	case x == 0:
	case exponent > 308:
		x = math.Inf(1)
	case exponent >= 0:
		x *= powersOfTen(exponent)
	default:
		x /= powersOfTen(-exponent)
	}
	if b[0] == '-' {
		return -x
	}
	return x
}

// powersOfTen returns the float64 nearest to 10 to the n, from 0 to 308.
func powersOfTen(n int) float64 {
	x, _ := strconv.ParseFloat("1e"+strconv.Itoa(n), 64)
	return x
}

// skip passes over a value and returns it as it stands. It checks strings and
// brackets and leaves the rest to whoever reads the value.
func (c *jsonCursor) skip() []byte {
	c.peek()
	start, depth := c.i, 0
	for c.err == nil {
		switch c.peek() {
		case '"':
			end, _, reason := skipString(c.b, c.i+1)
			c.i = end
			if reason != "" {
				c.fail("a string that does not end or holds a control character")
				return nil
			}
			c.i++
		case '{', '[':
			if depth++; depth > maxDepth {
				c.fail("nested deeper than %d", maxDepth)
			}
			c.i++
			continue
		case '}', ']':
			depth--
			c.i++
		case ',', ':':
			c.i++
			continue
		default:
			from := c.i
			for c.i < len(c.b) && isWordByte(c.b[c.i]) {
				c.i++
			}
			if c.i == from {
				c.fail("no JSON")
			}
		}
		if depth <= 0 {
			break
		}
	}
	if c.err != nil || depth < 0 {
		c.fail("a value expected")
		return nil
	}
	return c.b[start:c.i:c.i]
}

// isWordByte reports whether b may be part of a number or a literal.
func isWordByte(b byte) bool {
	return b|0x20-'a' < 26 || b-'0' <= 9 || b == '-' || b == '+' || b == '.'
}
