// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "slices"

// loopsOverContent tells whether a template loops over a message's content, by
// which vLLM decides between text and lists of parts (_detect_content_format):
// there is a loop over the content of the variable of a loop over messages, or
// over a variable assigned from them.
func loopsOverContent(segments []segment) bool {
	lists := []string{"messages"}
	for before := 0; before != len(lists); {
		before = len(lists)
		for i := range segments {
			t := segments[i].tokens
			if len(t) < 4 || !t[0].is(nameToken, "set") || !t[2].is(opToken, "=") {
				continue
			}
			if name := t[1].text; !slices.Contains(lists, name) && accesses(t[3:], lists, "") {
				lists = append(lists, name)
			}
		}
	}
	var messages []string
	for i := range segments {
		if targets, iterable := loopOf(&segments[i]); accesses(iterable, lists, "") {
			messages = append(messages, targets...)
		}
	}
	for i := range segments {
		if _, iterable := loopOf(&segments[i]); accesses(iterable, messages, "content") {
			return true
		}
	}
	return false
}

// loopOf returns what a for statement binds and loops over.
func loopOf(s *segment) (targets []string, iterable []token) {
	if s.kind != stmtSegment || !s.tokens[0].is(nameToken, "for") {
		return nil, nil
	}
	targets, rest := forTargets(s.tokens)
	iterable = s.tokens[rest:]
	depth := 0
	for i, t := range iterable {
		switch {
		case t.is(opToken, "(") || t.is(opToken, "["):
			depth++
		case t.is(opToken, ")") || t.is(opToken, "]"):
			depth--
		case depth == 0 && t.is(nameToken, "if"):
			return targets, iterable[:i]
		}
	}
	return targets, iterable
}

// accesses tells whether an expression is one of the variables, or with key
// that member of one, with any filters, tests and slices after it.
func accesses(t []token, names []string, key string) bool {
	if len(t) == 0 || t[0].kind != nameToken || !slices.Contains(names, t[0].text) {
		return false
	}
	t = t[1:]
	if key != "" {
		switch {
		case len(t) >= 3 && t[0].is(opToken, "[") && t[1].is(stringToken, key) && t[2].is(opToken, "]"):
			t = t[3:]
		case len(t) >= 2 && t[0].is(opToken, ".") && t[1].is(nameToken, key):
			t = t[2:]
		default:
			return false
		}
	}
	for len(t) > 0 {
		switch {
		case t[0].is(opToken, "[") && slices.ContainsFunc(bracketed(t), func(t token) bool { return t.is(opToken, ":") }):
			t = t[len(bracketed(t)):]
		case t[0].is(opToken, "|") && len(t) > 1:
			t = t[2:]
			if len(t) > 0 && t[0].is(opToken, "(") {
				t = t[len(bracketed(t)):]
			}
		case t[0].is(nameToken, "is"):
			return true
		default:
			return false
		}
	}
	return true
}

// bracketed returns the tokens from an opening bracket to its closing one.
func bracketed(t []token) []token {
	depth := 0
	for i := range t {
		if t[i].kind != opToken {
			continue
		}
		switch t[i].text {
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			if depth--; depth == 0 {
				return t[:i+1]
			}
		}
	}
	return t
}
