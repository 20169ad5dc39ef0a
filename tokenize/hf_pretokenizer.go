// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"encoding/json"
	"fmt"
)

// preTokenizer is how a text is cut before the model sees it.
type preTokenizer struct {
	byteLevel   bool         // the model's units are bytes
	prefixSpace bool         // a text that begins with no space gets one
	stages      []splitStage // each cuts the pieces of the one before

	words      bool // cut at white space, which is dropped
	metaspace  bool // spaces become the mark
	atMarks    bool // cut before each mark
	mark       []byte
	prepend    prependScheme
	noSpaceCut bool // a cut at spaces, which the normalizer must leave none of
}

type prependScheme uint8

const (
	prependNever prependScheme = iota
	prependFirst
	prependAlways
)

// splitStage returns the end of the piece that begins at text[p]; p < len(text).
type splitStage func(t *classTable, text []byte, p int) int

// splitPatterns are the known regular expressions. All but those that leave gaps
// match some part at every place of a text.
var splitPatterns = map[string]struct {
	stage splitStage
	gaps  bool
}{
	patternGPT2:      {stage: endGPT2},
	patternCL100K:    {stage: endCL100K},
	patternQwen:      {stage: endQwen},
	patternQwenMarks: {stage: endQwenMarks},
	patternO200K:     {stage: endO200K},
	patternTekken:    {stage: endTekken},
	patternDeepSeek:  {stage: endDeepSeek, gaps: true},

	`\p{N}{1,3}`:   {stage: endOfThreeNumbersOrNone, gaps: true},
	`\p{N}`:        {stage: endOfNumberOrNone, gaps: true},
	"[一-龥぀-ゟ゠-ヿ]+": {stage: endOfKanaOrNone, gaps: true},
}

const (
	patternGPT2      = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternCL100K    = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen      = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwenMarks = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternO200K     = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` +
		`|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// The line ends in it are not escaped in the file's regular expression.
	patternDeepSeek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" +
		"| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// preTokenizerConfig is the section pre_tokenizer, with the fields of all types.
type preTokenizerConfig struct {
	Type          string                `json:"type"`
	PreTokenizers []*preTokenizerConfig `json:"pretokenizers"`
	Pattern       *struct {
		Regex  *string
		String *string
	} `json:"pattern"`
	Behavior         string `json:"behavior"`
	Invert           bool   `json:"invert"`
	AddPrefixSpace   *bool  `json:"add_prefix_space"`
	UseRegex         *bool  `json:"use_regex"`
	IndividualDigits bool   `json:"individual_digits"`
	Replacement      string `json:"replacement"`
	PrependScheme    string `json:"prepend_scheme"`
	Split            *bool  `json:"split"`
}

// readPreTokenizer understands the section pre_tokenizer or refuses it.
func readPreTokenizer(section []byte) (*preTokenizer, *HFError) {
	var c *preTokenizerConfig
	if len(section) > 0 {
		if err := json.Unmarshal(section, &c); err != nil {
			return nil, broken("pre_tokenizer", "%v", err)
		}
	}
	p := &preTokenizer{}
	if c == nil {
		return p, nil
	}
	steps := []*preTokenizerConfig{c}
	if c.Type == "Sequence" {
		steps = c.PreTokenizers
	}
	for i, step := range steps {
		place := "pre_tokenizer"
		if c.Type == "Sequence" {
			place = fmt.Sprintf("pre_tokenizer.pretokenizers[%d]", i)
		}
		if step == nil {
			return nil, broken(place, "null")
		}
		if p.byteLevel || p.metaspace {
			return nil, refused(place, "%.40q after the text is made over", step.Type)
		}
		if err := p.add(step, place, i == 0); err != nil {
			return nil, err
		}
	}
	if len(p.stages) > 0 && !p.byteLevel {
		return nil, refused("pre_tokenizer", "cuts by patterns without ByteLevel")
	}
	if len(p.stages) > maxStages {
		return nil, refused("pre_tokenizer", "%d cuts in a row", len(p.stages))
	}
	return p, nil
}

func (p *preTokenizer) add(c *preTokenizerConfig, place string, first bool) *HFError {
	switch c.Type {
	case "ByteLevel":
		return p.addByteLevel(c, place, first)
	case "Split":
		return p.addSplit(c, place)
	case "Digits":
		p.stages = append(p.stages, endOfDigitsOrNone)
		if c.IndividualDigits {
			p.stages[len(p.stages)-1] = endOfNumberOrNone
		}
	case "WhitespaceSplit":
		if !first {
			return refused(place, "WhitespaceSplit after other cuts")
		}
		p.words = true
	case "Metaspace":
		return p.addMetaspace(c, place)
	default:
		return refused(place, "%.40q is not known", c.Type)
	}
	return nil
}

func (p *preTokenizer) addByteLevel(c *preTokenizerConfig, place string, first bool) *HFError {
	if p.words || p.noSpaceCut {
		return refused(place, "ByteLevel after cuts at white space")
	}
	p.byteLevel = true
	// Left out, both are true.
	p.prefixSpace = c.AddPrefixSpace == nil || *c.AddPrefixSpace
	if p.prefixSpace && !first {
		return refused(place, "a space before each piece")
	}
	if c.UseRegex == nil || *c.UseRegex {
		p.stages = append(p.stages, endGPT2)
	}
	return nil
}

func (p *preTokenizer) addSplit(c *preTokenizerConfig, place string) *HFError {
	switch {
	case c.Pattern == nil:
		return broken(place, "a Split without a pattern")
	case c.Pattern.String != nil:
		// Gemma's: its normalizer leaves no spaces to cut at.
		if *c.Pattern.String != " " || p.words || len(p.stages) > 0 {
			return refused(place, "a cut at the string %.40q", *c.Pattern.String)
		}
		p.noSpaceCut = true
		return nil
	case c.Pattern.Regex == nil:
		return broken(place, "a pattern that is no Regex and no String")
	}
	pattern, ok := splitPatterns[*c.Pattern.Regex]
	switch {
	case !ok:
		return refused(place, "the regular expression %.500q is not known", *c.Pattern.Regex)
	case c.Behavior == "Isolated":
	case c.Behavior == "Removed" && c.Invert && !pattern.gaps:
		// What matches is kept, and that is everything.
	default:
		return refused(place, "behavior %.40q, invert %t", c.Behavior, c.Invert)
	}
	if p.words || p.noSpaceCut {
		return refused(place, "a cut by a pattern after one at white space")
	}
	p.stages = append(p.stages, pattern.stage)
	return nil
}

func (p *preTokenizer) addMetaspace(c *preTokenizerConfig, place string) *HFError {
	if len(p.stages) > 0 || p.noSpaceCut {
		return refused(place, "Metaspace after other cuts")
	}
	if len([]rune(c.Replacement)) != 1 || c.Replacement == " " {
		return refused(place, "the replacement %.40q", c.Replacement)
	}
	p.metaspace = true
	p.mark = []byte(c.Replacement)
	p.atMarks = c.Split == nil || *c.Split
	switch {
	case c.PrependScheme == "always", c.PrependScheme == "" && (c.AddPrefixSpace == nil || *c.AddPrefixSpace):
		p.prepend = prependAlways
	case c.PrependScheme == "never", c.PrependScheme == "":
		p.prepend = prependNever
	case c.PrependScheme == "first":
		p.prepend = prependFirst
	default:
		return refused(place, "prepend_scheme %.40q", c.PrependScheme)
	}
	if c.PrependScheme != "" && c.AddPrefixSpace != nil && *c.AddPrefixSpace != (p.prepend != prependNever) {
		return refused(place, "prepend_scheme and add_prefix_space contradict each other")
	}
	if p.words && p.prepend == prependFirst {
		return refused(place, "prepend_scheme first after WhitespaceSplit")
	}
	return nil
}
