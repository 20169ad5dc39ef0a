// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// Exit codes, so that scripts can tell what is wrong. All else that fails is 1, and
// 2 and 3 are Caddy's own.
const (
	exitNoCaddy  = 4 // no Caddy answers
	exitNoPolicy = 5 // a Caddy answers, but has no kv_aware, or not that pool
)

// failure is an error with an exit code of its own.
type failure struct {
	error
	code int
}

func (f failure) Unwrap() error { return f.error }

// exiting makes a command's run exit with the code of its error.
func exiting(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		var f failure
		if !errors.As(err, &f) {
			return err
		}
		// Caddy's main takes codes from its own error alone, which nothing else makes.
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return f.code, err })(cmd, args)
	}
}
