// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

func TestSocketsThatAskForAPasswordAreShownIt(t *testing.T) {
	t.Setenv("KV_TEST_PASSWORD", "a password")
	engine := proxytest.NewEngine(t, nil)
	pub := zmtp.NewPublisher(zmtp.Options{Username: "router", Password: "a password"})
	defer pub.Close()
	at, err := pub.Bind(local(0))
	if err != nil {
		t.Fatal(err)
	}
	conf := func(password string) string {
		return site(engine.Addr(), fmt.Sprintf("kv_events {\nport %s\nplain router %q\n}", portOf(at), password), "")
	}
	c := proxytest.Start(t, "", conf("{env.KV_TEST_PASSWORD}"))
	eventually(t, "the upstream is connected", func() bool {
		s := followedStates(t, c)
		return len(s) == 1 && s[0].Connected
	})
	payload := kvevents.AppendBatch(nil, &kvevents.Batch{Time: float64(time.Now().Unix()), Rank: -1, Events: []kvevents.Event{storedBlocks(1, 5)}}, 0)
	pub.Publish(nil, binary.BigEndian.AppendUint64(nil, 0), payload)
	eventually(t, "its blocks are known", func() bool { return followedStates(t, c)[0].GPUBlocks == 5 })

	c.Reload("", conf("another password"))
	eventually(t, "it is refused", func() bool {
		s := followedStates(t, c)
		return len(s) == 1 && !s[0].Connected && s[0].LastError != ""
	})
	if text := followedStates(t, c)[0].LastError; strings.Contains(text, "password") {
		t.Errorf("the error tells the password: %s", text)
	}
}
