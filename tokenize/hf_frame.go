// SPDX-License-Identifier: Apache-2.0

package tokenize

import "encoding/json"

// frameConfig is the section post_processor, with the fields of all types.
type frameConfig struct {
	Type       string         `json:"type"`
	Processors []*frameConfig `json:"processors"`
	Single     []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		}
		Sequence *struct {
			ID string `json:"id"`
		}
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
	Sep json.RawMessage `json:"sep"`
	Cls json.RawMessage `json:"cls"`
}

// readFrame reads which ids the section post_processor puts around a text.
func (t *HFTokenizer) readFrame(section []byte) *HFError {
	var c *frameConfig
	if len(section) > 0 {
		if err := json.Unmarshal(section, &c); err != nil {
			return broken("post_processor", "%v", err)
		}
	}
	if c == nil {
		return nil
	}
	steps := []*frameConfig{c}
	if c.Type == "Sequence" {
		steps = c.Processors
	}
	for _, step := range steps {
		if step == nil {
			return broken("post_processor", "null")
		}
		switch step.Type {
		case "ByteLevel": // moves offsets only
		case "TemplateProcessing":
			if err := t.readTemplate(step); err != nil {
				return err
			}
		case "RobertaProcessing", "BertProcessing":
			cls, sep := uint32(0), uint32(0)
			if json.Unmarshal(step.Cls, &[]any{new(string), &cls}) != nil || json.Unmarshal(step.Sep, &[]any{new(string), &sep}) != nil {
				return broken("post_processor", "cls and sep are no pairs of a token and its id")
			}
			t.before = append([]uint32{cls}, t.before...)
			t.after = append(t.after, sep)
		default:
			return refused("post_processor", "%.40q is not known", step.Type)
		}
	}
	if len(t.before)+len(t.after) > 1000 {
		return refused("post_processor", "%d tokens around a text", len(t.before)+len(t.after))
	}
	for _, ids := range [][]uint32{t.before, t.after} {
		for _, id := range ids {
			if id > maxHFID {
				return broken("post_processor", "id %d", id)
			}
		}
	}
	return nil
}

func (t *HFTokenizer) readTemplate(c *frameConfig) *HFError {
	var before, after []uint32
	texts := 0
	for _, part := range c.Single {
		switch {
		case part.Sequence != nil:
			texts++
		case part.SpecialToken != nil:
			token, ok := c.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return broken("post_processor", "special token %.40q is not listed", part.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, token.IDs...)
			} else {
				after = append(after, token.IDs...)
			}
		}
	}
	if texts != 1 {
		return refused("post_processor", "a template that has the text %d times", texts)
	}
	t.before = append(before, t.before...)
	t.after = append(t.after, after...)
	return nil
}
