// SPDX-License-Identifier: Apache-2.0

// Command caddy is Caddy with its standard modules, this plugin, and the
// simulated engine of the examples: a build without xcaddy.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/kvaware/caddy-kvaware"
	_ "github.com/kvaware/caddy-kvaware/kvaware/enginesim"
)

func main() { caddycmd.Main() }
