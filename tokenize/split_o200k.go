// SPDX-License-Identifier: Apache-2.0

package tokenize

// endO200K follows the pattern
//
//	[^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// with U for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L for [\p{Ll}\p{Lm}\p{Lo}\p{M}]
// and C for (?i:'s|'t|'re|'ve|'m|'ll|'d).
func endO200K(t *classTable, text []byte, p int) int {
	class := t.at(text, p)
	q := p + class.bytes()
	if class&classLetter != 0 {
		return endOfWord(t, text, p)
	}
	if class&classNumber != 0 {
		return endOfThreeNumbers(t, text, q)
	}
	if class&classNewline != 0 {
		return endOfSpaces(t, text, p, true)
	}
	// Here the character may lead a word. A combining mark may be part of it
	// instead, when nothing after it makes one.
	if q < len(text) {
		next := t.at(text, q)
		if next&(classUpper|classLower) != 0 {
			if class&classUpper == 0 {
				return endOfWord(t, text, q)
			}
			if end, mixed := caseRun(t, text, q); mixed {
				return withContraction(text, end)
			}
		} else if text[p] == ' ' && next&(classSpace|classNumber) == 0 {
			class, q = next, q+next.bytes()
		}
	}
	if class&classUpper != 0 {
		return endOfWord(t, text, p)
	}
	if class&classSpace != 0 {
		return endOfSpaces(t, text, p, true)
	}
	q = endOfOthers(t, text, q)
	for q < len(text) && (text[q] == '\n' || text[q] == '\r' || text[q] == '/') {
		q++
	}
	return q
}

// endOfWord returns the end of the U*L+C?|U+L*C? that begins at p, where a
// character of U or L must be.
func endOfWord(t *classTable, text []byte, p int) int {
	end, _ := caseRun(t, text, p)
	return withContraction(text, end)
}

func withContraction(text []byte, p int) int {
	if p < len(text) && text[p] == '\'' {
		return contraction(text, p, true)
	}
	return p
}

// caseRun returns the end of the U*L+ that begins at p, with mixed true, or if
// there is none that of the U+. Where no L follows the greedy U*, it has to
// hand back characters until one is in L too: the match then ends behind the
// last such character, for what followed that one was in U alone.
func caseRun(t *classTable, text []byte, p int) (end int, mixed bool) {
	both := -1
	for p < len(text) {
		class := t.at(text, p)
		if class&classUpper == 0 {
			if class&classLower != 0 {
				return endOfLowers(t, text, p+class.bytes()), true
			}
			break
		}
		p += class.bytes()
		if class&classLower != 0 {
			if class.bytes() == 3 {
				p = t.endOfWide(text, p, classUpper|classLower)
			}
			both = p
		}
	}
	if both >= 0 {
		return both, true
	}
	return p, false
}

// endOfLowers returns the end of the L* that begins at p.
func endOfLowers(t *classTable, text []byte, p int) int {
	return endOfRun(t, text, p, classLower, 0)
}
