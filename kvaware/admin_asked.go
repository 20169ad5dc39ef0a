// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/kvaware/caddy-kvaware/tokenize"
)

// askedAbout answers what r asks about the LLM request in its body, in the pool
// that its query names: ?pool=; without it, the pool without a name, or the only
// one. The query's path is where that request would be sent, and tells its API;
// without it, the body's shape does. What is the name of the question. Answer is
// called with the request as that pool's first handler would read it; reader and
// request are its own until it returns.
func askedAbout(r *http.Request, what string, answer func(*poolView, *routing, *tokenize.Reader, *tokenize.Request) (any, error)) (answered any, err error) {
	query := r.URL.Query()
	v, err := poolToAsk(query)
	if err != nil {
		return nil, err
	}
	p := v.explainer
	if p == nil {
		return nil, refuse(http.StatusServiceUnavailable, "no configuration with this pool has started yet: try again")
	}
	defer func() {
		if val := recover(); val != nil {
			p.panicked(what, val)
			answered, err = nil, refuse(http.StatusInternalServerError, "%s failed: see the log", what)
		}
	}()

	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, refuse(http.StatusBadRequest, "%s: send the body as it is without Content-Encoding", bodyCompressed)
	}
	body, outcome := readBody(r, p.MaxBody, &v.pool.budget)
	defer body.drop()
	switch outcome {
	case bodyRead:
	case bodyTooLong:
		return nil, refuse(http.StatusRequestEntityTooLarge, "%s: the handler reads at most %d bytes (max_body), and routes longer bodies by their length", outcome, p.MaxBody)
	case bodyNoRoom:
		return nil, refuse(http.StatusServiceUnavailable, "%s: the requests under way hold all of max_buffered; try again", outcome)
	default:
		return nil, refuse(http.StatusBadRequest, "%s: the body ended early", outcome)
	}

	done, ok := turn(r.Context(), len(body.bytes()))
	if !ok {
		return nil, r.Context().Err()
	}
	defer done()
	rd := tokenize.AcquireReader()
	defer rd.Release()
	rt := &routing{policy: p, keys: p.keysNow(), pinnedRank: -1, generates: true, missed: true}
	if p.IsolateBy != "" {
		rt.isolate(query.Get("tenant"))
	}
	rd.SetSecret(rt.keys.chains)
	if p.InjectSalt {
		rd.SetSalter(rt.salt)
	}
	req, err := readAs(rd, query.Get("path"), body.bytes())
	if err != nil {
		return nil, err
	}
	rt.model = p.aliases.nameOf(req.Model)
	rt.salted = p.InjectSalt && len(rd.Salting(nil)) > 0
	rt.demandOf(r.Context(), rd, req)
	if req.PreviousResponseID != "" {
		rt.response = p.pool.responses.key(req.PreviousResponseID)
	}
	return answer(&v, rt, rd, req)
}

// poolToAsk gives the pool that a query means.
func poolToAsk(query url.Values) (poolView, error) {
	views, err := poolsAsked(query)
	if err != nil {
		return poolView{}, err
	}
	// The pool without a name is the first, if there is one.
	if len(views) == 1 || len(views) > 0 && views[0].pool.name == "" {
		return views[0], nil
	}
	all := make([]*pool, len(views))
	for i := range views {
		all[i] = views[i].pool
	}
	if len(all) == 0 {
		return poolView{}, refuse(http.StatusNotFound, "no pool: %s", poolNames(all))
	}
	return poolView{}, refuse(http.StatusBadRequest, "give the pool with ?pool=: %s", poolNames(all))
}

// guessedPaths are tried in turn for a body that comes without a path.
var guessedPaths = [...]string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"}

// readAs reads a body as one sent to path, or to what its shape suggests if path
// is empty. The error says why it cannot be read, and quotes nothing of it.
func readAs(rd *tokenize.Reader, path string, body []byte) (*tokenize.Request, error) {
	paths := guessedPaths[:]
	if path != "" {
		paths = []string{path}
	}
	var first error
	for _, path := range paths {
		req, err := rd.Read(tokenize.KindOfPath(path), path, body)
		if err == nil {
			return req, nil
		}
		if first == nil {
			first = unreadable(err)
		}
		var typed *tokenize.Error
		if errors.As(err, &typed) && typed.Reason != tokenize.ReasonNoPrompt {
			break
		}
	}
	return nil, first
}

// remedies say what to do about a body whose prompt was not read.
var remedies = map[tokenize.Reason]string{
	tokenize.ReasonEmpty:         "send the body of an LLM request",
	tokenize.ReasonNotJSON:       "send the body as JSON; with curl, --data-binary @file keeps it as it is",
	tokenize.ReasonTruncated:     "the JSON ends too early: send all of it",
	tokenize.ReasonTrailingData:  "send one JSON object and nothing behind it",
	tokenize.ReasonNotObject:     "send a JSON object",
	tokenize.ReasonTooDeep:       "nested deeper than any engine reads: such requests are routed by their length",
	tokenize.ReasonTooManyValues: "more values than are read: such requests are routed by their length",
	tokenize.ReasonTooLarge:      "longer than can be read: such requests are routed by their length",
	tokenize.ReasonNoPrompt:      "the prompt that this API asks for is missing: check the body, or say where the request would be sent (?path=, on the command line --path)",
	tokenize.ReasonUnlisted:      "no API whose prompt is read: such requests are routed by their length; ?path= (on the command line --path) tells the API, for example /v1/chat/completions",
}

// unreadable says why a body was not read. It quotes nothing of it.
func unreadable(err error) error {
	var typed *tokenize.Error
	if !errors.As(err, &typed) {
		return refuse(http.StatusBadRequest, "the body cannot be read: check that it is an LLM request")
	}
	return refuse(http.StatusBadRequest, "%s at byte %d: %s", string(typed.Reason), typed.Offset, remedies[typed.Reason])
}

// promptTokens counts the tokens of all prompts, as corrected.
func (rt *routing) promptTokens() (sum int64) {
	for i := range rt.request.Demand.Prompts {
		sum += int64(rt.request.Demand.Prompts[i].Tokens)
	}
	return sum
}
