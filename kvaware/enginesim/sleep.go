// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"net/http"
	"slices"
	"strconv"
)

// Sleep levels, in vLLM's words: 0 stops work, 1 moves the weights away and 2 drops
// them; 1 and 2 lose what is in the KV cache.
const (
	awake        = -1
	deepestSleep = 2
)

// errAsleep is the answer to requests while the engine sleeps. vLLM does not say
// what becomes of them; here they end at once.
var errAsleep = &apiError{
	Message: "The engine is asleep: wake it up with POST /wake_up",
	Type:    "ServiceUnavailable",
	Code:    http.StatusServiceUnavailable,
}

// serveSleep puts the engine to sleep. Requests under way end as they would.
func (h *Handler) serveSleep(w http.ResponseWriter, r *http.Request, _ failure) error {
	level := int64(1)
	if given := r.URL.Query().Get("level"); given != "" {
		var err error
		if level, err = strconv.ParseInt(given, 10, 32); err != nil || level < 0 || level > deepestSleep {
			return invalid("int_parsing", "'level'", "Input should be a level from 0 to 2").write(w)
		}
	}
	if level > 0 {
		h.replica.resetPrefixCache()
	}
	h.replica.sleep.Store(int32(level))
	return writeJSON(w, http.StatusOK, map[string]any{"status": "sleeping", "level": level})
}

// serveWakeUp wakes the engine up, unless it is told to take back its weights
// alone.
func (h *Handler) serveWakeUp(w http.ResponseWriter, r *http.Request, _ failure) error {
	status := "sleeping"
	if tags := r.URL.Query()["tags"]; len(tags) == 0 || slices.Contains(tags, "kv_cache") {
		h.replica.sleep.Store(awake)
		status = "awake"
	}
	return writeJSON(w, http.StatusOK, map[string]string{"status": status})
}

func (h *Handler) serveIsSleeping(w http.ResponseWriter, _ *http.Request, _ failure) error {
	return writeJSON(w, http.StatusOK, map[string]bool{"is_sleeping": h.replica.sleep.Load() != awake})
}
