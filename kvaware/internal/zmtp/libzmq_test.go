// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// interpreterVariable names a Python interpreter that has pyzmq. Where it is set,
// the tests against libzmq fail rather than skip.
const interpreterVariable = "KVAWARE_ZMQ_PYTHON"

// libzmq is a socket of libzmq in a process of its own, as testdata/libzmq.py
// plays it.
type libzmq struct {
	testing.TB
	process *exec.Cmd
	stdin   io.WriteCloser
	lines   *bufio.Scanner
	at      Endpoint
	version []int
}

func playLibzmq(t testing.TB, options map[string]any) *libzmq {
	t.Helper()
	interpreter := os.Getenv(interpreterVariable)
	if interpreter == "" {
		interpreter = "python3"
		if err := exec.Command(interpreter, "-c", "import zmq").Run(); err != nil {
			t.Skipf("python3 has no pyzmq (%v): name an interpreter that has in %s", err, interpreterVariable)
		}
	}
	text, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	peer := &libzmq{TB: t, process: exec.Command(interpreter, "testdata/libzmq.py", string(text))}
	peer.process.Stderr = os.Stderr
	stdout, err := peer.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	peer.lines = bufio.NewScanner(stdout)
	if peer.stdin, err = peer.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := peer.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		peer.stdin.Close()
		peer.process.Process.Kill()
		peer.process.Wait()
	})
	var first struct {
		Port   int
		Libzmq []int
	}
	peer.hear(&first)
	peer.version = first.Libzmq
	peer.at = Endpoint{"tcp", fmt.Sprint("127.0.0.1:", first.Port)}
	return peer
}

// hear reads the next line of what the peer says.
func (p *libzmq) hear(value any) {
	p.Helper()
	if !p.lines.Scan() {
		p.Fatalf("the peer says no more (%v)", p.lines.Err())
	}
	if err := json.Unmarshal(p.lines.Bytes(), value); err != nil {
		p.Fatalf("%s: %v", p.lines.Text(), err)
	}
}

// tell gives the peer an order.
func (p *libzmq) tell(topic string, count, size int) {
	fmt.Fprintf(p.stdin, `{"topic": %q, "count": %d, "size": %d}`+"\n", topic, count, size)
}

// subscribed waits until the peer has that subscription.
func (p *libzmq) subscribed(topic string) {
	p.Helper()
	var got struct{ Subscription string }
	p.hear(&got)
	if want := fmt.Sprintf("%x", "\x01"+topic); got.Subscription != want {
		p.Fatalf("the peer has the subscription %s, want %s", got.Subscription, want)
	}
}

func (p *libzmq) atLeast(version ...int) bool { return slices.Compare(p.version, version) >= 0 }

// beats are heartbeats so quick that a test sees many, with the patience that a
// busy machine needs.
var beats = map[string]any{"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 1500, "HEARTBEAT_TTL": 2000}

func quickBeats(t SocketType) Options {
	return Options{Type: t, HeartbeatInterval: 50 * time.Millisecond, HeartbeatTimeout: 1500 * time.Millisecond}
}

// Both sides send heartbeats all along, and neither gives the other up.
func TestLibzmqPublishes(t *testing.T) {
	t.Parallel()
	peer := playLibzmq(t, map[string]any{"role": "pub", "set": beats})
	opt := quickBeats(SUB)
	opt.Topics = []string{"kv@", "other"}
	s := dial(t, peer.at, opt)
	peer.subscribed("kv@")
	peer.subscribed("other")
	if peer.atLeast(4, 3, 3) && s.minor != 1 {
		t.Errorf("ZMTP 3.%d is spoken with libzmq %v", s.minor, peer.version)
	}
	quiet := 2500 * time.Millisecond // more than either waits for
	s.SetReceiveDeadline(time.Now().Add(quiet))
	if err := s.Receive(new(Message)); ReasonOf(err) != Timeout {
		t.Fatalf("within the silence: %v", err)
	}
	sizes := []int{0, 1, 255, 256, 300, 1 << 20}
	for _, size := range sizes {
		peer.tell("no", 1, size)
		peer.tell("kv@engine", 1, size)
	}
	for i, size := range sizes {
		got := receive(t, s)
		if len(got) != 3 || got[0] != "kv@engine" || binary.BigEndian.Uint64([]byte(got[1])) != uint64(2*i+1) || len(got[2]) != size {
			t.Fatalf("message %d of size %d: %.60q", i, size, got)
		}
	}
}

func TestADyingLibzmqIsNoticed(t *testing.T) {
	t.Run("stopped", func(t *testing.T) {
		peer := playLibzmq(t, map[string]any{"role": "pub"})
		s := dial(t, peer.at, quickBeats(SUB))
		peer.subscribed("")
		if !peer.atLeast(4, 3, 3) {
			t.Skipf("libzmq %v says it speaks ZMTP 3.0, which is sent no PING", peer.version)
		}
		if err := peer.process.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		s.SetReceiveDeadline(time.Now().Add(20 * time.Second))
		if err := s.Receive(new(Message)); ReasonOf(err) != Silent {
			t.Error(err)
		}
	})
	t.Run("killed", func(t *testing.T) {
		peer := playLibzmq(t, map[string]any{"role": "pub"})
		s := dial(t, peer.at, Options{Type: SUB})
		peer.subscribed("")
		peer.process.Process.Kill()
		if err := s.Receive(new(Message)); ReasonOf(err) != PeerClosed {
			t.Error(err)
		}
	})
}

// A burst beyond libzmq's high-water mark loses whole messages and no order.
func TestLibzmqsHighWaterMarkLosesWholeMessages(t *testing.T) {
	t.Parallel()
	const count, size = 20_000, 3000
	for _, c := range []struct {
		mark  int
		loses bool
	}{{10, true}, {100_000, false}} {
		peer := playLibzmq(t, map[string]any{"role": "pub", "set": map[string]any{"SNDHWM": c.mark}})
		s := dial(t, peer.at, Options{Type: SUB})
		peer.subscribed("")
		peer.tell("", count, size)
		peer.hear(new(any)) // all sent, none read
		peer.tell("last", 1, 0)
		go func() { // into a socket that is full again and again
			for range 1000 {
				peer.tell("last", 1, 0)
			}
		}()
		var m Message
		got, next := 0, uint64(0)
		for {
			if err := s.Receive(&m); err != nil {
				t.Fatal(err)
			}
			if string(m.Frames[0]) == "last" {
				break
			}
			seq := binary.BigEndian.Uint64(m.Frames[1])
			if seq < next || len(m.Frames[2]) != size {
				t.Fatalf("message %d with %d bytes where %d was due", seq, len(m.Frames[2]), next)
			}
			got, next = got+1, seq+1
		}
		if loses := got < count; loses != c.loses {
			t.Errorf("with a high-water mark of %d, %d of %d came", c.mark, got, count)
		}
	}
}

func TestLibzmqAnswersAReplay(t *testing.T) {
	t.Parallel()
	peer := playLibzmq(t, map[string]any{"role": "router", "kept": 5000, "set": map[string]any{"SNDHWM": 0, "HEARTBEAT_IVL": 20, "HEARTBEAT_TIMEOUT": 1500}})
	s := dial(t, peer.at, quickBeats(DEALER))
	if err := s.Send(nil, binary.BigEndian.AppendUint64(nil, 1234)); err != nil {
		t.Fatal(err)
	}
	for seq := 1234; seq < 5000; seq++ {
		got := receive(t, s)
		if len(got) != 3 || got[0] != "" || binary.BigEndian.Uint64([]byte(got[1])) != uint64(seq) || len(got[2]) != seq%1000 {
			t.Fatalf("answer %d: %.60q", seq, got)
		}
	}
	if got := receive(t, s); !slices.Equal(got, []string{"", "\xff\xff\xff\xff\xff\xff\xff\xff", ""}) {
		t.Errorf("the end is %q", got)
	}
}

func TestLibzmqDemandsPlain(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"pub", "router"} {
		peer := playLibzmq(t, map[string]any{"role": role, "kept": 1, "username": "u", "password": "secret", "set": map[string]any{"PLAIN_SERVER": 1}})
		opt := Options{Type: map[string]SocketType{"pub": SUB, "router": DEALER}[role]}
		if _, err := Dial(patient(t), peer.at, opt); ReasonOf(err) != BadMechanism || !strings.Contains(err.Error(), "username") {
			t.Errorf("%s without credentials: %v", role, err)
		}
		opt.Username, opt.Password = "u", "guess"
		if _, err := Dial(patient(t), peer.at, opt); ReasonOf(err) != Refused {
			t.Errorf("%s with a wrong password: %v", role, err)
		}
		wrong := opt
		wrong.Type = map[SocketType]SocketType{SUB: DEALER, DEALER: SUB}[opt.Type]
		wrong.Password = "secret"
		if _, err := Dial(patient(t), peer.at, wrong); err == nil {
			t.Errorf("a %s goes with %s", wrong.Type, role)
		}
		opt.Password = "secret"
		s := dial(t, peer.at, opt)
		if role == "pub" {
			peer.subscribed("")
			peer.tell("kv", 1, 10)
		} else {
			s.Send(nil, make([]byte, 8))
		}
		if got := receive(t, s); len(got) != 3 {
			t.Errorf("%s with the password: %q", role, got)
		}
	}
}

func TestLibzmqIsOverUnixSockets(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "zmtp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at, err := ParseEndpoint("ipc://" + dir + "/kv")
	if err != nil {
		t.Fatal(err)
	}
	peer := playLibzmq(t, map[string]any{"role": "pub", "bind": at.String()})
	s := dial(t, at, Options{Type: SUB})
	peer.subscribed("")
	peer.tell("kv", 1, 10)
	if got := receive(t, s); got[0] != "kv" {
		t.Errorf("received %q", got)
	}
}

func TestLibzmqPublishersConnect(t *testing.T) {
	t.Parallel()
	for range 3 {
		l, _ := listener(t, quickBeats(SUB)) // libzmq connects again, so each has its own
		peer := playLibzmq(t, map[string]any{"role": "pub", "connect": l.Endpoint().String(), "set": beats})
		s := accept(t, l)
		peer.subscribed("")
		peer.tell("kv", 2, 300)
		receive(t, s)
		if got := receive(t, s); got[0] != "kv" || len(got[2]) != 300 {
			t.Errorf("received %q", got)
		}
	}
}

func TestLibzmqSubscribes(t *testing.T) {
	t.Parallel()
	for _, credentials := range []string{"", "secret"} {
		opt := quickBeats("")
		set := map[string]any{"SUBSCRIBE": "kv@"}
		for name, value := range beats {
			set[name] = value
		}
		if credentials != "" {
			opt.Username, opt.Password = "u", credentials
			set["PLAIN_USERNAME"], set["PLAIN_PASSWORD"] = "u", credentials
		}
		p, at := publisher(t, opt)
		peer := playLibzmq(t, map[string]any{"role": "sub", "connect": at.String(), "set": set})
		if err := p.WaitSubscribers(patient(t), 1); err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		select { // and all along, heartbeats
		case <-time.After(2500 * time.Millisecond):
		case <-changed:
			t.Fatal("the subscriber left, or subscribed anew")
		}
		sizes := []int{0, 255, 256, 1 << 20}
		for seq, size := range sizes {
			number := binary.BigEndian.AppendUint64(nil, uint64(seq))
			p.Publish([]byte("no"), number, nil)
			p.Publish([]byte("kv@x"), number, make([]byte, size))
		}
		for seq, size := range sizes {
			var got []any
			peer.hear(&got)
			if fmt.Sprint(got) != fmt.Sprint([]any{"kv@x", float64(seq), float64(size)}) {
				t.Errorf("the subscriber got %v", got)
			}
		}
	}
}

func TestLibzmqAsksForAReplay(t *testing.T) {
	t.Parallel()
	for role, answers := range map[string]int{"dealer": 2000, "req": 1} {
		l, _ := listener(t, quickBeats(ROUTER)) // libzmq connects again, so each has its own
		peer := playLibzmq(t, map[string]any{"role": role, "start": 7, "connect": l.Endpoint().String(), "set": beats})
		s := accept(t, l)
		if got := receive(t, s); !slices.Equal(got, []string{"", "\x00\x00\x00\x00\x00\x00\x00\x07"}) {
			t.Fatalf("%s asks with %q", role, got)
		}
		for seq := range answers {
			if err := s.Send(nil, binary.BigEndian.AppendUint64(nil, uint64(seq)), make([]byte, seq)); err != nil {
				t.Fatal(err)
			}
		}
		s.Send(nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
		for seq := range answers {
			var got [2]int
			peer.hear(&got)
			if got != [2]int{seq, seq} {
				t.Fatalf("%s got %v as answer %d", role, got, seq)
			}
		}
		s.Close()
	}
}
