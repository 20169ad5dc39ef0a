// SPDX-License-Identifier: Apache-2.0

package chattemplate

import "strings"

// maxConfig bounds a tokenizer_config.json, which may list tens of thousands of
// added tokens.
const maxConfig = 32 << 20

// specialTokens are the members of tokenizer_config.json that a template sees
// as variables, besides what extra_special_tokens names.
var specialTokens = []string{
	"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
	"additional_special_tokens",
}

// Load makes a template of a tokenizer_config.json and, where there is one, the
// text of a .jinja file (chat_template.jinja beside it, or one that the engine
// was given), which goes before the configuration's own template. Either may be
// empty. The configuration's template is a string, or a list of named ones of
// which "default" and "tool_use" are known. The error is an [*Error].
func Load(config []byte, file string, options Options) (*Template, error) {
	if options.MaxInput <= 0 {
		options.MaxInput = defaultMaxInput
	}
	if options.MaxOutput <= 0 {
		options.MaxOutput = defaultMaxOutput
	}
	if options.MaxTime <= 0 {
		options.MaxTime = defaultMaxTime
	}
	if len(config) > maxConfig {
		return nil, fail(ReasonTooLarge, "tokenizer_config.json")
	}
	t := &Template{options: options}
	var err error
	if t.arguments, err = FromJSON(options.Arguments); err != nil {
		return nil, err
	}
	if k := t.arguments.kind; k != Undefined && k != Null && k != Dict {
		return nil, fail(ReasonShape, "arguments are no object")
	}
	c, err := FromJSON([]byte(strings.TrimPrefix(string(config), "\ufeff")))
	if err != nil {
		return nil, err
	}
	t.special = tokensOf(c)
	plain, tools := file, ""
	if file == "" {
		plain, tools = textsOf(c.Get("chat_template"))
	}
	if plain == "" {
		return nil, fail(ReasonShape, "no chat template")
	}
	if t.plain, err = load(plain, options.NoBuiltin); err == nil && tools != "" {
		t.tools, err = load(tools, options.NoBuiltin)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

func load(text string, jinjaOnly bool) (source, error) {
	program, err := compile(text)
	if err != nil {
		return source{}, err
	}
	s := source{program: program}
	if !jinjaOnly {
		s.builtin = builtins[digestOf(text)]
	}
	return s, nil
}

// textsOf returns the template, and the one for chats with tools.
func textsOf(v Value) (plain, tools string) {
	if v.kind == String {
		return v.text, ""
	}
	for _, named := range v.items {
		text := named.Get("template").text
		switch named.Get("name").text {
		case "default":
			plain = text
		case "tool_use":
			tools = text
		}
	}
	return plain, tools
}

// tokensOf returns the special tokens, each a string or an object with its
// content.
func tokensOf(config Value) []member {
	var out []member
	add := func(name string, v Value) {
		if v.kind == Dict {
			v = v.Get("content")
		}
		if v.kind == List {
			list := Value{kind: List}
			for _, item := range v.items {
				if item.kind == Dict {
					item = item.Get("content")
				}
				if item.kind == String {
					list.items = append(list.items, item)
				}
			}
			v = list
		}
		if v.truthy() && v.kind >= String {
			out = append(out, member{name, v})
		}
	}
	for _, name := range specialTokens {
		add(name, config.Get(name))
	}
	if extra := config.Get("extra_special_tokens"); extra.kind == Dict {
		for i, name := range extra.keys {
			add(name, extra.items[i])
		}
	}
	return out
}
