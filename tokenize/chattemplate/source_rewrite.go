// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The template is written anew for the Jinja engine, so that the places where
// it parts from Jinja2 come to call functions of ours: text is printed from
// literals (white space is settled), printed values, filters and methods of
// strings and dicts go through functions with Python's semantics, what a loop
// pass sets is forgotten at the next one, and loops and macros count their work.

// ours is what the names of our functions and variables begin with.
const ours = "kv_"

type rewriter struct {
	out    strings.Builder
	frames []frame
	loops  int
	sets   map[int][]string // what each loop's body sets, by the number of the loop
}

type frame struct {
	block   string // for, macro, call
	loop    int
	targets []string // the loop's own variables
}

// rewrite returns the source for the Jinja engine.
func rewrite(segments []segment) (string, error) {
	r := rewriter{sets: make(map[int][]string)}
	for i := range segments {
		if segments[i].kind == stmtSegment {
			if err := r.survey(segments[i].tokens); err != nil {
				return "", err
			}
		}
	}
	if len(r.frames) > 0 {
		return "", fail(ReasonUnsupported, "unclosed block")
	}
	r.loops = 0
	for i := range segments {
		if err := r.segment(&segments[i]); err != nil {
			return "", err
		}
	}
	return r.out.String(), nil
}

// survey notes what loop bodies set.
func (r *rewriter) survey(tokens []token) error {
	switch word := tokens[0].text; word {
	case "for":
		targets, _ := forTargets(tokens)
		r.frames = append(r.frames, frame{block: word, loop: r.loops, targets: targets})
		r.loops++
	case "macro", "call":
		r.frames = append(r.frames, frame{block: word})
	case "endfor", "endmacro", "endcall":
		if len(r.frames) == 0 || r.frames[len(r.frames)-1].block != word[len("end"):] {
			return fail(ReasonUnsupported, "unbalanced blocks")
		}
		r.frames = r.frames[:len(r.frames)-1]
	case "set":
		if len(tokens) < 2 || len(r.frames) == 0 {
			break
		}
		f := &r.frames[len(r.frames)-1]
		name := tokens[1].text
		attribute := len(tokens) > 2 && tokens[2].is(opToken, ".")
		if f.block == "for" && !attribute && !slices.Contains(f.targets, name) && !slices.Contains(r.sets[f.loop], name) {
			r.sets[f.loop] = append(r.sets[f.loop], name)
		}
	}
	return nil
}

// forTargets returns a loop's variables, and where its iterable begins.
func forTargets(tokens []token) (targets []string, rest int) {
	for i, t := range tokens[1:] {
		switch {
		case t.is(nameToken, "in"):
			return targets, i + 2
		case t.kind == nameToken:
			targets = append(targets, t.text)
		}
	}
	return targets, len(tokens)
}

func (r *rewriter) segment(s *segment) error {
	switch s.kind {
	case textSegment:
		r.write("{{ ", ours, "print(", quoted(s.text), ") }}")
		return nil
	case exprSegment:
		expr, err := rewriteExpr(s.tokens)
		if err != nil {
			return err
		}
		r.write("{{ ", ours, "print(", expr, ") }}")
		return nil
	}
	word := s.tokens[0]
	if word.kind != nameToken {
		return fail(ReasonUnsupported, "statement")
	}
	rest := s.tokens[1:]
	expr, err := rewriteExpr(rest)
	if err != nil {
		return err
	}
	switch word.text {
	case "if", "elif":
		r.write("{% ", word.text, " ", expr, " %}")
	case "else", "endif", "endfor", "endset", "endcall", "break", "continue":
		r.write("{% ", word.text, " %}")
	case "for":
		return r.loop(s.tokens)
	case "set":
		return r.set(rest, expr)
	case "macro":
		return r.macro(rest, expr)
	case "endmacro":
		r.write("{% set ", ours, "t = ", ours, "leave() %}{% endmacro %}")
	case "call":
		r.write("{% call ", expr, " %}")
	case "generation", "endgeneration":
	default:
		return fail(ReasonUnsupported, "statement "+word.text)
	}
	return nil
}

func (r *rewriter) write(parts ...string) {
	for _, s := range parts {
		r.out.WriteString(s)
	}
}

func (r *rewriter) loop(tokens []token) error {
	if tokens[len(tokens)-1].is(nameToken, "recursive") {
		return fail(ReasonUnsupported, "recursive loop")
	}
	targets, iterable := loopOf(&segment{kind: stmtSegment, tokens: tokens})
	if len(targets) == 0 || len(targets) > 2 || len(iterable) == 0 {
		return fail(ReasonUnsupported, "form of a loop")
	}
	over, err := rewriteExpr(iterable)
	if err != nil {
		return err
	}
	_, from := forTargets(tokens)
	condition := tokens[from+len(iterable):]
	if len(targets) == 2 {
		condition = unpaired(condition, targets)
	}
	only, err := rewriteExpr(condition)
	if err != nil {
		return err
	}
	n := r.loops
	r.loops++
	for _, name := range r.sets[n] {
		r.write("{% set ", saved(n, name), " = ", name, " %}")
	}
	r.write("{% for ", strings.Join(targets, ", "), " in ", ours, "iter(", over, ")", only, " %}{% set ", ours, "t = ", ours, "tick() %}")
	for _, name := range r.sets[n] {
		r.write("{% set ", name, " = ", saved(n, name), " %}")
	}
	return nil
}

// unpaired returns a loop's condition with its variables taken from the pair
// that the engine binds to the second of them.
func unpaired(condition []token, targets []string) []token {
	var out []token
	for i, t := range condition {
		at := slices.Index(targets, t.text)
		if t.kind != nameToken || at < 0 || i > 0 && condition[i-1].is(opToken, ".") {
			out = append(out, t)
			continue
		}
		out = append(out, token{nameToken, targets[1]}, token{opToken, "["}, token{numberToken, strconv.Itoa(at)}, token{opToken, "]"})
	}
	return out
}

// saved names the variable that keeps what name was before a loop.
func saved(loop int, name string) string { return fmt.Sprintf("%s%d_%s", ours, loop, name) }

func (r *rewriter) set(tokens []token, expr string) error {
	assigns := slices.ContainsFunc(tokens, func(t token) bool { return t.is(opToken, "=") })
	switch {
	case len(tokens) == 1 && tokens[0].kind == nameToken,
		assigns && len(tokens) > 2 && tokens[1].is(opToken, "="),
		assigns && len(tokens) > 4 && tokens[1].is(opToken, ".") && tokens[3].is(opToken, "="):
		if assigns && len(tokens) > 4 && tokens[1].is(opToken, ".") {
			// The engine takes the names as they stand.
			value, err := rewriteExpr(tokens[4:])
			if err != nil {
				return err
			}
			expr = tokens[0].text + "." + tokens[2].text + " = " + value
		}
		r.write("{% set ", expr, " %}")
		return nil
	}
	return fail(ReasonUnsupported, "form of set")
}

func (r *rewriter) macro(tokens []token, expr string) error {
	// The engine splits parameters at each comma.
	for i, t := range tokens {
		if t.is(opToken, "=") && (i+2 >= len(tokens) || !tokens[i+2].is(opToken, ",") && !tokens[i+2].is(opToken, ")")) {
			if i+3 >= len(tokens) || !tokens[i+1].is(opToken, "[") || !tokens[i+2].is(opToken, "]") {
				return fail(ReasonUnsupported, "default of a parameter")
			}
		}
		if t.kind == stringToken && strings.ContainsAny(t.text, ",=()") {
			return fail(ReasonUnsupported, "default of a parameter")
		}
	}
	r.write("{% macro ", expr, " %}{% set ", ours, "t = ", ours, "enter() %}")
	return nil
}
