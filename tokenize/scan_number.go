// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"math"
	"strconv"
)

// skipNumber reads a number that begins at i with a digit or a minus, after
// RFC 8259, section 6.
func skipNumber(b []byte, i int) (end int, reason Reason) {
	if b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return i, ReasonTruncated
	case b[i] == '0':
		i++
	case b[i] >= '1' && b[i] <= '9':
		i = skipDigits(b, i)
	default:
		return i, ReasonNotJSON
	}
	if i < len(b) && b[i] == '.' {
		if i, reason = skipSomeDigits(b, i+1); reason != "" {
			return i, reason
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipSomeDigits(b, i)
	}
	return i, ""
}

// skipNumbers reads a run of numbers with commas between them.
func skipNumbers(b []byte, i int) (end int, reason Reason) {
	for {
		if end, reason = skipNumber(b, i); reason != "" {
			return end, reason
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ',' {
			return end, ""
		}
		if i = skipSpace(b, i+1); i >= len(b) || b[i]-'0' > 9 {
			// The comma belongs to whatever follows, or to nothing.
			return end, ""
		}
	}
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// skipSomeDigits reads one digit or more.
func skipSomeDigits(b []byte, i int) (end int, reason Reason) {
	end = skipDigits(b, i)
	if end > i {
		return end, ""
	}
	if end >= len(b) {
		return end, ReasonTruncated
	}
	return end, ReasonNotJSON
}

// maxNumber bounds the numbers that are understood, in bytes; a longer one is a
// number whose value is unknown.
const maxNumber = 40

// integerOf reads an integer as pydantic does: 256, 256.0 and 2.56e2 are the
// same. Values beyond ±2^53 are unknown.
func integerOf(num []byte) (v int64, ok bool) {
	if len(num) == 0 || len(num) > maxNumber {
		return 0, false
	}
	digits := num
	if num[0] == '-' {
		digits = num[1:]
	}
	if len(digits) <= 15 {
		for i, c := range digits {
			if c-'0' > 9 {
				break
			}
			v = v*10 + int64(c-'0')
			if i == len(digits)-1 {
				if len(digits) < len(num) {
					v = -v
				}
				return v, true
			}
		}
	}
	f, err := strconv.ParseFloat(string(num), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}
