// SPDX-License-Identifier: Apache-2.0

package tokenize

import "fmt"

// HFError tells why a tokenizer.json was not taken.
type HFError struct {
	Path    string // of the file
	Place   string // in the file: a byte offset or the way to a value
	Problem string
	Remedy  string
}

func (e *HFError) Error() string {
	return fmt.Sprintf("tokenizer %s: %s: %s; %s", e.Path, e.Place, e.Problem, e.Remedy)
}

const (
	remedyDownload = "download the file again"
	remedyRefused  = "it is not approximated; use another tokenizer setting for this model"
)

// broken is the error of a file that is no tokenizer.json.
func broken(place, format string, a ...any) *HFError {
	return &HFError{Place: place, Problem: fmt.Sprintf(format, a...), Remedy: remedyDownload}
}

// refused is the error of a tokenizer that is not understood.
func refused(place, format string, a ...any) *HFError {
	return &HFError{Place: place, Problem: fmt.Sprintf(format, a...), Remedy: remedyRefused}
}
