// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"fmt"
	"slices"

	"github.com/caddyserver/caddy/v2"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App opens the sockets of engines that publish KV events, once the whole config
// is known to be good. Nobody needs to configure it: the first such engine creates
// it.
type App struct {
	engines []*Handler // one for each publisher
	started []*publisher
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "kv_aware_engines",
		New: func() caddy.Module { return new(App) },
	}
}

// use has the sockets of a handler's engine opened when the config starts.
func (a *App) use(h *Handler) error {
	for _, other := range a.engines {
		switch {
		case other.replica == h.replica:
			return nil
		case other.key.events.clashes(h.key.events):
			return fmt.Errorf("kv_events: the engines %q and %q have an endpoint in common: give each its own", other.Name, h.Name)
		}
	}
	a.engines = append(a.engines, h)
	return nil
}

// Start opens the sockets of all engines, or of none.
func (a *App) Start() error {
	for _, h := range a.engines {
		if err := h.replica.publisher.open(); err != nil {
			a.close()
			return fmt.Errorf("engine %q: %w", h.Name, err)
		}
		a.started = append(a.started, h.replica.publisher)
	}
	return nil
}

// Stop closes the sockets that no other config uses.
func (a *App) Stop() error {
	a.close()
	return nil
}

func (a *App) close() {
	for _, p := range slices.Backward(a.started) {
		p.close()
	}
	a.started = nil
}

// Interface guards
var (
	_ caddy.App = (*App)(nil)
)
