// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "strings"

func quoted(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// rewriteExpr writes an expression's tokens anew.
func rewriteExpr(tokens []token) (string, error) {
	parts := make([]string, len(tokens))
	before := make([]string, len(tokens)) // to be written in front
	items := subscripts(tokens)
	at := func(i int) token {
		if i < 0 || i >= len(tokens) {
			return token{kind: opToken}
		}
		return tokens[i]
	}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		afterIs := at(i-1).is(nameToken, "is")
		if at(i-1).is(nameToken, "not") && at(i-2).is(nameToken, "is") {
			afterIs = true
		}
		switch {
		case t.kind == stringToken:
			parts[i] = quoted(t.text)
		case t.kind == nameToken && at(i-1).is(opToken, "|"):
			if !filters[t.text] {
				return "", fail(ReasonUnsupported, "filter "+t.text)
			}
			if t.text == "safe" && (joins(at(i+1)) || joins(at(operand(tokens, i)-1))) {
				// What is joined to a safe string is escaped as HTML.
				return "", fail(ReasonUnsupported, "safe in a longer text")
			}
			parts[i] = ours + t.text
		case t.kind == nameToken && afterIs && t.text != "not":
			name, ok := tests[t.text]
			if !ok {
				return "", fail(ReasonUnsupported, "test "+t.text)
			}
			parts[i] = name
			if ownTests[t.text] {
				// X is [not] test becomes [not] ours(X).
				is, not := i-1, ""
				if at(is).text == "not" {
					is, not = i-2, "not "
				}
				from := operand(tokens, is-1)
				before[from] = not + ours + "is_" + name + "( " + before[from]
				parts[is], parts[i-1], parts[i] = "", "", ")"
			}
		case t.is(opToken, ".") && at(i+1).kind == nameToken && at(i+2).is(opToken, "(") && methods[at(i+1).text]:
			i++
			parts[i] = "| " + ours + "m_" + tokens[i].text
		case t.is(opToken, ".") && at(i+1).kind == nameToken && !at(i+2).is(opToken, "(") && dictMethods[at(i+1).text]:
			// A dict's method, which is what Python finds before a member.
			i++
			parts[i] = "| " + ours + "method(" + quoted(tokens[i].text) + ")"
		case items[i] && t.text == "[":
			parts[i] = "| " + ours + "item("
		case items[i]:
			parts[i] = ")"
		case t.kind == nameToken && strings.HasPrefix(t.text, ours):
			return "", fail(ReasonUnsupported, "name "+t.text)
		default:
			parts[i] = t.text
		}
	}
	wrapFactors(tokens, before, parts)
	wrapTerms(tokens, before, parts, "~", "string")
	wrapTerms(tokens, before, parts, "+", "summand")
	var b strings.Builder
	for i := range parts {
		b.WriteString(" " + before[i] + parts[i])
	}
	return b.String(), nil
}

// subscripts tells which brackets are those of a subscript that is no slice.
// The engine takes a string as the first index of a list, Python as none.
func subscripts(tokens []token) []bool {
	out := make([]bool, len(tokens))
	for i := 1; i < len(tokens); i++ {
		before := tokens[i-1]
		if !tokens[i].is(opToken, "[") || before.kind == numberToken || before.kind == nameToken && keywords[before.text] ||
			before.kind == opToken && before.text != ")" && before.text != "]" && before.text != "}" {
			continue
		}
		inside := bracketed(tokens[i:])
		depth, slice := 0, false
		for _, t := range inside {
			switch {
			case t.kind != opToken:
			case strings.Contains("([{", t.text):
				depth++
			case strings.Contains(")]}", t.text):
				depth--
			case t.text == ":" && depth == 1:
				slice = true
			}
		}
		out[i], out[i+len(inside)-1] = !slice, !slice
	}
	return out
}

// wrapFactors has a function of ours look at the operands of * and %.
func wrapFactors(tokens []token, before, parts []string) {
	wrap := func(from, end int) {
		before[from] = ours + "factor( " + before[from]
		parts[end] += " )"
	}
	for i, t := range tokens {
		if i == 0 || i+1 == len(tokens) || !t.is(opToken, "*") && !t.is(opToken, "%") {
			continue
		}
		if from := operand(tokens, i-1); from == 0 || !tokens[from-1].is(opToken, "*") && !tokens[from-1].is(opToken, "%") {
			wrap(from, i-1)
		}
		wrap(i+1, operandEnd(tokens, i+1))
	}
}

// operandEnd returns where the operand ends that begins with token i: a name or
// literal, a sign before it, and the members, subscripts, calls and filters behind.
func operandEnd(tokens []token, i int) int {
	for i+1 < len(tokens) && (tokens[i].is(opToken, "-") || tokens[i].is(opToken, "+")) {
		i++
	}
	for ; i < len(tokens); i++ {
		if tokens[i].kind == opToken && strings.Contains("([{", tokens[i].text) {
			i += len(bracketed(tokens[i:])) - 1
		}
		if i+1 >= len(tokens) || tokens[i+1].kind != opToken {
			break
		}
		switch tokens[i+1].text {
		case "(", "[":
		case ".", "|":
			i++
		default:
			return i
		}
	}
	return min(i, len(tokens)-1)
}

// wrapTerms has a function of ours make or look at the operands of an operator:
// strings of those of ~, as Python spells them.
func wrapTerms(tokens []token, before, parts []string, operator, function string) {
	for i, t := range tokens {
		if !t.is(opToken, operator) {
			continue
		}
		if from := operandStart(tokens, i-1); from <= i-1 && from >= 0 && (from == 0 || !tokens[from-1].is(opToken, operator)) {
			before[from] = ours + function + "( " + before[from]
			parts[i-1] += " )"
		}
		end := i + 1
		for depth := 0; end < len(tokens) && (depth > 0 || !endsOperand(tokens[end])); end++ {
			if tokens[end].kind == opToken {
				if strings.Contains("([{", tokens[end].text) {
					depth++
				} else if strings.Contains(")]}", tokens[end].text) {
					depth--
				}
			}
		}
		if end > i+1 {
			before[i+1] = ours + function + "( " + before[i+1]
			parts[end-1] += " )"
		}
	}
}

// operandStart returns where the operand of ~ begins that ends with token i.
func operandStart(tokens []token, i int) int {
	depth := 0
	for ; i >= 0; i-- {
		t := tokens[i]
		if t.kind == opToken && strings.Contains(")]}", t.text) {
			depth++
			continue
		}
		if depth > 0 {
			if t.kind == opToken && strings.Contains("([{", t.text) {
				depth--
			}
			continue
		}
		if endsOperand(t) || t.kind == opToken && strings.Contains("([{", t.text) {
			return i + 1
		}
	}
	return 0
}

// endsOperand tells whether a token binds looser than what ~ joins.
func endsOperand(t token) bool {
	if t.kind == nameToken {
		return keywords[t.text]
	}
	if t.kind != opToken {
		return false
	}
	switch t.text {
	case "~", "+", "-", ",", ":", "=", "==", "!=", "<", ">", "<=", ">=", ")", "]", "}":
		return true
	}
	return false
}

// operand returns where the operand begins that ends with token i: a name or
// literal with the members, subscripts, calls and filters behind it.
func operand(tokens []token, i int) int {
	for i > 0 {
		if t := tokens[i]; t.is(opToken, ")") || t.is(opToken, "]") || t.is(opToken, "}") {
			depth := 0
			for ; i > 0; i-- {
				if tokens[i].kind != opToken {
					continue
				}
				if strings.Contains(")]}", tokens[i].text) {
					depth++
				} else if strings.Contains("([{", tokens[i].text) {
					if depth--; depth == 0 {
						break
					}
				}
			}
			if i > 0 && (tokens[i-1].kind == nameToken && !keywords[tokens[i-1].text] || tokens[i-1].is(opToken, ")") || tokens[i-1].is(opToken, "]")) {
				i--
				continue
			}
		}
		if i < 2 || !tokens[i-1].is(opToken, ".") && !tokens[i-1].is(opToken, "|") {
			return i
		}
		i -= 2
	}
	return 0
}

// keywords may stand before a bracket without calling anything.
var keywords = map[string]bool{
	"and": true, "or": true, "not": true, "in": true, "is": true, "if": true, "else": true,
}

func joins(t token) bool { return t.is(opToken, "+") }

// tests are the tests taken, with what the engine calls the same: its sequence
// is a list only.
var tests = map[string]string{
	"defined": "defined", "undefined": "undefined", "none": "none", "string": "string",
	"mapping": "mapping", "iterable": "iterable", "sequence": "iterable", "true": "true",
	"false": "false", "boolean": "boolean", "integer": "integer", "float": "float",
	"number": "number", "eq": "eq", "equalto": "equalto", "ne": "ne", "in": "in",
	"callable": "callable", "odd": "odd", "even": "even",
}

// ownTests are the tests that functions of ours decide: in Python a string and
// what is undefined are iterable, and True is a number.
var ownTests = map[string]bool{"iterable": true, "sequence": true, "number": true}

var dictMethods = map[string]bool{
	"items": true, "keys": true, "values": true, "get": true, "pop": true,
	"update": true, "copy": true, "clear": true, "setdefault": true,
}
