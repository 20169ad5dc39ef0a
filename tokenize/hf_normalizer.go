// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// normalizer makes a text over. It returns either text itself, or what it wrote
// to buf, which does not overlap text.
type normalizer interface {
	normalize(buf *[]byte, text []byte) []byte
}

// prependText puts a text in front of every other one than the empty one.
type prependText []byte

func (n prependText) normalize(buf *[]byte, text []byte) []byte {
	if len(text) == 0 {
		return text
	}
	*buf = append(append((*buf)[:0], n...), text...)
	return *buf
}

// replaceText replaces each old.
type replaceText struct{ old, new []byte }

func (n *replaceText) normalize(buf *[]byte, text []byte) []byte {
	if !bytes.Contains(text, n.old) {
		return text
	}
	*buf = appendReplaced((*buf)[:0], text, n.old, n.new)
	return *buf
}

// replaceSpaces replaces each run of two or more spaces.
type replaceSpaces struct{ new []byte }

func (n *replaceSpaces) normalize(buf *[]byte, text []byte) []byte {
	b := (*buf)[:0]
	for {
		i := bytes.Index(text, []byte("  "))
		if i < 0 {
			break
		}
		b = append(append(b, text[:i]...), n.new...)
		for i < len(text) && text[i] == ' ' {
			i++
		}
		text = text[i:]
	}
	*buf = append(b, text...)
	return *buf
}

// strip drops white space at the ends.
type strip struct{ left, right bool }

func (n strip) normalize(_ *[]byte, text []byte) []byte {
	if n.right {
		text = text[:trimSpaceRight(text)]
	}
	if n.left {
		text = text[spaceLeft(text):]
	}
	return text
}

// normalizerConfig is the section normalizer, with the fields of all types.
type normalizerConfig struct {
	Type        string              `json:"type"`
	Normalizers []*normalizerConfig `json:"normalizers"`
	Prepend     string              `json:"prepend"`
	Pattern     *struct {
		Regex  *string
		String *string
	} `json:"pattern"`
	Content string `json:"content"`
	Left    *bool  `json:"strip_left"`
	Right   *bool  `json:"strip_right"`
	Map     []byte `json:"precompiled_charsmap"`
}

// readNormalizers understands the section normalizer or refuses it.
func readNormalizers(section []byte) ([]normalizer, *HFError) {
	var c *normalizerConfig
	if len(section) > 0 {
		if err := json.Unmarshal(section, &c); err != nil {
			return nil, broken("normalizer", "%v", err)
		}
	}
	if c == nil {
		return nil, nil
	}
	steps := []*normalizerConfig{c}
	if c.Type == "Sequence" {
		steps = c.Normalizers
	}
	if len(steps) > 20 {
		return nil, refused("normalizer", "%d steps", len(steps))
	}
	var all []normalizer
	grow := 1
	for i, step := range steps {
		place := "normalizer"
		if c.Type == "Sequence" {
			place = fmt.Sprintf("normalizer.normalizers[%d]", i)
		}
		if step == nil {
			return nil, broken(place, "null")
		}
		n, err := step.normalizer(place)
		if err != nil {
			return nil, err
		}
		// No step may blow a text up without measure.
		if grow *= max(1, len(step.Content)); grow > 64 || len(step.Prepend) > 64 {
			return nil, refused(place, "a text could grow more than 64 times")
		}
		all = append(all, n)
	}
	return all, nil
}

func (c *normalizerConfig) normalizer(place string) (normalizer, *HFError) {
	switch c.Type {
	case "NFC":
		return nfc{}, nil
	case "Prepend":
		return prependText(c.Prepend), nil
	case "Strip":
		// Left out, both are true.
		return strip{c.Left == nil || *c.Left, c.Right == nil || *c.Right}, nil
	case "Precompiled":
		m, err := newCharacterMap(c.Map)
		if err != nil {
			return nil, broken(place, "precompiled_charsmap: %v", err)
		}
		return m, nil
	case "Replace":
		switch p := c.Pattern; {
		case p != nil && p.String != nil && *p.String != "":
			return &replaceText{[]byte(*p.String), []byte(c.Content)}, nil
		case p != nil && p.Regex != nil && *p.Regex == " {2,}":
			return &replaceSpaces{[]byte(c.Content)}, nil
		case p != nil && p.Regex != nil:
			return nil, refused(place, "the regular expression %.200q is not known", *p.Regex)
		}
		return nil, broken(place, "a Replace without a pattern")
	}
	return nil, refused(place, "%.40q is not known", c.Type)
}

// leavesNoSpace reports whether the last step replaces every space.
func leavesNoSpace(all []normalizer) bool {
	if len(all) == 0 {
		return false
	}
	last, ok := all[len(all)-1].(*replaceText)
	return ok && string(last.old) == " " && !strings.Contains(string(last.new), " ")
}
