// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// failHeader asks for a failure of one request.
const failHeader = "X-Engine-Fail"

type failKind uint8

const (
	failNot failKind = iota
	failRefuse
	fail500
	failDie
	failStall
)

// failure is how a request fails.
type failure struct {
	kind  failKind
	after int // tokens, for die and stall
}

const defaultFailAfter = 8

// parseFailure reads refuse, 500, die[:N] or stall[:N]; empty is no failure.
func parseFailure(s string) (failure, error) {
	kind, tokens, counted := strings.Cut(s, ":")
	f := failure{}
	switch kind {
	case "":
	case "refuse":
		f.kind = failRefuse
	case "500":
		f.kind = fail500
	case "die":
		f = failure{failDie, defaultFailAfter}
	case "stall":
		f = failure{failStall, defaultFailAfter}
	default:
		return failure{}, fmt.Errorf("bad value %.40q: expecting refuse, 500, die[:tokens] or stall[:tokens]", s)
	}
	if counted {
		n, err := strconv.ParseUint(tokens, 10, 31)
		if err != nil || f.after == 0 {
			return failure{}, fmt.Errorf("bad value %.40q: expecting die:<tokens> or stall:<tokens>", s)
		}
		f.after = int(n)
	}
	return f, nil
}

// failureOf tells how this request fails: as it asks to, else by the config.
func (h *Handler) failureOf(r *http.Request) (failure, error) {
	if asked := r.Header.Get(failHeader); asked != "" {
		f, err := parseFailure(asked)
		if err != nil {
			return f, fmt.Errorf("%s: %w", failHeader, err)
		}
		return f, nil
	}
	if h.fail.kind != failNot && (h.FailRate == nil || h.chance() < *h.FailRate) {
		return h.fail, nil
	}
	return failure{}, nil
}
