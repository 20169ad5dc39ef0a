// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/kvevents"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/zmtp"
)

func TestWhatAnEngineReportsIsShownAndCounted(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	state := wantFollowed(t, c, 5)
	if state.Address != engine.Addr() || state.Endpoint != r.at.String() || !state.Connected || *state.LastSequence != 0 || state.BlockSize != 16 || state.Stored != 1 {
		t.Errorf("%+v", state)
	}
	if defaultPool(t).reported() == nil {
		t.Error("nothing is reported to the router")
	}
	if _, _, body := c.Admin("GET", "/kv_aware/snapshot", ""); !strings.Contains(body, `"events":{"state":"live","gpu_blocks":5,`) {
		t.Errorf("the snapshot says %s", body)
	}
	r.publish(storedBlocks(2, 2), kvevents.Event{Kind: kvevents.Removed, Group: -1, Blocks: []uint64{1<<32 | 4}})
	wantFollowed(t, c, 6)
	_, _, text := c.Admin("GET", "/metrics", "")
	for _, want := range []string{
		fmt.Sprintf(`caddy_kv_aware_kv_events_connected{pool="",upstream=%q} 1`, engine.Addr()),
		fmt.Sprintf(`caddy_kv_aware_kv_events_total{kind="stored",pool="",upstream=%q} 2`, engine.Addr()),
		fmt.Sprintf(`caddy_kv_aware_kv_events_blocks{pool="",tier="gpu",upstream=%q} 6`, engine.Addr()),
		fmt.Sprintf(`caddy_kv_aware_kv_events_gaps_total{pool="",upstream=%q} 0`, engine.Addr()),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestAReloadKeepsTheConnectionAndWhatItTold(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	conf := site(engine.Addr(), r.options(), "")
	c := proxytest.Start(t, "", conf)
	wantFollowed(t, c, 5)
	index := defaultPool(t).reported()
	before := followingGoroutines()
	for i := range 100 {
		c.Reload("", conf)
		if i%10 == 0 {
			r.publish(storedBlocks(uint64(2+i), 1))
		}
	}
	state := wantFollowed(t, c, 15)
	if state.Connects != 1 || defaultPool(t).reported() != index || state.Resets["replayed"] != 0 {
		t.Errorf("%+v", state)
	}
	eventually(t, "a hundred reloads have left no goroutine", func() bool { return followingGoroutines() <= before })

	// What needs another index or other connections starts anew.
	c.Reload("", site(engine.Addr(), r.options()+"\nsecret 0123456789abcdef", ""))
	if state = wantFollowed(t, c, 15); state.Connects != 1 || defaultPool(t).reported() == index {
		t.Errorf("under another secret: %+v", state)
	}
	c.Reload("", site(engine.Addr(), "", ""))
	if states := followedStates(t, c); len(states) != 0 || defaultPool(t).reported() != nil {
		t.Errorf("without the option: %+v", states)
	}
	eventually(t, "no goroutine follows any more", func() bool { return followingGoroutines() == 0 })
}

// followingGoroutines counts the goroutines that follow events.
func followingGoroutines() int {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "kvaware/internal/follow.") || strings.Contains(stack, "kvaware.(*followers).") {
			n++
		}
	}
	return n
}

func TestAfterStopNothingIsFollowed(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 5)
	c.Stop()
	eventually(t, "no goroutine follows any more", func() bool { return followingGoroutines() == 0 })
}

func TestAConfigurationThatFailsLeavesWhatIsFollowed(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r, other := report(t, 0, 0), report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	other.publish(storedBlocks(7, 1))
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 5)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, conf := range map[string]string{
		"one whose site cannot listen": site(engine.Addr(), other.options(), "") +
			fmt.Sprintf("http://other {\n\tbind 127.0.0.1\n\trespond hi\n}\nhttp://x:%d {\n\tbind 127.0.0.1\n\trespond hi\n}", taken.Addr().(*net.TCPAddr).Port),
		"one that listens for engines where somebody else does": site(engine.Addr(), fmt.Sprintf("kv_events {\nlisten %s {\ntopic kv %s\n}\n}", taken.Addr(), engine.Addr()), ""),
		"one that is refused": site(engine.Addr(), other.options()+"\ncache_tokens 8", ""),
	} {
		if err := c.TryReload("", conf); err == nil {
			t.Errorf("%s was taken", name)
		}
		if state := wantFollowed(t, c, 5); state.Connects != 1 {
			t.Errorf("after %s: %+v", name, state)
		}
	}
	r.publish(storedBlocks(2, 1))
	wantFollowed(t, c, 6)
}

func TestAReloadFollowsNobodyByAnotherConfigurationsWord(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	strayed := make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := trap.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			strayed <- struct{}{}
		}
	}()
	type listed struct {
		engine *proxytest.Engine
		r      *announcer
	}
	both := []listed{{proxytest.NewEngine(t, nil), report(t, 0, 0)}, {proxytest.NewEngine(t, nil), report(t, 0, 0)}}
	var confs []string
	for i, l := range both {
		l.r.publish(storedBlocks(uint64(i+1), 5+i))
		// The port is where an upstream would be looked for whose endpoint only the
		// other configuration tells.
		confs = append(confs, site(l.engine.Addr(), fmt.Sprintf("kv_events {\nport %d\nendpoint %s %s\nreplay %s %s\n}",
			trap.Addr().(*net.TCPAddr).Port, l.r.at, l.engine.Addr(), l.r.router.Endpoint(), l.engine.Addr()), ""))
	}
	c := proxytest.Start(t, "", confs[0])
	wantFollowed(t, c, 5)
	for i := range 20 {
		c.Reload("", confs[(i+1)%2])
		wantFollowed(t, c, 5+(i+1)%2)
	}

	// One that fails lists the other.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := wantFollowed(t, c, 5)
	if err := c.TryReload("", confs[1]+fmt.Sprintf("http://x:%d {\n\tbind 127.0.0.1\n\trespond hi\n}", taken.Addr().(*net.TCPAddr).Port)); err == nil {
		t.Fatal("a site listens where somebody else does")
	}
	eventually(t, "only those of the configuration that runs are followed", func() bool {
		states := followedStates(t, c)
		return len(states) == 1 && states[0].Address == both[0].engine.Addr()
	})
	if state := wantFollowed(t, c, 5); state.Connects != before.Connects {
		t.Errorf("the engine was connected to anew: %+v", state)
	}
	if len(strayed) > 0 {
		t.Errorf("%d connections went where no upstream's events are", len(strayed))
	}
}

func TestAnUpstreamThatIsListedNoMoreIsFollowedAgainOnceSeen(t *testing.T) {
	one, other := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	events := fmt.Sprintf("kv_events {\nendpoint %s %s\nreplay %s %s\nendpoint tcp://127.0.0.1:1 %s\n}", r.at, one.Addr(), r.router.Endpoint(), one.Addr(), other.Addr())
	c := proxytest.Start(t, "", site(addrs(one, other), events, ""))
	ofOne := func() (states []eventsState) {
		return slices.DeleteFunc(followedStates(t, c), func(s eventsState) bool { return s.Address != one.Addr() })
	}
	known := func() bool { s := ofOne(); return len(s) == 1 && s[0].Complete && s[0].GPUBlocks == 5 }
	eventually(t, "it is followed", known)
	c.Reload("", site(other.Addr(), events, ""))
	eventually(t, "it is not followed while nobody says that it is there", func() bool { return len(ofOne()) == 0 })
	_, port, _ := strings.Cut(one.Addr(), ":")
	c.Reload("", fmt.Sprintf("http://site {\nbind {SITE}\nreverse_proxy {\ndynamic a {\nname localhost\nport %s\nversions ipv4\n}\nlb_policy kv_aware {\n%s\n}\n}\n}\n", port, events))
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
	eventually(t, "it is followed again", known)
}

func TestValidatingAConfigurationOpensNoSocket(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dialled := make(chan struct{}, 1)
	go func() {
		if conn, err := ln.Accept(); err == nil {
			dialled <- struct{}{}
			_ = conn.Close()
		}
	}()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	for _, options := range []string{
		fmt.Sprintf("kv_events {\nport %d\n}", ln.Addr().(*net.TCPAddr).Port),
		fmt.Sprintf("kv_events {\nlisten %s {\ntopic kv 127.0.0.1:8000\n}\n}", free.Addr()),
	} {
		adapted := proxytest.Adapt(t, site("127.0.0.1:8000", options, ""))
		var conf caddy.Config
		if err := json.Unmarshal(adapted, &conf); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&conf); err != nil {
			t.Fatal(err)
		}
		if again, err := net.Listen("tcp", free.Addr().String()); err != nil {
			t.Errorf("validating listens: %v", err)
		} else {
			_ = again.Close()
		}
	}
	_ = ln.Close()
	select {
	case <-dialled:
		t.Error("validating connects")
	default:
	}
}

func TestWhatIsPredictedOfAnEngineGoesWithItsCache(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 0)
	predicted := func() int {
		pl := defaultPool(t)
		return pl.index.Stats(pl.all()[0].slot).Blocks
	}
	ask := func() {
		t.Helper()
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose("w", 200), true)))
		wantIdle(t)
		if predicted() == 0 {
			t.Fatal("nothing is predicted")
		}
	}
	ask()
	r.publish(kvevents.Event{Kind: kvevents.Cleared, Group: -1})
	eventually(t, "the clear drops what is predicted", func() bool { return predicted() == 0 })

	ask()
	r.publish(storedBlocks(1, 3))
	wantFollowed(t, c, 3)
	port, replay := r.at, r.router.Endpoint()
	r.kill()
	eventually(t, "the refused connection drops all", func() bool {
		s := followedStates(t, c)[0]
		return s.GPUBlocks == 0 && !s.Connected && s.Resets["refused"] == 1 && predicted() == 0
	})
	var ports [2]int
	for i, at := range []zmtp.Endpoint{port, replay} {
		if _, err := fmt.Sscan(portOf(at), &ports[i]); err != nil {
			t.Fatal(err)
		}
	}
	again := report(t, ports[0], ports[1])
	again.publish(storedBlocks(4, 2))
	wantFollowed(t, c, 2)
}

func TestForgettingTheIndexForgetsWhatIsReported(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 5)
	if status, _, body := c.Admin("DELETE", "/kv_aware/index", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if s := followedStates(t, c)[0]; s.GPUBlocks != 0 || !s.Partial || s.Complete || s.Resets["asked"] != 1 {
		t.Errorf("%+v", s)
	}
	r.publish(kvevents.Event{Kind: kvevents.Cleared, Group: -1}, storedBlocks(2, 1))
	wantFollowed(t, c, 1)
}

func TestDynamicUpstreamsAreFollowedFromFirstSightUntilTheyLeave(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	r.publish(storedBlocks(1, 5))
	_, port, _ := strings.Cut(engine.Addr(), ":")
	c := proxytest.Start(t, "", fmt.Sprintf(`http://site {
	bind {SITE}
	reverse_proxy {
		dynamic a {
			name localhost
			port %s
			versions ipv4
		}
		lb_policy kv_aware {
			%s
		}
	}
}`, port, r.options()))
	if states := followedStates(t, c); len(states) != 0 {
		t.Fatalf("%+v", states)
	}
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
	wantFollowed(t, c, 5)
	wantIdle(t)
	pl := defaultPool(t)
	for _, u := range pl.all() {
		u.lastSeen.Store(pl.now().Add(-upstreamExpiry - 1).UnixNano())
	}
	pl.expire()
	eventually(t, "it is let go of", func() bool { return len(followedStates(t, c)) == 0 })
	proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat("hi", true)))
	wantFollowed(t, c, 5)
}

func TestRanksAreFollowedAtPortsOfTheirOwn(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	base := neighbouringPorts(t, 4)
	zero, one := report(t, base, base+2), report(t, base+1, base+3)
	zero.publish(storedBlocks(1, 5))
	one.publish(storedBlocks(2, 7))
	c := proxytest.Start(t, "", site(engine.Addr(), fmt.Sprintf("kv_events {\nport %d\nreplay_port %d\nranks 2\n}", base, base+2), ""))
	eventually(t, "both ranks are known", func() bool {
		s := followedStates(t, c)
		return len(s) == 2 && s[0].GPUBlocks == 5 && s[1].GPUBlocks == 7 && s[1].Address == engine.Addr()+"#1"
	})
}

// neighbouringPorts finds so many free ports in a row.
func neighbouringPorts(t testing.TB, n int) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		base := first.Addr().(*net.TCPAddr).Port
		all := []net.Listener{first}
		for i := 1; i < n; i++ {
			if ln, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", base+i)); err == nil {
				all = append(all, ln)
			}
		}
		for _, ln := range all {
			_ = ln.Close()
		}
		if len(all) == n {
			return base
		}
	}
	t.Fatal("no free ports in a row")
	return 0
}

func TestEnginesThatConnectAreFollowedByTopic(t *testing.T) {
	a, b := proxytest.NewEngine(t, nil), proxytest.NewEngine(t, nil)
	port := neighbouringPorts(t, 1)
	conf := site(addrs(a, b), fmt.Sprintf("kv_events {\nlisten 127.0.0.1:%d {\ntopic kv@a %s\ntopic kv@b %s\n}\n}", port, a.Addr(), b.Addr()), "")
	c := proxytest.Start(t, "", conf)
	pub := zmtp.NewPublisher(zmtp.Options{})
	defer pub.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := pub.Connect(ctx, local(port)); err != nil {
		t.Fatal(err)
	}
	if err := pub.WaitSubscribers(ctx, 1); err != nil {
		t.Fatal(err)
	}
	send := func(topic string, seq uint64, e kvevents.Event) {
		pub.Publish([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), kvevents.AppendBatch(nil, &kvevents.Batch{Rank: -1, Events: []kvevents.Event{e}}, 0))
	}
	send("kv@a", 0, storedBlocks(1, 3))
	send("kv@b", 0, storedBlocks(2, 4))
	held := func(want map[string]int) func() bool {
		return func() bool {
			got := make(map[string]int)
			for _, s := range followedStates(t, c) {
				got[s.Address] = s.GPUBlocks
			}
			return got[a.Addr()] == want[a.Addr()] && got[b.Addr()] == want[b.Addr()]
		}
	}
	eventually(t, "both are known", held(map[string]int{a.Addr(): 3, b.Addr(): 4}))
	c.Reload("", conf)
	send("kv@a", 1, storedBlocks(5, 1))
	eventually(t, "a reload keeps the connection", held(map[string]int{a.Addr(): 4, b.Addr(): 4}))
}

func TestWhatAnEngineHoldsWhenItEvictsIsItsCapacity(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	r := report(t, 0, 0)
	c := proxytest.Start(t, "", site(engine.Addr(), r.options(), ""))
	wantFollowed(t, c, 0)
	u := defaultPool(t).all()[0]
	for i := range uint64(10) {
		r.publish(storedBlocks(1+i, 20))
	}
	wantFollowed(t, c, 200)
	if n := u.observed.Load(); n != 0 {
		t.Errorf("without evictions it has room for %d tokens", n)
	}
	for i := range uint64(10) {
		gone := kvevents.Event{Kind: kvevents.Removed, Group: -1}
		for j := range uint64(20) {
			gone.Blocks = append(gone.Blocks, (1+i)<<32|j)
		}
		r.publish(gone, storedBlocks(100+i, 20))
	}
	eventually(t, "it is seen to have room for 200 blocks", func() bool { return u.observed.Load() == 200*16 })
}
