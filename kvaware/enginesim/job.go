// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// choice is one answer that is being generated.
type choice struct {
	job    *job
	prompt int // index into call.prompts
	answer answer
	finish int
	seq    engine.Sequence // guarded by replica.mu

	// As last observed, the request's goroutine only.
	generated, cached int
	sent              int // tokens of it that are in the stream
}

func (c *choice) done() bool { return c.generated == c.answer.tokens }

// job is a request in the engine.
type job struct {
	call    *call
	replica *replica
	id      string
	created int64
	fail    failure
	choices []choice
	news    chan struct{} // tokens came since it was last read; holds one
}

// generate answers a request for text.
func (h *Handler) generate(w http.ResponseWriter, r *http.Request, dialect api, fail failure) error {
	c, err := h.reading().readCall(dialect, r.Body)
	var answer *apiError
	switch {
	case errors.As(err, &answer):
		return answer.write(w)
	case err != nil:
		return bodyError(err).write(w)
	}
	if fail.kind == fail500 {
		return errEngine.write(w)
	}
	if h.replica.sleep.Load() != awake {
		return errAsleep.write(w)
	}
	j, err := h.newJob(c, fail)
	if errors.As(err, &answer) {
		return answer.write(w)
	}
	if err := h.replica.submit(j); err != nil {
		return badRequest(err.Error(), "input_tokens").write(w)
	}
	// Whatever ends this call, a panic that breaks the connection included, ends
	// the request in the engine.
	defer h.replica.cancel(j)
	if c.stream {
		return j.stream(r.Context(), w)
	}
	return j.respond(r.Context(), w)
}

// reading is what the engine reads requests for.
func (h *Handler) reading() reading {
	return reading{blockSize: h.key.params.BlockSize, model: h.Model, keepIDs: h.key.events.publishes()}
}

// bodyError words what went wrong while the body was read.
func bodyError(err error) *apiError {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &apiError{Message: "Request body is too large", Type: "Request Entity Too Large", Code: http.StatusRequestEntityTooLarge}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("json_invalid", "0", "JSON decode error")
	}
	return &apiError{Message: "There was an error parsing the body", Type: "Bad Request", Code: http.StatusBadRequest}
}

// newJob makes the sequences of a request, within the model's length.
func (h *Handler) newJob(c *call, fail failure) (*job, error) {
	j := &job{
		call:    c,
		replica: h.replica,
		id:      fmt.Sprintf("chatcmpl-%016x%016x", rand.Uint64(), rand.Uint64()),
		created: h.now().Unix(),
		fail:    fail,
		choices: make([]choice, len(c.prompts)*c.choices),
		news:    make(chan struct{}, 1),
	}
	if c.api == completions {
		j.id = "cmpl-" + j.id[len("chatcmpl-"):]
	}
	for i := range c.prompts {
		p := &c.prompts[i]
		room := h.MaxModelLen - p.tokens
		if room < max(1, c.maxTokens) {
			return nil, badRequest(fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d output tokens"+
				" and your prompt contains %d input tokens, for a total of %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
				h.MaxModelLen, c.maxTokens, p.tokens, p.tokens+c.maxTokens), "input_tokens")
		}
		for n := range c.choices {
			a := invent(c, p.identity()+uint64(n), h.Output, room)
			j.choices[i*c.choices+n] = choice{
				job:    j,
				prompt: i,
				answer: a,
				finish: a.reason(),
				seq: engine.Sequence{
					Prompt: p.tokens, Blocks: p.blocks,
					Output: a.tokens, OutputBlocks: p.output(a),
					NoReuse: c.noReuse,
				},
			}
			j.choices[i*c.choices+n].seq.Owner = &j.choices[i*c.choices+n]
		}
	}
	return j, nil
}

// wait waits for tokens; false means that the client has left.
func (j *job) wait(ctx context.Context) bool {
	select {
	case <-j.news:
		j.replica.observe(j)
		return true
	case <-ctx.Done():
		return false
	}
}

// misbehave dies or stalls, as told, once so many tokens were given away.
func (j *job) misbehave(ctx context.Context, tokens int) (stalled bool) {
	if tokens < j.fail.after {
		return false
	}
	switch j.fail.kind {
	case failDie:
		panic(http.ErrAbortHandler)
	case failStall:
		<-ctx.Done()
		return true
	}
	return false
}

// respond answers in one piece.
func (j *job) respond(ctx context.Context, w http.ResponseWriter) error {
	for {
		tokens, left := 0, 0
		for i := range j.choices {
			tokens += j.choices[i].generated
			if !j.choices[i].done() {
				left++
			}
		}
		if j.misbehave(ctx, tokens) {
			return nil
		}
		if left == 0 {
			return writeJSON(w, http.StatusOK, j.whole())
		}
		if !j.wait(ctx) {
			return nil
		}
	}
}

// usage is what vLLM counts, over all prompts and choices. Cached tokens are
// counted once a prompt, for its first choice.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (j *job) usage() usage {
	u := usage{}
	for i := range j.choices {
		c := &j.choices[i]
		u.Completion += c.generated
		if i%j.call.choices == 0 {
			u.Prompt += j.call.prompts[c.prompt].tokens
			u.Details.Cached += c.cached
		}
	}
	u.Total = u.Prompt + u.Completion
	return u
}
