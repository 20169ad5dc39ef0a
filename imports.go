// SPDX-License-Identifier: Apache-2.0

// Package kvaware makes `xcaddy build --with github.com/kvaware/caddy-kvaware`
// work: it brings in the Caddy modules of this repository, which live in the
// package kvaware below it. The module that users name is
// http.reverse_proxy.selection_policies.kv_aware, and the command is
// `caddy kv-aware`.
package kvaware

import (
	_ "github.com/kvaware/caddy-kvaware/kvaware"         // registers the modules
	_ "github.com/kvaware/caddy-kvaware/kvaware/command" // registers caddy kv-aware
)
