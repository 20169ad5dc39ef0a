// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "slices"

// loopsOverContent tells whether a template loops over a message's content, by
// which vLLM decides between text and lists of parts (_detect_content_format in
// renderers/hf.py): there is a loop over the content of the variable of a loop over
// messages, or over a variable assigned from them; over a parameter of a macro that
// is given such content; or outside of macros over a variable named content.
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
	inside, depth := []string{"content"}, 0 // what a loop may be over here
	for i := range segments {
		s := &segments[i]
		if s.kind == stmtSegment && len(s.tokens) > 0 {
			switch {
			case s.tokens[0].is(nameToken, "macro"):
				if depth++; depth == 1 {
					inside = contentParameters(segments, s.tokens, messages)
				}
			case s.tokens[0].is(nameToken, "endmacro"):
				if depth--; depth == 0 {
					inside = []string{"content"}
				}
			}
		}
		_, iterable := loopOf(s)
		if accesses(iterable, messages, "content") {
			return true
		}
		if len(iterable) == 1 && iterable[0].kind == nameToken && slices.Contains(inside, iterable[0].text) {
			return true
		}
	}
	return false
}

// contentParameters returns the parameters of a macro that a call somewhere gives
// the content of a message.
func contentParameters(segments []segment, macro []token, messages []string) (names []string) {
	if len(macro) < 3 || macro[1].kind != nameToken {
		return nil
	}
	var parameters []string
	for _, p := range arguments(macro[2:]) {
		if len(p) > 0 {
			parameters = append(parameters, p[0].text)
		}
	}
	for i := range segments {
		tokens := segments[i].tokens
		for at := range tokens {
			if !tokens[at].is(nameToken, macro[1].text) || at+1 == len(tokens) || !tokens[at+1].is(opToken, "(") {
				continue
			}
			for n, value := range arguments(tokens[at+1:]) {
				switch {
				case len(value) > 2 && value[1].is(opToken, "="):
					if accesses(value[2:], messages, "content") && slices.Contains(parameters, value[0].text) {
						names = append(names, value[0].text)
					}
				case n < len(parameters) && accesses(value, messages, "content"):
					names = append(names, parameters[n])
				}
			}
		}
	}
	return names
}

// arguments parts what is in the brackets that the tokens begin with.
func arguments(t []token) (parts [][]token) {
	if len(t) == 0 || !t[0].is(opToken, "(") {
		return nil
	}
	all := bracketed(t)
	depth, from := 0, 1
	for i, token := range all {
		switch {
		case token.is(opToken, "(") || token.is(opToken, "[") || token.is(opToken, "{"):
			depth++
		case token.is(opToken, ")") || token.is(opToken, "]") || token.is(opToken, "}"):
			if depth--; depth == 0 {
				return append(parts, all[from:i])
			}
		case depth == 1 && token.is(opToken, ","):
			parts = append(parts, all[from:i])
			from = i + 1
		}
	}
	return parts
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
