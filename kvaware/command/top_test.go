// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

// terminal is a pseudo-terminal with a command on it.
type terminal struct {
	t    *testing.T
	host *os.File // the side of who looks at it
	done chan error
	wait sync.WaitGroup

	mu     sync.Mutex // guards screen, but for reading its answers
	screen *vt.Emulator
}

// Write shows what the command writes.
func (x *terminal) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.Write(p)
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.screen.String()
}

// colored reports whether any color is on the screen.
func (x *terminal) colored() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for row := range x.screen.Height() {
		for column := range x.screen.Width() {
			if c := x.screen.CellAt(column, row); c != nil && (c.Style.Fg != nil || c.Style.Bg != nil) {
				return true
			}
		}
	}
	return false
}

// onTerminal runs `caddy kv-aware` with arguments on a terminal of that size.
func onTerminal(t *testing.T, width, height int, args ...string) *terminal {
	t.Helper()
	host, guest, err := pty.Open()
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	x := &terminal{t: t, host: host, screen: vt.NewEmulator(width, height), done: make(chan error, 1)}
	x.resize(width, height)
	cmd := &cobra.Command{Use: "kv-aware", SilenceUsage: true, SilenceErrors: true}
	addCommands(cmd)
	cmd.SetArgs(args)
	cmd.SetIn(guest)
	cmd.SetOut(guest)
	x.wait.Go(func() { _, _ = io.Copy(x, host) })        // until guest is closed
	x.wait.Go(func() { _, _ = io.Copy(host, x.screen) }) // answers to what the program asks the terminal
	go func() { x.done <- cmd.ExecuteContext(t.Context()) }()
	t.Cleanup(func() {
		_ = guest.Close()
		_ = x.screen.InputPipe().(io.Closer).Close() // Close races with Read
		_ = host.Close()
		x.wait.Wait()
	})
	return x
}

// resize changes the terminal's size as a window does.
func (x *terminal) resize(width, height int) {
	x.t.Helper()
	if err := pty.Setsize(x.host, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)}); err != nil {
		x.t.Fatal(err)
	}
	x.mu.Lock()
	x.screen.Resize(width, height)
	x.mu.Unlock()
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) press(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.host, keys); err != nil {
		x.t.Fatal(err)
	}
}

// shows waits until what the screen shows fulfils holds.
func (x *terminal) shows(what string, holds func(screen string) bool) string {
	x.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		screen := x.text()
		if holds(screen) {
			return screen
		}
		select {
		case err := <-x.done:
			x.t.Fatalf("it ended (%v) before %s; the screen was\n%s", err, what, screen)
		case <-deadline:
			x.t.Fatalf("waited in vain until %s; the screen is\n%s", what, screen)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// contains waits for text.
func (x *terminal) contains(text string) string {
	x.t.Helper()
	return x.shows("it shows "+text, func(screen string) bool { return strings.Contains(screen, text) })
}

// ends waits for the command's end.
func (x *terminal) ends() {
	x.t.Helper()
	select {
	case err := <-x.done:
		if err != nil {
			x.t.Error(err)
		}
	case <-time.After(20 * time.Second):
		x.t.Fatal("it does not end")
	}
}

// fakeAdmin answers with a snapshot that a test changes.
type fakeAdmin struct {
	*httptest.Server
	mu    sync.Mutex // guards all
	s     kvaware.Snapshot
	gone  bool
	asked int
}

func newFakeAdmin(t *testing.T, upstreams ...kvaware.UpstreamSnapshot) *fakeAdmin {
	t.Helper()
	f := &fakeAdmin{s: kvaware.Snapshot{Pools: []kvaware.PoolSnapshot{{Upstreams: upstreams, UpstreamsTotal: len(upstreams)}}}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.asked++; f.gone {
			panic(http.ErrAbortHandler)
		}
		_ = json.NewEncoder(w).Encode(&f.s)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeAdmin) address() string { return strings.TrimPrefix(f.URL, "http://") }

// change changes what is answered.
func (f *fakeAdmin) change(how func(*fakeAdmin)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how(f)
}

func TestTopFollowsTheLoadOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("NO_COLOR", "1")
	f := newFakeAdmin(t, carrying("10.0.0.1:8000", 1000, 3000), carrying("10.0.0.2:8000", 0, 500))
	x := onTerminal(t, 100, 20, "top", "--address", f.address(), "--interval", "100ms")
	screen := x.contains("4000")
	if !order(screen, "10.0.0.1:8000", "10.0.0.2:8000") || strings.Count(screen, prefillMark)-1 == 0 || strings.Count(screen, decodeMark)-1 < 10 {
		t.Errorf("shows\n%s", screen)
	}

	f.change(func(f *fakeAdmin) { f.s.Pools[0].Upstreams[1] = carrying("10.0.0.2:8000", 76000, 1000) })
	x.shows("the busier one is first", func(s string) bool {
		return strings.Contains(s, "77.0k") && order(s, "10.0.0.2:8000", "10.0.0.1:8000")
	})

	x.press("r")
	x.shows("the order is reversed", func(s string) bool { return order(s, "10.0.0.1:8000", "10.0.0.2:8000") })
	x.press("r\x1b[D") // left: by address
	x.shows("they are sorted by address", func(s string) bool {
		return strings.Contains(s, "upstream↑") && order(s, "10.0.0.1:8000", "10.0.0.2:8000")
	})

	x.press(" ")
	x.contains("stopped")
	var asked int
	f.change(func(f *fakeAdmin) { f.s.Pools[0].Upstreams[0] = carrying("10.0.0.1:8000", 0, 5); asked = f.asked })
	x.press("r\x1b[C") // what it shows is what was there
	if screen := x.shows("it is sorted anew", func(s string) bool { return strings.Contains(s, "load↑") }); !strings.Contains(screen, "4000") {
		t.Errorf("it goes on while stopped:\n%s", screen)
	}
	x.press(" ")
	x.shows("it goes on", func(s string) bool { return !strings.Contains(s, "4000") && !strings.Contains(s, "stopped") })
	f.change(func(f *fakeAdmin) {
		if f.asked == asked {
			t.Error("it did not ask again")
		}
		f.gone = true
	})
	x.contains("Connection lost")
	f.change(func(f *fakeAdmin) { f.gone = false })
	x.shows("it found Caddy again", func(s string) bool { return !strings.Contains(s, "Connection lost") })

	x.press("q")
	x.ends()
}

func TestTopFillsATerminalOfAnySize(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	var all []kvaware.UpstreamSnapshot
	for i := range 200 {
		all = append(all, carrying(fmt.Sprintf("10.0.%d.%d:8000", i/100, i%100), int64(i), int64(1000*(200-i))))
	}
	f := newFakeAdmin(t, all...)
	x := onTerminal(t, 120, 30, "top", "--address", f.address())
	x.shows("the first upstreams are there", func(s string) bool {
		return strings.Contains(s, "10.0.0.0:8000") && strings.Contains(s, "q end") && strings.Contains(s, "ITL")
	})
	x.press("\x1b[F") // end
	x.shows("the last one is there, below the header", func(s string) bool {
		return strings.Contains(s, "10.0.1.99:8000") && strings.Contains(s, "upstream") && !strings.Contains(s, "10.0.0.0:8000")
	})
	x.press("\x1b[H")
	x.contains("10.0.0.0:8000")
	for _, size := range [][2]int{{40, 12}, {9, 3}, {1, 1}, {200, 60}} {
		x.resize(size[0], size[1])
		x.shows(fmt.Sprint("it fits into ", size), func(s string) bool {
			lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
			return size[0] < 40 || len(lines) == size[1] && strings.Contains(s, "10.0.0.0:8000") && strings.Contains(lines[len(lines)-1], "q end")
		})
	}
	x.press("\x03") // control-C
	x.ends()
	x.shows("nothing is left behind", func(s string) bool { return !strings.Contains(s, "q end") })
}

func TestTopColorsUnlessNoColorIsWanted(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	f := newFakeAdmin(t, carrying("10.0.0.1:8000", 1000, 3000))
	for value, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", value)
		x := onTerminal(t, 100, 20, "top", "--address", f.address())
		x.contains("10.0.0.1:8000")
		colored := x.colored()
		if colored != want {
			t.Errorf("NO_COLOR=%q: colored: %v", value, colored)
		}
		x.press("q")
		x.ends()
	}
}

func TestTopPrintsOnceWhereThereIsNoTerminal(t *testing.T) {
	f := newFakeAdmin(t, carrying("10.0.0.1:8000", 1000, 3000))
	top := succeed(t, "", "top", "--address", f.address())
	if status := succeed(t, "", "status", "--address", f.address()); top != status || !strings.Contains(top, "10.0.0.1:8000") {
		t.Errorf("top prints\n%sstatus\n%s", top, status)
	}
	t.Setenv("TERM", "dumb")
	x := onTerminal(t, 100, 20, "top", "--address", f.address())
	x.ends()
	x.contains("10.0.0.1:8000")
	fails(t, "", []string{"top", "--address", f.address(), "--interval", "1ms"}, "100ms or more")
}

// With several pools, and with too few lines, all scrolls.
func TestTopScrollsWhatHasNoRoom(t *testing.T) {
	m := &top{api: &adminAPI{address: "a"}, last: &kvaware.Snapshot{}, view: fleetView{width: 80, sorted: byLoad}}
	for _, name := range []string{"small", "large"} {
		m.last.Pools = append(m.last.Pools, kvaware.PoolSnapshot{Pool: name, Upstreams: []kvaware.UpstreamSnapshot{
			carrying(name+"-1:1", 1, 1), carrying(name+"-2:1", 0, 1)}, Decisions: make([]kvaware.Decision, 9)})
	}
	for pools := 2; pools > 0; pools-- {
		m.last.Pools = m.last.Pools[:pools]
		for m.height = 1; m.height < 40; m.height++ {
			var seen []string
			for m.scrolled = 0; ; m.scrolled++ {
				at := m.scrolled
				lines := m.lines()
				if len(lines) != m.height {
					t.Fatalf("%d lines of %d", len(lines), m.height)
				}
				seen = append(seen, lines...)
				if m.scrolled < at || at == m.rows {
					break
				}
			}
			for i := range pools {
				for _, u := range m.last.Pools[i].Upstreams {
					if m.height > 2 && !slices.ContainsFunc(seen, func(line string) bool { return strings.Contains(line, u.Address) }) {
						t.Fatalf("%d lines never show %s", m.height, u.Address)
					}
				}
			}
		}
	}
}
