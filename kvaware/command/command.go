// SPDX-License-Identifier: Apache-2.0

// Package command adds `caddy kv-aware` and its subcommands to Caddy's command
// line. Each has a file of its own and an entry in commands.
package command

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

// commands make the subcommands.
var commands = []func() *cobra.Command{
	tokenizeCommand,
	explainCommand,
	statusCommand,
	topCommand,
	replayCommand,
	recordCommand,
	dashboardCommand,
}

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "kv-aware",
		Usage: "<command>",
		Short: "Looks into load balancing by tokens (lb_policy kv_aware)",
		Long: `
Looks into what the selection policy kv_aware of reverse_proxy does, most of it
by asking the admin API of a running Caddy.`,
		CobraFunc: addCommands,
	})
}

func addCommands(parent *cobra.Command) {
	parent.Args = cobra.NoArgs // so that a misspelt command is an error
	parent.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, make := range commands {
		cmd := make()
		cmd.RunE = exiting(cmd.RunE)
		parent.AddCommand(cmd)
	}
}
