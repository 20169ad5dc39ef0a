// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// head is the head of a raw request.
func head(path string, lines ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: site\r\nContent-Type: application/json\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
}

func TestAClientThatLeavesHalfWayThroughItsBodyLooksToTheUpstreamAsWithStockCaddy(t *testing.T) {
	for name, raw := range map[string]string{
		"known length": head("/v1/chat/completions", "Content-Length: 60000") + strings.Repeat("x", 30_000),
		"chunked":      head("/v1/chat/completions", "Transfer-Encoding: chunked") + "7530\r\n" + strings.Repeat("x", 30_000) + "\r\n",
		"not read":     head("/v1/audio/transcriptions", "Transfer-Encoding: chunked") + "7530\r\n" + strings.Repeat("x", 30_000) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []string{stock, kvAware} {
				arrived := make(chan error, 1)
				engine := proxytest.NewEngineAs(t, nil, func(s *httptest.Server) {
					s.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						_, err := io.Copy(io.Discard, r.Body)
						arrived <- err
					})
					s.Start()
				})
				// The log says how each request ended, also one that never arrived.
				c := proxytest.Start(t, "", plain("log {\n\toutput file {DIR}/access.log\n}\n"+proxy(engine.Addr(), policy, "")))
				conn := c.Dial("site")
				if _, err := io.WriteString(conn, raw); err != nil {
					t.Fatal(err)
				}
				if policy == kvAware && name != "not read" {
					eventually(t, "the body is being read", func() bool { return defaultPool(t).budget.held.Load() > 0 })
				}
				_ = conn.Close()
				entry := lastLogEntry(t, c)
				select {
				case err := <-arrived:
					if err == nil {
						t.Errorf("%s: the upstream took half a body for a whole one", policy)
					}
				default:
				}
				// 499 or 502, by which of the two ends of it Caddy notices first.
				if status := entry["status"]; status != 499. && status != 502. {
					t.Errorf("%s: the log says %v", policy, status)
				}
				if policy == kvAware {
					wantIdle(t)
					for _, u := range defaultPool(t).all() {
						if s := defaultPool(t).ledger.Snapshot(u.load); s.Failures != 0 {
							t.Errorf("the upstream is blamed for %d failures of the client's", s.Failures)
						}
					}
				}
			}
		})
	}
}

func TestAClientThatIsTooSlowIsAnsweredAsByStockCaddy(t *testing.T) {
	status := make(map[string]map[int]int)
	for _, policy := range []string{stock, kvAware} {
		engine := proxytest.NewEngine(t, nil)
		c := proxytest.Start(t, "servers {\n\ttimeouts {\n\t\tread_body 10ms\n\t}\n}", plain(proxy(engine.Addr(), policy, "")))
		status[policy] = make(map[int]int)
		for range 20 {
			conn := c.Dial("site")
			if _, err := io.WriteString(conn, head("/v1/chat/completions", "Content-Length: 60000")+strings.Repeat("x", 30_000)); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			status[policy][res.StatusCode]++
			_ = conn.Close()
		}
	}
	// Stock Caddy says 504, or 499 where it sees the request canceled before it
	// sees why.
	if stockSays := status[stock]; stockSays[504]+stockSays[499] != 20 {
		t.Errorf("stock Caddy answers %v", stockSays)
	}
	if says := status[kvAware]; says[504] != 20 {
		t.Errorf("got %v, without the policy %v", says, status[stock])
	}
	wantIdle(t)
	for _, u := range defaultPool(t).all() {
		if s := defaultPool(t).ledger.Snapshot(u.load); s.Failures != 0 {
			t.Errorf("the upstream is blamed for %d failures of the client's", s.Failures)
		}
	}
}

func TestAClientThatExpectsToBeToldToContinueIsTold(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	for _, policy := range []string{stock, kvAware} {
		c := proxytest.Start(t, "", plain(proxy(engine.Addr(), policy, "")))
		conn := c.Dial("site")
		defer conn.Close()
		body := chat("hi", true)
		_, _ = io.WriteString(conn, head("/v1/chat/completions", "Expect: 100-continue", fmt.Sprint("Content-Length: ", len(body))))
		r := bufio.NewReader(conn)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 100 {
			t.Fatalf("%s: got %v, %v", policy, res, err)
		}
		_, _ = io.WriteString(conn, body)
		for err == nil && res.StatusCode == 100 { // the upstream's is passed on as well
			res, err = http.ReadResponse(r, nil)
		}
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: got %v, %v", policy, res, err)
		}
		if text := proxytest.ReadAll(t, res); !strings.Contains(text, "[DONE]") {
			t.Errorf("%s: got %q", policy, text)
		}
		seen := engine.Requests()
		if got := seen[len(seen)-1].Body; got != body {
			t.Errorf("%s: the upstream got %q", policy, got)
		}
	}
	wantIdle(t)
}

func TestEmptyBodiesReachTheUpstreamAsWithStockCaddy(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	want := make(map[string]proxytest.Seen)
	for _, policy := range []string{stock, kvAware} {
		c := proxytest.Start(t, "", plain(proxy(engine.Addr(), policy, "")))
		for name, raw := range map[string]string{
			"no length":      head("/v1/chat/completions", "Connection: close"),
			"length 0":       head("/v1/chat/completions", "Connection: close", "Content-Length: 0"),
			"empty chunked":  head("/v1/chat/completions", "Connection: close", "Transfer-Encoding: chunked") + "0\r\n\r\n",
			"chunks and end": head("/v1/chat/completions", "Connection: close", "Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n",
		} {
			conn := c.Dial("site")
			_, _ = io.WriteString(conn, raw)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%s %s: got %v, %v", policy, name, res, err)
			}
			proxytest.ReadAll(t, res)
			_ = conn.Close()
			seen := engine.Requests()
			last := seen[len(seen)-1]
			if policy == stock {
				want[name] = last
			} else if ref := want[name]; last.Body != ref.Body || last.Length != ref.Length {
				t.Errorf("%s: the upstream got %q of length %d, without the policy %q of %d", name, last.Body, last.Length, ref.Body, ref.Length)
			}
		}
	}
	wantIdle(t)
}

// TestBodiesThatAreNotReadReachTheUpstreamWhileTheClientStillSends holds back
// the rest of a body until the upstream has seen its beginning: with a body
// that is read first, neither would ever go on.
func TestBodiesThatAreNotReadReachTheUpstreamWhileTheClientStillSends(t *testing.T) {
	begun := make(chan struct{})
	engine := proxytest.NewEngineAs(t, nil, func(s *httptest.Server) {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first := make([]byte, 1000)
			if _, err := io.ReadFull(r.Body, first); err != nil {
				t.Errorf("the upstream got no beginning: %v", err)
			}
			begun <- struct{}{}
			rest, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "%d %v", 1000+rest, err)
		})
		s.Start()
	})
	for name, test := range map[string]struct {
		option, path string
		length       int64
		header       [2]string
	}{
		"longer than max_body":             {"max_body 10KiB", "/v1/chat/completions", 40_000, [2]string{}},
		"of unknown length, beyond it too": {"max_body 10KiB", "/v1/chat/completions", -1, [2]string{}},
		"beyond max_buffered":              {"max_buffered 10KiB", "/v1/chat/completions", 40_000, [2]string{}},
		"an upload":                        {"", "/v1/audio/transcriptions", -1, [2]string{}},
		"multipart":                        {"", "/v1/chat/completions", 40_000, [2]string{"Content-Type", "multipart/form-data; boundary=x"}},
		"incremental":                      {"", "/v1/chat/completions", 40_000, [2]string{"Incremental", "?1"}},
		"compressed":                       {"", "/v1/chat/completions", 40_000, [2]string{"Content-Encoding", "gzip"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := proxytest.Start(t, "", plain(proxy(engine.Addr(), "lb_policy kv_aware {\n\t\t\t"+test.option+"\n\t\t}", "")))
			body, sending := io.Pipe()
			req := post(t, "http://site"+test.path, "", true)
			req.Body = body
			req.ContentLength = test.length
			if test.header[0] != "" {
				req.Header.Set(test.header[0], test.header[1])
			}
			answer := make(chan *http.Response)
			go func() {
				res, err := c.Client("site").Do(req)
				if err != nil {
					t.Error(err)
				}
				answer <- res
			}()
			_, _ = sending.Write(make([]byte, 20_000))
			<-begun
			_, _ = sending.Write(make([]byte, 20_000))
			_ = sending.Close()
			res := <-answer
			if res == nil {
				t.FailNow()
			}
			if text := proxytest.ReadAll(t, res); res.StatusCode != 200 || text != "40000 <nil>" {
				t.Errorf("got %d %q", res.StatusCode, text)
			}
			wantIdle(t)
		})
	}
}

// failingEnd fails right after its last byte, where an intact body ends.
type failingEnd struct {
	io.Reader
	err error
}

func (b *failingEnd) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = b.err
	}
	return n, err
}

func (*failingEnd) Close() error { return nil }

func TestAnErrorRightAfterTheLastByteIsSeenWhereItHappened(t *testing.T) {
	boom := errors.New("boom")
	for _, length := range []int64{5, -1} {
		var budget bodyBudget
		budget.limit.Store(1 << 20)
		r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
		r.Body, r.ContentLength = &failingEnd{strings.NewReader("hello"), boom}, length
		rp, outcome := readBody(r, 1<<10, &budget)
		if outcome != bodyBroken || r.ContentLength != length {
			t.Errorf("length %d: read as %q, length now %d", length, outcome, r.ContentLength)
		}
		data, err := io.ReadAll(r.Body)
		if string(data) != "hello" || !errors.Is(err, boom) {
			t.Errorf("length %d: the replay reads %q, %v", length, data, err)
		}
		rp.drop()
		if n := budget.held.Load(); n != 0 {
			t.Errorf("length %d: %d bytes stay counted", length, n)
		}
	}
}

func TestGetBodyGivesTheWholeBodyAsOftenAsItIsAsked(t *testing.T) {
	var budget bodyBudget
	budget.limit.Store(1 << 20)
	for _, length := range []int64{5, -1} {
		r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("hello")), length
		if _, outcome := readBody(r, 1<<10, &budget); outcome != bodyRead {
			t.Fatalf("read as %q", outcome)
		}
		for range 3 {
			again, err := r.GetBody()
			if err != nil {
				t.Fatal(err)
			}
			if data, err := io.ReadAll(again); string(data) != "hello" || err != nil {
				t.Errorf("got %q, %v", data, err)
			}
		}
	}
}
