// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/tokenize"
	"github.com/kvaware/caddy-kvaware/tokenize/remote"
)

// RemoteTokenizer asks engines for the token ids of each prompt, so that counts
// and blocks are the engine's own with no file of the model at hand. While no
// answer comes, prompts are counted as by `auto`, with a ratio learnt for it; those
// blocks match none of the engine's own, so an engine that often answers late costs
// affinity. Asked are chats and completions of the OpenAI API, of text alone, each
// once: what was answered is kept in `token_cache`. A further turn of a
// conversation is another prompt and is asked anew, as a chat template may render
// earlier messages in another way once there are later ones.
type RemoteTokenizer struct {
	// Base URLs of engines that serve the model, such as `http://10.0.0.1:8000`.
	// They take turns; where one does not answer, the next is tried in the time
	// that is left. One that failed five times in a row is left alone for five
	// seconds, and then tried with one prompt; long prompts are reckoned apart. At
	// least one, at most 64.
	Engines []string `json:"engines,omitempty"`

	// How to ask:
	//
	// - `render`: vLLM's `/v1/chat/completions/render` and `/v1/completions/render`,
	//   which go the way of the request itself. vLLM 0.32 serves them if started with
	//   `--enable-scale-out` or as `vllm launch render`.
	// - `tokenize`: `/tokenize` of vLLM and SGLang. Prompts with documents, a
	//   reasoning effort, a response format, a choice of tools or `reasoning_content`
	//   are not asked for, as vLLM takes no notice of them there. Not for gpt-oss,
	//   which vLLM renders in another way than there.
	//
	// Default: `render` where an engine has it, else `tokenize`.
	API string `json:"api,omitempty"`

	// The longest that a request waits for the answer, from 1ms to 10s. Engines
	// encode a few megabytes of text a second. Default: 50ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// Most questions of this handler under way at one time, each of which holds a
	// copy of its prompt; a prompt beyond them does not wait. From 1 to 1024.
	// Default: 16.
	MaxConcurrent int `json:"max_concurrent,omitempty"`

	// Headers to send with each question, such as an API key. Global placeholders
	// such as {env.NAME} are replaced in their values.
	Headers http.Header `json:"headers,omitempty"`
}

// The defaults and bounds of the remote tokenizer's options.
const (
	defaultRemoteTimeout    = 50 * time.Millisecond
	minRemoteTimeout        = time.Millisecond
	maxRemoteTimeout        = 10 * time.Second
	defaultRemoteConcurrent = 16
	maxRemoteConcurrent     = 1024
	maxRemoteEngines        = 64
)

// remoteAPIs are the ways of asking by name.
var remoteAPIs = map[string]remote.API{"": remote.Any, "render": remote.Render, "tokenize": remote.Tokenize}

// provision fills in defaults and makes the client, which opens nothing.
func (t *RemoteTokenizer) provision(repl *caddy.Replacer) (*tokens, error) {
	if t == nil || len(t.Engines) == 0 {
		return nil, fmt.Errorf("kind %s needs the base URL of an engine in engines, such as http://10.0.0.1:8000", tokenizerRemote)
	}
	if len(t.Engines) > maxRemoteEngines {
		return nil, fmt.Errorf("engines: %d are given: expecting at most %d", len(t.Engines), maxRemoteEngines)
	}
	if t.Timeout == 0 {
		t.Timeout = caddy.Duration(defaultRemoteTimeout)
	}
	setDefault(&t.MaxConcurrent, defaultRemoteConcurrent)
	api, known := remoteAPIs[t.API]
	timeout := time.Duration(t.Timeout)
	switch {
	case !known:
		return nil, fmt.Errorf("api %q: expecting render or tokenize, or none to find out", t.API)
	case timeout < minRemoteTimeout || timeout > maxRemoteTimeout:
		return nil, fmt.Errorf("timeout %v: expecting %v to %v", timeout, minRemoteTimeout, maxRemoteTimeout)
	case t.MaxConcurrent < 1 || t.MaxConcurrent > maxRemoteConcurrent:
		return nil, fmt.Errorf("max_concurrent %d: expecting 1 to %d", t.MaxConcurrent, maxRemoteConcurrent)
	}
	engines := make([]*url.URL, len(t.Engines))
	for i := range t.Engines {
		if err := replaceKnown(repl, "engines", &t.Engines[i]); err != nil {
			return nil, err
		}
		var err error
		if engines[i], err = remote.Parse(t.Engines[i]); err != nil {
			return nil, fmt.Errorf("engine %d: %w", i+1, err)
		}
	}
	header, err := replacedHeader(repl, t.Headers)
	if err != nil {
		return nil, err
	}
	described := tokenizerRemote
	for _, e := range engines {
		described += " " + e.String()
	}
	if t.API != "" {
		described += " by " + t.API
	}
	return &tokens{
		described: described,
		asking:    t.describe(header),
		remote: remote.New(remote.Options{
			Engines:       engines,
			API:           api,
			Timeout:       timeout,
			MaxConcurrent: t.MaxConcurrent,
			Header:        header,
		}),
	}, onDemand[standInEncoding].load(standInEncoding)
}

// describe tells settings apart that do not change what prompts become.
func (t *RemoteTokenizer) describe(header http.Header) string {
	return fmt.Sprintf("timeout %v, max_concurrent %d", time.Duration(t.Timeout), t.MaxConcurrent) + describeHeader(header)
}

// What became of asking, beside the reasons of package remote.
const (
	remoteAnswered = "answered"
	remoteCached   = "cached"
	remoteIDs      = "given" // as ids, so that nothing had to be asked
)

// chain fills the blocks and tokens of the request's prompts.
func (rt *routing) chain(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request) {
	p := rt.policy
	if p.tokens.remote != nil {
		rt.asked = p.chainRemote(ctx, rd, req)
		switch rt.asked {
		case remoteAnswered, remoteCached, remoteIDs:
			rt.exact = true
			return
		}
	}
	rt.exact = rd.ChainExact(ctx, req, p.tokens.exact, p.encoder(req.Model, rt.keys), p.BlockSize)
}

// questions are buffers for questions that the cache may know the answer to.
var questions = sync.Pool{New: func() any { return new([]byte) }}

// keptQuestion is the capacity, in bytes, up to which such a buffer is kept.
const keptQuestion = 1 << 20

// chainRemote fills the prompts with what engines make of them, and says how, or
// why it could not.
func (p *Policy) chainRemote(ctx context.Context, rd *tokenize.Reader, req *tokenize.Request) string {
	if rd.ChainIDs(req, p.BlockSize) {
		return remoteIDs
	}
	buffer := questions.Get().(*[]byte)
	defer questions.Put(buffer)
	q, ok := askingFor(buffer, rd, req)
	if !ok {
		return string(remote.Unsupported)
	}
	cache := p.pool.tokens.Load()
	if rd.ChainAnswered(req, cache, p.tokens.key, q.Body, p.BlockSize) {
		return remoteCached
	}
	path := "/v1/chat/completions"
	if req.Kind == tokenize.OpenAICompletions {
		path = "/v1/completions"
	}
	answer, err := p.tokens.remote.Ask(ctx, remote.Question{
		Path:       path,
		Body:       q.Body,
		Prompts:    len(req.Prompts),
		RenderOnly: q.RenderOnly,
	})
	if err != nil {
		var typed *remote.Error
		errors.As(err, &typed) // Ask gives no other
		return string(typed.Reason)
	}
	// The cache keeps chains and not their ids, so it is given those of all sizes now.
	if reports := p.pool.reported(); reports != nil {
		for _, size := range reports.BlockSizes(nil) {
			if size != p.BlockSize {
				rd.ChainAnswer(req, cache, p.tokens.key, q.Body, answer.IDs, answer.Ends, size)
			}
		}
	}
	if !rd.ChainAnswer(req, cache, p.tokens.key, q.Body, answer.IDs, answer.Ends, p.BlockSize) {
		return string(remote.Invalid)
	}
	return remoteAnswered
}

// chainRemembered fills the prompts with what engines are known to make of them,
// in blocks of a size, or reports that it is not known.
func (p *Policy) chainRemembered(rd *tokenize.Reader, req *tokenize.Request, blockSize int) bool {
	if rd.ChainIDs(req, blockSize) {
		return true
	}
	buffer := questions.Get().(*[]byte)
	defer questions.Put(buffer)
	q, ok := askingFor(buffer, rd, req)
	return ok && rd.ChainAnswered(req, p.pool.tokens.Load(), p.tokens.key, q.Body, blockSize)
}

// askingFor makes the question for a request's tokens in a buffer.
func askingFor(buffer *[]byte, rd *tokenize.Reader, req *tokenize.Request) (q tokenize.Question, ok bool) {
	q, ok = rd.AppendQuestion((*buffer)[:0], req)
	if ok && cap(q.Body) <= keptQuestion {
		*buffer = q.Body
	}
	return q, ok
}

// tokenizer says what the request's text became tokens with.
func (rt *routing) tokenizer(model string) string {
	t := rt.policy.tokens
	if t.remote == nil {
		return t.name(model)
	}
	if rt.exact {
		return t.described + " (" + rt.asked + ")"
	}
	return t.described + " (" + rt.asked + ": " + t.standIn(model) + " instead)"
}
