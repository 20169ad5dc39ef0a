// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// missing is a status that says that the engine has no such endpoint.
const missing Reason = "missing"

const (
	readSize = 32 << 10
	// What an answer may have beyond what its text explains: ids that the template
	// adds, and the members besides the ids, in bytes.
	moreIDs   = 1 << 16
	moreBytes = 1 << 20
	// idBytes is what an id takes at most: ten digits, a comma, some white space.
	idBytes = 16
)

var readBuffers = sync.Pool{New: func() any { return new([readSize]byte) }}

// exchange posts the question to an endpoint, and reads the ids in its answer.
func (c *Client) exchange(ctx context.Context, endpoint *url.URL, key string, q Question) (Answer, Reason) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.String(), bytes.NewReader(q.Body))
	if err != nil {
		return Answer{}, Unreachable
	}
	for name, values := range c.header {
		req.Header[name] = values
		if name == "Host" {
			req.Host = values[0]
		}
	}
	req.Header.Set("Content-Type", "application/json")
	// A question changes nothing, so it may be sent again where the engine closed
	// an idle connection at that moment. Without a value the name is not sent.
	req.Header["Idempotency-Key"] = []string{}
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return Answer{}, Unreachable
	}
	defer func() { _ = res.Body.Close() }()
	buffer := readBuffers.Get().(*[readSize]byte)
	defer readBuffers.Put(buffer)
	if res.StatusCode != http.StatusOK {
		n, _ := io.ReadFull(res.Body, buffer[:1024])
		return Answer{}, statusReason(res.StatusCode, buffer[:n])
	}
	// A token has a byte at least, and JSON makes no text shorter; a normalizer may
	// make it longer.
	s := scanner{key: key, most: 4*len(q.Body) + moreIDs}
	left := int64(s.most)*idBytes + moreBytes
	for {
		n, err := res.Body.Read(buffer[:])
		if left -= int64(n); left < 0 || s.write(buffer[:n]) != nil {
			return Answer{}, Invalid
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Answer{}, Unreachable
		}
	}
	if s.end() != nil || len(s.ends) != q.Prompts {
		return Answer{}, Invalid
	}
	return Answer{IDs: s.ids, Ends: s.ends}, ""
}

// statusReason tells what a status other than 200 says of the question, the
// engine or the endpoint. With 404 vLLM also says that it has no such model; an
// endpoint that is not there is answered by FastAPI itself. With 403 vLLM says that
// it was started without --enable-scale-out, which Render needs in 0.32.
func statusReason(status int, body []byte) Reason {
	switch status {
	case http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return missing
	case http.StatusNotFound:
		if strings.Contains(string(body), `"error"`) || strings.Contains(string(body), `"message"`) {
			return Refused
		}
		return missing
	case http.StatusUnauthorized, http.StatusProxyAuthRequired, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return Status
	}
	if status >= 400 && status < 500 {
		return Refused
	}
	return Status
}
