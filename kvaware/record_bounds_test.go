// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/ledger"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

func TestAReaderThatTakesNothingDelaysNoRequest(t *testing.T) {
	engine := proxytest.NewEngine(t, proxytest.Tokens(1))
	c := proxytest.Start(t, "", site(engine.Addr(), "", ""))
	conn := c.Dial("admin")
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /kv_aware/record HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReaderSize(conn, 16).ReadByte(); err != nil { // the headers come first
		t.Fatal(err)
	}
	rec := (*defaultPool(t).recordings.active.Load())[0]
	behind := func() bool {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		return len(rec.waiting) > 20
	}
	for i := 0; !behind(); i++ {
		if i == 2000 {
			t.Fatal("the reader takes all")
		}
		proxytest.ReadAll(t, c.Post("/v1/chat/completions", chat(prose(fmt.Sprint("n", i, "-"), 10_000), true)))
	}
	_ = conn.Close()
	eventually(t, "the recording is gone", func() bool { return defaultPool(t).recordings.active.Load() == nil })
}

func TestARecordingWithoutRoomLetsGoOfWhatRunsAndElseDropsWhatComes(t *testing.T) {
	rec := newRecording(newPool("", poolParams{blockSize: 16, tokenCache: 1}, time.Now), 16)
	of := func(share int) *recorded {
		return &recorded{bytes: maxRecordBytes / share, outputs: make([]atomic.Int32, 1)}
	}
	runs, ends := of(2), of(2)
	if !rec.add(runs) || !rec.add(ends) || !rec.add(of(2)) {
		t.Error("one that runs was not let go of")
	}
	ends.settle(recordServed)
	if rec.add(of(2)) {
		t.Error("one came in though there is no room")
	}
	if w, ok, left := rec.take(false); !ok || w.recorded != ends || left != 1 {
		t.Errorf("took %v of %d", ok, left)
	}
	if rec.add(of(1)) && rec.bytes > maxRecordBytes {
		t.Errorf("%d bytes", rec.bytes)
	}
	if sum := rec.summary("", 0); sum.Recorded != 1 || sum.Dropped != 1 || sum.Unfinished != 2 {
		t.Errorf("%+v", sum)
	}
}

func TestAQuietPoolRecordsNothingOfARequest(t *testing.T) {
	rs := new(recordings)
	rt := &routing{observed: true}
	if n := testing.AllocsPerRun(100, func() {
		q := rs.arrived(rt)
		q.generated(0, 1)
		q.attempted(ledger.Completed, true)
		q.ended()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestARecordingEndsAfterItsDurationOnceWhatRunsHasEnded(t *testing.T) {
	for name, ends := range map[string]bool{"it ends": true, "it never ends": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := newRecording(newPool("", poolParams{blockSize: 16, tokenCache: 1}, time.Now), 16)
				var written bytes.Buffer
				ended := make(chan string)
				go func() {
					r := httptest.NewRequest("GET", "/kv_aware/record", nil)
					by, err := rec.run(r, 10*time.Minute, newLineWriter(rec, &written), func() error { return nil })
					if err != nil {
						t.Error(err)
					}
					ended <- by
				}()
				began := time.Now()
				<-time.After(9 * time.Minute)
				q := &recorded{recordings: []*recording{rec}, counted: []int{5}, choices: 1, outputs: make([]atomic.Int32, 1)}
				rec.add(q)
				<-time.After(time.Minute + 30*time.Second)
				if rec.add(q) {
					t.Error("one came in after the time was over")
				}
				if ends {
					q.generated(0, 9)
					q.settle(recordServed)
				}
				if by := <-ended; by != "duration" {
					t.Errorf("ended by %s", by)
				}
				want, after := `{"timestamp":540000,"input_length":5,"output_length":9,"block_size":64}`+"\n", 10*time.Minute+30*time.Second
				if !ends {
					want, after = "", 11*time.Minute
				}
				if got := written.String(); got != want {
					t.Errorf("wrote %s", got)
				}
				if took := time.Since(began); took != after {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestAClientThatLeavesEndsItsRecording(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	rec := startRecording(t, c, "")
	_ = rec.res.Body.Close()
	eventually(t, "the recording is gone", func() bool { return defaultPool(t).recordings.active.Load() == nil })
}

func TestARecordingIsRefusedWithAReason(t *testing.T) {
	c := proxytest.Start(t, "", site("127.0.0.1:1", "", ""))
	for _, duration := range []string{"", "x", "0", "-1s", "25h"} {
		ask(t, c, "GET", "/kv_aware/record?duration="+duration, "", 400, nil)
	}
	ask(t, c, "GET", "/kv_aware/record?pool=none", "", 404, nil)
	if header, _ := ask(t, c, "POST", "/kv_aware/record", "", 405, nil); header.Get("Allow") != "GET" {
		t.Errorf("Allow: %s", header.Get("Allow"))
	}
	for range maxRecordings {
		startRecording(t, c, "")
	}
	ask(t, c, "GET", "/kv_aware/record", "", 429, nil)
}
