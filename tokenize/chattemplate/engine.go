// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// The bounds of one rendering in the Jinja engine.
const (
	maxSteps      = 1 << 20 // loop passes and macro calls
	maxMacroDepth = 256
	checkEvery    = 64      // steps between looks at the deadline
	builtPerCheck = 1 << 20 // bytes of operands between such looks
	itemBytes     = 64      // about what an item of a list takes
	maxItems      = 1 << 20 // values in one that is spelt
)

// partsOf tells which engines give the template lists of parts as content.
type partsOf struct{ vllm, sglang bool }

// program is a template compiled for the Jinja engine; it is never changed.
type program struct {
	template *jinja.Template
	parts    partsOf
	// developer tells that the template knows the role of that name, or names it;
	// vLLM makes it the system's role for all others.
	developer bool
}

func compile(source string) (p *program, err error) {
	defer func() {
		if recover() != nil {
			p, err = nil, fail(ReasonUnsupported, "syntax")
		}
	}()
	segments, err := lex(source)
	if err != nil {
		return nil, err
	}
	rewritten, err := rewrite(segments)
	if err != nil {
		return nil, err
	}
	template, err := jinja.Compile(rewritten)
	if err != nil {
		return nil, fail(ReasonUnsupported, err.Error())
	}
	parts := partsOf{vllm: loopsOverContent(segments), sglang: sglangParts(source, segments)}
	developer := strings.Contains(source, `"developer"`) || strings.Contains(source, `'developer'`)
	return &program{template: template, parts: parts, developer: developer}, nil
}

// run is the state of one rendering. The engine calls its functions from the
// goroutine that renders.
type run struct {
	ctx      context.Context
	deadline time.Time
	chat     *chat
	most     int
	printed  int
	built    int // bytes of operands
	steps    int
	depth    int
}

func (r *run) step() error {
	if r.steps++; r.steps > maxSteps {
		return fail(ReasonTooLarge, "loop passes")
	}
	if r.steps%checkEvery == 0 {
		return r.late()
	}
	return nil
}

func (r *run) late() error {
	if r.ctx.Err() != nil || !r.deadline.IsZero() && time.Now().After(r.deadline) {
		return fail(ReasonDeadline, "")
	}
	return nil
}

func (r *run) spend(bytes int) error {
	if r.printed += bytes; r.printed > r.most {
		return fail(ReasonTooLarge, "output")
	}
	return nil
}

// operand accounts for a text or a list that something is made of, of so many
// bytes. What is made of one that is within bounds is a small multiple of it.
func (r *run) operand(bytes int) error {
	if bytes > r.most {
		return fail(ReasonTooLarge, "text")
	}
	before := r.built / builtPerCheck
	if r.built += bytes; r.built/builtPerCheck > before {
		return r.late()
	}
	return nil
}

// render runs the template over a chat.
func (p *program) render(ctx context.Context, c *chat, deadline time.Time, most int) (text string, err error) {
	r := &run{ctx: ctx, deadline: deadline, chat: c, most: most}
	defer func() {
		// The engine panics on some arguments that Python raises TypeError for.
		if recover() != nil {
			text, err = "", fail(ReasonTemplate, "")
		}
	}()
	vars, err := r.variables()
	if err != nil {
		return "", err
	}
	text, err = p.template.RenderValues(vars)
	var own *Error
	switch {
	case err == nil:
		return text, nil
	case errors.As(err, &own):
		return "", own
	}
	// The engine's message may quote a value.
	return "", fail(ReasonTemplate, "")
}

// variables are what the template sees.
func (r *run) variables() (map[string]jinja.Value, error) {
	c := r.chat
	vars := make(map[string]jinja.Value, 64)
	r.functions(vars)
	var err error
	set := func(name string, v Value) {
		if err == nil {
			vars[name], err = toEngine(v)
		}
	}
	for i := range c.special {
		set(c.special[i].name, c.special[i].value)
	}
	set("messages", Value{kind: List, items: c.messages})
	set("tools", c.tools)
	set("documents", c.documents)
	set("add_generation_prompt", Truth(c.generate))
	for i, key := range c.arguments.keys {
		if len(key) >= len(ours) && key[:len(ours)] == ours {
			return nil, fail(ReasonUnsupported, "name of an argument")
		}
		set(key, c.arguments.items[i])
	}
	return vars, err
}

// toEngine converts a value for the engine.
func toEngine(v Value) (jinja.Value, error) {
	switch v.kind {
	case Null:
		return jinja.None(), nil
	case Bool:
		return jinja.NewBool(v.truth), nil
	case Int:
		n, err := strconv.ParseInt(v.text, 10, 64)
		if err != nil {
			return jinja.Value{}, fail(ReasonUnsupported, "integer beyond 64 bits")
		}
		return jinja.NewInt(n), nil
	case Float:
		return jinja.NewFloat(v.float), nil
	case String:
		return jinja.NewString(v.text), nil
	case List:
		items := make([]jinja.Value, len(v.items))
		for i := range items {
			var err error
			if items[i], err = toEngine(v.items[i]); err != nil {
				return jinja.Value{}, err
			}
		}
		return jinja.NewList(items), nil
	case Dict:
		d := jinja.Dict{Keys: make([]string, 0, len(v.keys)), Data: make(map[string]jinja.Value, len(v.keys))}
		for i, key := range v.keys {
			item, err := toEngine(v.items[i])
			if err != nil {
				return jinja.Value{}, err
			}
			d.Set(key, item)
		}
		dict := jinja.NewDict()
		*dict.AsDict() = d
		return dict, nil
	}
	return jinja.Undefined(), nil
}

// fromEngine converts a value back, to spell it. A template can nest values no
// deeper than the chat's and its own literals, unless it nests one in itself. One
// that holds another in two places has that many more to spell.
func fromEngine(v jinja.Value) (Value, error) {
	left := maxItems
	return fromEngineAt(v, 0, &left)
}

func fromEngineAt(v jinja.Value, depth int, left *int) (Value, error) {
	if depth > 2*maxDepth {
		return Value{}, fail(ReasonTooLarge, "depth")
	}
	if *left--; *left < 0 {
		return Value{}, fail(ReasonTooLarge, "value")
	}
	switch {
	case v.IsUndefined():
		return Value{}, nil
	case v.IsNone():
		return Value{kind: Null}, nil
	case v.IsBool():
		return Truth(v.AsBool()), nil
	case v.IsInt():
		return Value{kind: Int, text: strconv.FormatInt(v.AsInt(), 10)}, nil
	case v.IsFloat():
		return Value{kind: Float, float: v.AsFloat()}, nil
	case v.IsString():
		return Text(v.AsString()), nil
	case v.IsList():
		list := Value{kind: List, items: make([]Value, v.AsList().Len())}
		for i, item := range v.AsList().Items {
			var err error
			if list.items[i], err = fromEngineAt(item, depth+1, left); err != nil {
				return Value{}, err
			}
		}
		return list, nil
	case v.IsDict():
		d := v.AsDict()
		dict := Value{kind: Dict, keys: d.Keys, items: make([]Value, len(d.Keys))}
		for i, key := range d.Keys {
			var err error
			if dict.items[i], err = fromEngineAt(d.Data[key], depth+1, left); err != nil {
				return Value{}, err
			}
		}
		return dict, nil
	}
	return Value{}, fail(ReasonUnsupported, "a function as a value")
}
