// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is an error as vLLM reports it.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

func (e *apiError) write(w http.ResponseWriter) error {
	return writeJSON(w, e.Code, map[string]*apiError{"error": e})
}

// badRequest is what the server finds wrong with a request it could read.
func badRequest(message, param string) *apiError {
	e := &apiError{Message: message, Type: "BadRequestError", Code: http.StatusBadRequest}
	if param != "" {
		e.Param = &param
	}
	return e
}

// invalid is a body that does not have the request's form. The detail imitates
// the list of errors that vLLM's web framework prints, without the input.
func invalid(kind, at, message string) *apiError {
	return &apiError{
		Message: fmt.Sprintf("[{'type': '%s', 'loc': ('body', %s), 'msg': '%s'}]", kind, at, message),
		Type:    "Bad Request",
		Code:    http.StatusBadRequest,
	}
}

func missing(field string) *apiError {
	return invalid("missing", "'"+field+"'", "Field required")
}

var errEngine = &apiError{
	Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
	Type:    "InternalServerError",
	Code:    http.StatusInternalServerError,
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(body)
	return err
}
