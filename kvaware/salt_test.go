// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

const salting = "isolate_by {header.X-Tenant}\n\t\t\tinject_salt"

// saltingPolicy is a proxy's policy that injects salts.
const saltingPolicy = "lb_policy kv_aware {\n\t\t\tresponse_headers\n\t\t\t" + salting + "\n\t\t}"

var injected = regexp.MustCompile(`,"(cache_salt|extra_key)":"([0-9a-f]{32})"`)

// postAs posts a body for a tenant, and gives the response and its text.
func postAs(t testing.TB, client *http.Client, url, tenant, body string, chunked bool, header ...string) (*http.Response, string) {
	t.Helper()
	req := post(t, url, body, chunked)
	req.Header.Set("X-Tenant", tenant)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res := do(t, client, req)
	return res, proxytest.ReadAll(t, res)
}

// lastSeen gives the request that arrived last.
func lastSeen(t testing.TB, e *proxytest.Engine) proxytest.Seen {
	t.Helper()
	all := e.Requests()
	if len(all) == 0 {
		t.Fatal("nothing arrived")
	}
	return all[len(all)-1]
}

func TestEachTenantGetsASaltOfItsOwn(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", site(engine.Addr(), salting, ""))
	url := "http://site/v1/chat/completions"
	sent := func(tenant, members string) (salt, cached string) {
		t.Helper()
		body := `{` + members + strings.TrimPrefix(chat(prose("salts", 100), true), `{`)
		res, _ := postAs(t, c.Client("site"), url, tenant, body, false)
		wantIdle(t)
		var got struct {
			Salt string `json:"cache_salt"`
		}
		if err := json.Unmarshal([]byte(lastSeen(t, engine).Body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Salt, res.Header.Get("X-KV-Aware-Cached-Tokens")
	}
	aSalt, _ := sent("a", "")
	seen := make(map[string]string)
	for _, tenant := range []string{"a", "b", "A", ""} {
		for _, members := range []string{
			``, `"cache_salt":"x",`, `"cache_salt":"` + aSalt + `",`, `"nvext":{"cache_salt":"x"},`,
			`"cache_salt":"x","nvext":{"cache_salt":"x"},`, `"cache_salt":"xx",`,
		} {
			what := tenant + " with " + members
			salt, cached := sent(tenant, members)
			if other, twice := seen[salt]; twice || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(salt) {
				t.Errorf("%s has the salt %s, as %s", what, salt, other)
			}
			seen[salt] = what
			if first := tenant == "a" && members == ""; (cached != "0") != first {
				t.Errorf("%s found %s cached tokens at first", what, cached)
			}
			if again, cached := sent(tenant, members); again != salt || cached == "0" {
				t.Errorf("%s has the salt %s and then %s, and found %s cached tokens", what, salt, again, cached)
			}
		}
	}
	for _, salt := range []string{`null`, `""`} {
		if got, _ := sent("a", `"cache_salt":`+salt+`,`); got != aSalt {
			t.Errorf("with %s it is %s", salt, got)
		}
	}
	_, _, answer := c.Admin("POST", "/kv_aware/explain?tenant=a", chat(prose("salts", 100), true))
	if strings.Contains(answer, `"cached_tokens":0`) || strings.Contains(answer, aSalt) {
		t.Errorf("explained: %s", answer)
	}
}

func TestAllOtherBytesOfASaltedBodyStayAsTheyWere(t *testing.T) {
	engine := proxytest.NewEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	c := proxytest.Start(t, "", site(engine.Addr(), salting, ""))
	anySalt := regexp.MustCompile(`,?"(cache_salt|extra_key)":"[^"]*"`)
	salted := 0
	eachRequestCase(t, func(t *testing.T, _ string, rc requestCase) {
		if !json.Valid(rc.body) || rc.body[0] != '{' || tokenize.KindOfPath(rc.Path) == tokenize.KindNone {
			t.Skip("no JSON object")
		}
		body := string(rc.body)
		for _, chunked := range []bool{false, true} {
			postAs(t, c.Client("site"), "http://site"+rc.Path, "a", body, chunked)
			seen := lastSeen(t, engine)
			if want := int64(len(seen.Body)); seen.ReadError != nil || !chunked && seen.Length != want || chunked && seen.Length != -1 {
				t.Errorf("chunked=%v: %d bytes came with the length %d and %v", chunked, want, seen.Length, seen.ReadError)
			}
			if seen.Body == body {
				continue
			}
			salted++
			if anySalt.ReplaceAllString(seen.Body, "") != anySalt.ReplaceAllString(body, "") {
				t.Errorf("chunked=%v: it became\n%s", chunked, seen.Body)
			}
		}
		wantIdle(t)
	})
	if salted < 40 {
		t.Errorf("only %d bodies got a salt", salted)
	}
}

func TestSaltedBodiesArriveWholeByEveryTransport(t *testing.T) {
	for name, kind := range map[string]struct {
		start              func(*httptest.Server)
		scheme, directives string
	}{
		"HTTP/1":           {(*httptest.Server).Start, "", ""},
		"HTTP/2":           {startTLS, "", "transport http {\n\t\t\ttls\n\t\t\ttls_insecure_skip_verify\n\t\t\tversions 2\n\t\t}"},
		"h2c":              {startH2C, "h2c://", ""},
		"headers changed":  {(*httptest.Server).Start, "", "header_up X-Y z"},
		"buffered in part": {(*httptest.Server).Start, "", "request_buffers 1KiB"},
		"buffered":         {(*httptest.Server).Start, "", "request_buffers 1MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := proxytest.NewEngineAs(t, nil, kind.start)
			// The first upstream refuses, so that some requests are retried.
			c := proxytest.Start(t, "", plain(proxy(kind.scheme+proxytest.Refused(t)+" "+kind.scheme+engine.Addr(), saltingPolicy, "lb_retries 3\n\t\t"+kind.directives)))
			for i := range 4 {
				for _, chunked := range []bool{false, true} {
					body := chat(prose(fmt.Sprint("transport", i), 800), true)
					res, text := postAs(t, c.Client("site"), "http://site/v1/chat/completions", "a", body, chunked)
					if res.StatusCode != 200 || !strings.Contains(text, "[DONE]") {
						t.Fatalf("chunked=%v: got %d %s", chunked, res.StatusCode, text)
					}
					seen := lastSeen(t, engine)
					if seen.ReadError != nil || seen.Length >= 0 && seen.Length != int64(len(seen.Body)) || !chunked && seen.Length < 0 {
						t.Errorf("chunked=%v: %d bytes came with the length %d and %v", chunked, len(seen.Body), seen.Length, seen.ReadError)
					}
					if !injected.MatchString(seen.Body) || injected.ReplaceAllString(seen.Body, "") != body {
						t.Errorf("chunked=%v: got\n%s", chunked, seen.Body)
					}
				}
			}
			wantIdle(t)
		})
	}
}

func TestAnAnswerThatIsRetriedGetsTheSaltedBodyAgain(t *testing.T) {
	var attempts atomic.Int64
	failing := func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxytest.Tokens(3)(w, r)
	}
	a, b := proxytest.NewEngine(t, failing), proxytest.NewEngine(t, failing)
	c := proxytest.Start(t, "", plain(proxy(addrs(a, b), saltingPolicy, "lb_retries 2\n\t\tlb_retry_match {\n\t\t\texpression `{rp.status_code} == 503`\n\t\t}")))
	body := chat(prose("again", 300), true)
	res, text := postAs(t, c.Client("site"), "http://site/v1/chat/completions", "a", body, false)
	if res.StatusCode != 200 {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	all := append(a.Requests(), b.Requests()...)
	for _, seen := range all {
		if seen.Body != all[0].Body || injected.ReplaceAllString(seen.Body, "") != body || seen.Body == body || seen.Length != int64(len(seen.Body)) {
			t.Errorf("got %q", seen.Body)
		}
	}
	if len(all) != 3 {
		t.Errorf("%d attempts", len(all))
	}
	wantIdle(t)
}

func TestHandlersAfterTheProxyGetWhatTheClientSent(t *testing.T) {
	backup := proxytest.NewEngine(t, nil)
	for _, policy := range []string{stock, saltingPolicy} {
		for _, chunked := range []bool{false, true} {
			c := proxytest.Start(t, "", plain(proxy(proxytest.Refused(t), saltingPolicy, "")+"handle_errors {\n"+proxy(backup.Addr(), policy, "")+"}"))
			body := chat(prose("errors", 300), true)
			res, text := postAs(t, c.Client("site"), "http://site/v1/chat/completions", "a", body, chunked)
			if len(backup.Requests()) == 0 {
				t.Fatalf("got %d %s", res.StatusCode, text)
			}
			seen := lastSeen(t, backup)
			if len(injected.FindAllString(seen.Body, -1)) != map[string]int{stock: 0, saltingPolicy: 1}[policy] ||
				injected.ReplaceAllString(seen.Body, "") != body || seen.ReadError != nil {
				t.Errorf("chunked=%v: got %q, %v", chunked, seen.Body, seen.ReadError)
			}
		}
	}
}

func TestWhatCannotBeSaltedGoesOnAndIsCounted(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "metrics", site(engine.Addr(), salting+"\n\t\t\tmax_body 2KiB", ""))
	short, many := chat("hi", true), `{`+strings.Repeat(`"cache_salt":"a",`, 65)+`"prompt":"a"}`
	counted := func(reason string) float64 {
		return max(0, series(t, c, `caddy_kv_aware_unsalted_total{pool="",reason="`+reason+`"}`))
	}
	for _, r := range []struct {
		reason, path, body string
		header             []string
	}{
		{"digest", "/v1/chat/completions", short, []string{"Content-Digest", "sha-256=:AAAA:"}},
		{"digest", "/v1/chat/completions", short, []string{"Repr-Digest", "sha-256=:AAAA:"}},
		{"digest", "/v1/chat/completions", short, []string{"Digest", "SHA-256=AAAA"}},
		{"digest", "/v1/chat/completions", short, []string{"Content-MD5", "AAAA"}},
		{"too_long", "/v1/chat/completions", chat(prose("long", 1000), true), nil},
		{"compressed", "/v1/chat/completions", "\x1f\x8b\x08", []string{"Content-Encoding", "gzip"}},
		{"not_llm", "/v1/audio/transcriptions", "--b", []string{"Content-Type", "multipart/form-data; boundary=b"}},
		{"unlisted", "/v1/rerank", `{"query":"a"}`, nil},
		{"truncated", "/v1/chat/completions", short[:len(short)-1], nil},
		{"not_object", "/v1/chat/completions", `[1]`, nil},
		{"api", "/v1/messages", short, nil},
		{"api", "/api/chat", short, nil},
		{"api", "/generate", `{"inputs":"a"}`, nil},
		{"api", "/v1/messages", `{}`, nil},
		{"duplicates", "/v1/completions", many, nil},
	} {
		before := counted(r.reason)
		res, _ := postAs(t, c.Client("site"), "http://site"+r.path, "a", r.body, false, r.header...)
		if seen := lastSeen(t, engine); res.StatusCode != 200 || seen.Body != r.body || seen.Length != int64(len(r.body)) {
			t.Errorf("%s: got %d, and the upstream %q", r.reason, res.StatusCode, seen.Body)
		}
		if got := counted(r.reason); got != before+1 {
			t.Errorf("%s of %s is counted %v times", r.reason, r.path, got-before)
		}
		wantIdle(t)
	}
	sum := func() (n float64) {
		for line := range strings.Lines(scrape(t, c)) {
			if strings.HasPrefix(line, "caddy_kv_aware_unsalted_total") {
				n++
			}
		}
		return n
	}
	before := sum()
	postAs(t, c.Client("site"), "http://site/v1/chat/completions", "a", short, false)
	get, err := c.Client("site").Get("http://site/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	proxytest.ReadAll(t, get)
	if got := sum(); got != before || counted("api") != 4 {
		t.Errorf("a request with a salt or without a body is counted")
	}
}

func TestSaltsThatWouldReachOnlySomeRequestsAreRefused(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", "")
	for want, conf := range map[string]string{
		"needs isolate_by":           site(engine.Addr(), "inject_salt", ""),
		"fallback of another policy": plain(proxy(engine.Addr(), "lb_policy header X-Session {\n\t\t\tfallback kv_aware {\n\t\t\t\t"+salting+"\n\t\t\t}\n\t\t}", "")),
	} {
		if err := c.TryReload("", conf); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A fleet gives one tenant one salt, or its engines hold every prompt once for each
// Caddy. These were computed by another process.
func TestSaltsFollowFromTheSecret(t *testing.T) {
	rt := &routing{keys: keysOf([]byte(aSecret))}
	rt.isolate("a")
	if got := rt.salt("", ""); got != "8e9f1c7e0adc9337dfa3b3af00ea0e93" {
		t.Errorf("got %s", got)
	}
}

func TestAnAlteredBodyReadsAlikeInAnySteps(t *testing.T) {
	data := []byte("0123456789")
	edits := []tokenize.Edit{{Start: 0, End: 1, Text: "a"}, {Start: 3, End: 3, Text: "bcd"}, {Start: 4, End: 9, Text: ""}, {Start: 10, End: 10, Text: "e"}}
	const want = "a12bcd39e"
	rp := &replay{budget: new(bodyBudget)}
	rp.data.Store(&data)
	if longer := rp.alter(edits); longer != int64(len(want)-len(data)) {
		t.Errorf("it is %d bytes longer", longer)
	}
	first := rp.reader() // read later, beside the others
	for _, step := range []int{1, 2, 3, 100} {
		var got []byte
		r, buf := rp.reader(), make([]byte, step)
		for {
			n, err := r.Read(buf)
			if got = append(got, buf[:n]...); err != nil {
				break
			}
			if n == 0 {
				t.Fatal("a read gave nothing")
			}
		}
		if string(got) != want {
			t.Errorf("in steps of %d: %q", step, got)
		}
	}
	var all strings.Builder
	one := make([]byte, 1)
	if _, err := first.Read(one); err != nil {
		t.Fatal(err)
	}
	if n, err := first.(io.WriterTo).WriteTo(&all); err != nil || int(n) != len(want)-1 || string(one)+all.String() != want {
		t.Errorf("got %q and %q, %v", one, all.String(), err)
	}
	if text, err := io.ReadAll(rp.original()); err != nil || string(text) != string(data) {
		t.Errorf("what came is now %q, %v", text, err)
	}
	rp.drop()
	if text, err := io.ReadAll(rp.reader()); err != nil || len(text) != 0 {
		t.Errorf("once it is let go of: %q, %v", text, err)
	}
}
