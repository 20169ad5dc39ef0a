// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// control is a request that changes what an engine holds, or whether it serves at
// all. It reaches one engine, and no event need tell of what it did.
type control struct {
	withdraws string // the reason for which what it holds is withdrawn, "" if it stays
	sleeps    bool   // it gives its memory away
	rouses    bool   // it has it take back some of it
	wakes     bool   // it has it take back all of it
	lists     bool   // it changes which models are served
}

// controls are these requests by the end of their path, of vLLM 0.32 (its routers
// under vllm/entrypoints/serve, most of them in development mode only) and SGLang
// 0.5.23 (srt/entrypoints/http_server.py), which takes some of them as GET too.
var controls = map[string]control{
	// vLLM
	"reset_prefix_cache":      {withdraws: withdrawnReset},
	"sleep":                   {withdraws: withdrawnAsleep, sleeps: true},
	"release_kv_cache_memory": {withdraws: withdrawnAsleep, sleeps: true},
	"wake_up":                 {rouses: true, wakes: true},
	"pause":                   {withdraws: withdrawnReset},
	"collective_rpc":          {withdraws: withdrawnReset}, // may be any of these
	"update_weights":          {withdraws: withdrawnNewWeights},
	"finish_weight_update":    {withdraws: withdrawnNewWeights},
	// SGLang
	"flush_cache":                     {withdraws: withdrawnReset},
	"release_memory_occupation":       {withdraws: withdrawnAsleep, sleeps: true},
	"resume_memory_occupation":        {rouses: true, wakes: true},
	"update_weights_from_disk":        {withdraws: withdrawnNewWeights},
	"update_weights_from_tensor":      {withdraws: withdrawnNewWeights},
	"update_weights_from_distributed": {withdraws: withdrawnNewWeights},
	"update_weights_from_ipc":         {withdraws: withdrawnNewWeights},
	"end_weight_update":               {withdraws: withdrawnNewWeights},
	"pd_role_switch":                  {withdraws: withdrawnReset},
	// both
	"load_lora_adapter":   {lists: true},
	"unload_lora_adapter": {lists: true},
}

// controlOf tells whether a request is one of these, and what it does; nil if not.
func controlOf(r *http.Request) *control {
	if r.Method != http.MethodPost && r.Method != http.MethodGet {
		return nil
	}
	name := path.Base(r.URL.Path)
	if _, known := controls[name]; !known {
		return nil // as nearly all; nothing is allocated for them
	}
	does := controls[name]
	query, _ := url.ParseQuery(r.URL.RawQuery) // what can be read of it
	switch name {
	case "sleep": // level 0 stops work, and keeps the cache
		if query.Get("level") == "0" {
			does.withdraws = ""
		}
	case "pause": // requests freeze with their blocks, or the cache is to stay
		if query.Get("mode") == "keep" || strings.EqualFold(query.Get("clear_cache"), "false") {
			does.withdraws = ""
		}
	case "wake_up": // weights alone serve nobody
		if tags := query["tags"]; len(tags) > 0 && !slices.Contains(tags, "kv_cache") {
			does.wakes = false
		}
	}
	return &does
}

// controlled takes in that an engine did what a request told it to.
func (pl *pool) controlled(u *upstream, does *control) {
	u = u.engine
	switch {
	case does.sleeps:
		u.mark(true, pl.now())
	case does.wakes:
		u.mark(false, pl.now())
	}
	if does.withdraws != "" {
		pl.invalidateEngine(u, does.withdraws)
	}
	if does.lists || does.sleeps || does.wakes {
		pl.pollers.kick(u)
	}
}
