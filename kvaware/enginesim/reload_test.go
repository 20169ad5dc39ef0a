// SPDX-License-Identifier: Apache-2.0

package enginesim

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

// site is a site with an engine that publishes.
func site(options string) string {
	return `http:// {
		bind {SITE}
		kv_aware_engine a {
			model demo
			kv_events {
				endpoint        ipc://{DIR}/pub
				replay_endpoint ipc://{DIR}/replay
			}
			` + options + `
		}
	}`
}

// subscribe subscribes, and waits until the engine that has the endpoint knows.
func subscribe(t *testing.T, f *follower, to string) *zmtp.Socket {
	t.Helper()
	s := f.listen(to)
	opening.Lock()
	pub := opened[len(opened)-1].pub
	opening.Unlock()
	if err := pub.WaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	return s
}

// stored posts a prompt of that text and waits for the next batch.
func stored(t *testing.T, c *proxytest.Caddy, s *zmtp.Socket, text string) (seq byte) {
	t.Helper()
	proxytest.ReadAll(t, c.Post(completionsPath, `{"max_tokens":1,"prompt":"`+strings.Repeat(text, 20)+`"}`))
	var m zmtp.Message
	s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
	if err := s.Receive(&m); err != nil {
		t.Fatal(err)
	}
	return m.Frames[1][7]
}

// ended waits for the socket's end.
func ended(t *testing.T, s *zmtp.Socket) {
	t.Helper()
	s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
	if err := s.Receive(new(zmtp.Message)); zmtp.ReasonOf(err) != zmtp.PeerClosed {
		t.Fatalf("the subscription ends with %v", err)
	}
}

func TestReloadsKeepSubscriptionsAndChangesOfTheEngineEndThem(t *testing.T) {
	c := proxytest.Start(t, "", site("speed 1000"))
	f := newFollower(t, "demo", "")
	pub, replay := "ipc://"+c.Dir()+"/pub", "ipc://"+c.Dir()+"/replay"
	s := subscribe(t, f, pub)
	if seq := stored(t, c, s, "ping"); seq != 0 {
		t.Fatalf("the first batch is %d", seq)
	}

	c.Reload("", site("speed 1000\nmax_model_len 5000\noutput 3"))
	if seq := stored(t, c, s, "pong"); seq != 1 {
		t.Errorf("batch %d after a reload, want 1", seq)
	}
	f.replay(replay)
	if f.next != 2 {
		t.Errorf("%d batches can be asked for after a reload, want 2", f.next)
	}

	// Another engine, as a restarted one: it counts anew.
	c.Reload("", site("speed 2000"))
	ended(t, s)
	s = subscribe(t, f, pub)
	if seq := stored(t, c, s, "sing"); seq != 0 {
		t.Errorf("batch %d of another engine, want 0", seq)
	}

	// A config that fails at its start gives the endpoint back.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = c.TryReload("", site("speed 3000")+"\nhttp://"+taken.Addr().String()+" {\nrespond no\n}\n"+
		"http://127.0.0.1:8 {\nbind 192.0.2.1\nrespond never\n}")
	if err == nil {
		t.Fatal("a config was taken that cannot listen")
	}
	s.Close()
	s = subscribe(t, f, pub)
	if seq := stored(t, c, s, "song"); seq != 1 {
		t.Errorf("batch %d after a config that failed, want 1", seq)
	}

	c.Reload("", "http:// {\nbind {SITE}\nkv_aware_engine a {\nmodel demo\n}\n}")
	ended(t, s)
	at, _ := zmtp.ParseEndpoint(pub)
	if _, err := zmtp.Dial(t.Context(), at, zmtp.Options{Type: zmtp.SUB}); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting after the engine has gone: %v", err)
	}
}

func TestEnginesOfAConfigShareNoEndpoint(t *testing.T) {
	c := proxytest.Start(t, "", site(""))
	other := strings.NewReplacer("{SITE}", "{SITE2}", "engine a", "engine b").Replace(site(""))
	for _, change := range []*strings.Replacer{
		strings.NewReplacer(),
		strings.NewReplacer("{DIR}/replay", "{DIR}/pub", "{DIR}/pub", "{DIR}/other"),
		strings.NewReplacer("{DIR}/pub", "{DIR}/other"),
	} {
		err := c.TryReload("", site("")+"\n"+change.Replace(other))
		if err == nil || !strings.Contains(err.Error(), "have an endpoint in common") {
			t.Errorf("%v", err)
		}
	}
	// Handlers of one engine publish once.
	c.Reload("", site("")+"\n"+strings.ReplaceAll(site(""), "{SITE}", "{SITE2}"))
}

// caddy validate must not take what the running Caddy has.
func TestValidatingOpensNoSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	handlers, err := adapt(t, strings.NewReplacer("{SITE}", "127.0.0.1", "{DIR}", dir, "http://", "http://:9001").Replace(site("")))
	if err != nil || len(handlers) != 1 {
		t.Fatal(err)
	}
	var config caddy.Config
	text := `{"apps":{"http":{"servers":{"a":{"listen":["127.0.0.1:0"],"routes":[{"handle":[` + string(handlers[0]) + `]}]}}}}}`
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(&config); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
}
