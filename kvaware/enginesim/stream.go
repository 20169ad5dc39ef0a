// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
)

// eventStream writes server-sent events as vLLM words them.
type eventStream struct {
	job    *job
	head   []byte // of every event, up to the choices
	buf    []byte
	tokens int // given away
}

// stream answers token by token. The headers go out at once, as vLLM's do.
func (j *job) stream(ctx context.Context, w http.ResponseWriter) error {
	object := "chat.completion.chunk"
	if j.call.api == completions {
		object = "text_completion"
	}
	model, err := json.Marshal(j.call.model)
	if err != nil {
		return err
	}
	s := &eventStream{job: j}
	s.head = append(s.head, `data: {"id":"`+j.id+`","object":"`+object+`","created":`...)
	s.head = strconv.AppendInt(s.head, j.created, 10)
	s.head = append(s.head, `,"model":`...)
	s.head = append(s.head, model...)
	s.head = append(s.head, `,"choices":[`...)

	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	controller := http.NewResponseController(w)
	// The client may have left: what it does not get, waiting will tell.
	flush := func() {
		_, _ = w.Write(s.buf)
		_ = controller.Flush()
		s.buf = s.buf[:0]
	}
	flush()
	if j.misbehave(ctx, 0) {
		return nil
	}
	for roles := j.call.api == chat; ; {
		if !j.wait(ctx) {
			return nil
		}
		if roles {
			// The role-only chunks of all choices come with the first token of any.
			for i := range j.choices {
				s.role(i)
			}
			roles = false
		}
		left := 0
		for i := range j.choices {
			c := &j.choices[i]
			for ; c.sent < c.generated; c.sent++ {
				if j.fail.kind != failNot && s.tokens >= j.fail.after {
					flush()
					if j.misbehave(ctx, s.tokens) {
						return nil
					}
				}
				s.token(i, c)
			}
			if !c.done() {
				left++
			}
		}
		if left == 0 {
			break
		}
		flush()
	}
	if j.call.includeUsage {
		total, err := json.Marshal(j.usage())
		if err != nil {
			return err
		}
		s.buf = append(s.buf, s.head...)
		s.buf = append(s.buf, `],"usage":`...)
		s.buf = append(s.buf, total...)
		s.buf = append(s.buf, "}\n\n"...)
	}
	s.buf = append(s.buf, "data: [DONE]\n\n"...)
	flush()
	return nil
}

// role says that choice i is the assistant's, before its first token.
func (s *eventStream) role(i int) {
	s.open(i)
	s.buf = append(s.buf, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
	s.close(&s.job.choices[i], 0)
}

// token sends the next token of choice i.
func (s *eventStream) token(i int, c *choice) {
	text := c.answer.text(c.sent) // ASCII that JSON need not escape
	last := c.sent == c.answer.tokens-1
	s.tokens++
	s.open(i)
	if s.job.call.api == chat {
		s.buf = append(s.buf, `"delta":{"content":"`+text+`"},"logprobs":null,"finish_reason":`...)
	} else {
		s.buf = append(s.buf, `"text":"`+text+`","logprobs":null,"finish_reason":`...)
	}
	if last {
		s.buf = append(s.buf, `"`+finishReasons[c.finish]+`"`...)
	} else {
		s.buf = append(s.buf, "null"...)
	}
	if last || s.job.call.api == completions {
		s.buf = append(s.buf, `,"stop_reason":null`...)
	}
	s.buf = append(s.buf, '}')
	s.close(c, c.sent+1)
}

func (s *eventStream) open(i int) {
	s.buf = append(s.buf, s.head...)
	s.buf = append(s.buf, `{"index":`...)
	s.buf = strconv.AppendInt(s.buf, int64(i), 10)
	s.buf = append(s.buf, ',')
}

// close ends an event, with the choice's own usage if the client asked for it.
func (s *eventStream) close(c *choice, generated int) {
	s.buf = append(s.buf, ']')
	if s.job.call.continuousUsage {
		prompt := s.job.call.prompts[c.prompt].tokens
		s.buf = append(s.buf, `,"usage":{"prompt_tokens":`...)
		s.buf = strconv.AppendInt(s.buf, int64(prompt), 10)
		s.buf = append(s.buf, `,"total_tokens":`...)
		s.buf = strconv.AppendInt(s.buf, int64(prompt+generated), 10)
		s.buf = append(s.buf, `,"completion_tokens":`...)
		s.buf = strconv.AppendInt(s.buf, int64(generated), 10)
		s.buf = append(s.buf, '}')
	}
	s.buf = append(s.buf, "}\n\n"...)
}
