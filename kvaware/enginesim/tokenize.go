// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// tokenized is vLLM's answer of /tokenize (TokenizeResponse in
// vllm/entrypoints/serve/tokenize/protocol.py).
type tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []uint32 `json:"tokens"`
	Strings     []string `json:"token_strs"`
}

// serveTokenize tells the token ids of a chat, or of a prompt that is one text.
func (h *Handler) serveTokenize(w http.ResponseWriter, r *http.Request, _ failure) error {
	as := h.reading()
	as.keepIDs = true
	p, err := as.tokenize(r.Body)
	var answer *apiError
	switch {
	case errors.As(err, &answer):
		return answer.write(w)
	case err != nil:
		return bodyError(err).write(w)
	}
	ids := p.ids
	if ids == nil {
		ids = []uint32{}
	}
	return writeJSON(w, http.StatusOK, tokenized{Count: p.tokens, MaxModelLen: h.MaxModelLen, Tokens: ids})
}

func (as reading) tokenize(from io.Reader) (*prompt, error) {
	b, err := as.readBody(from)
	if err != nil {
		return nil, err
	}
	c := &call{choices: 1}
	if given(b.Messages) {
		err = c.readChat(b, as)
	} else {
		if text := strings.TrimLeft(string(b.Prompt), " \t\r\n"); given(b.Prompt) && text[0] != '"' {
			return nil, invalid("string_type", "'prompt'", "Input should be a valid string")
		}
		err = c.readCompletions(b, as)
	}
	if err != nil {
		return nil, err
	}
	return &c.prompts[0], nil
}
