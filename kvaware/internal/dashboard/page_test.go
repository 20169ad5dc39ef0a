// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/net/html"
)

func serve(t *testing.T, method, target, body string, headers ...string) *http.Response {
	t.Helper()
	src := &source{asked: func(question string, q Question) (int, []byte) {
		data, _ := io.ReadAll(q.Body)
		return http.StatusTeapot, []byte(question + " " + q.Query.Encode() + " " + string(data))
	}}
	h := NewHandler(NewHub(src))
	defer h.Close()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, res *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestThePageAllowsNothingFromElsewhere(t *testing.T) {
	res := serve(t, "GET", "/any/path", "")
	csp, page := res.Header.Get("Content-Security-Policy"), text(t, res)
	nonce := regexp.MustCompile(`script-src 'nonce-([\w+/]{24})';`).FindStringSubmatch(csp)
	if nonce == nil {
		t.Fatalf("no nonce in %s", csp)
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "img-src data:", "style-src 'nonce-" + nonce[1] + "'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
		if !strings.Contains(csp+";", want+";") {
			t.Errorf("the policy lacks %s: %s", want, csp)
		}
	}
	if strings.Count(csp, ";") != 9 {
		t.Errorf("the policy has more than is tested: %s", csp)
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Content-Type": "text/html; charset=utf-8"} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if strings.Contains(page, noncePlace) || strings.Count(page, `nonce="`+nonce[1]+`"`) != 2 {
		t.Error("the nonce is not where it should be")
	}
	if again := serve(t, "GET", "/", "").Header.Get("Content-Security-Policy"); again == csp {
		t.Error("the nonce is the same again")
	}
}

// The policy would refuse these at run time; what is not there needs no refusal.
func TestThePagesFilesNameNothingElsewhereAndSetNoMarkup(t *testing.T) {
	for _, name := range append([]string{"page.html", "page.css"}, scripts...) {
		data, err := fs.ReadFile(files, "page/"+name)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "@import", "</script>\n//", "localStorage", "document.cookie"} {
			if strings.Contains(string(data), bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
		for _, url := range regexp.MustCompile(`(?:https?:)?//[\w.-]+\.\w+[^'"\s)]*`).FindAllString(string(data), -1) {
			if url != "http://www.w3.org/2000/svg" { // the name of a namespace
				t.Errorf("%s names %s", name, url)
			}
		}
		if lines := strings.Count(string(data), "\n"); lines > 400 {
			t.Errorf("%s has %d lines", name, lines)
		}
	}
	entries, err := fs.ReadDir(files, "page")
	if err != nil || len(entries) != len(scripts)+2 {
		t.Errorf("%d files are embedded, %d are used: %v", len(entries), len(scripts)+2, err)
	}
}

func TestThePageIsWellFormed(t *testing.T) {
	ids := make(map[string]bool)
	var wanted, open []string
	void := map[string]bool{"meta": true, "link": true, "input": true, "br": true}
	for z := html.NewTokenizer(strings.NewReader(text(t, serve(t, "GET", "/", "")))); ; {
		switch z.Next() {
		case html.ErrorToken:
			if z.Err() != io.EOF || len(open) > 0 {
				t.Errorf("%v, left open: %v", z.Err(), open)
			}
			for _, id := range wanted {
				if !ids[id] {
					t.Errorf("nothing is #%s", id)
				}
			}
			return
		case html.StartTagToken:
			token := z.Token()
			for _, a := range token.Attr {
				switch {
				case a.Key == "id" && ids[a.Val]:
					t.Errorf("two elements are #%s", a.Val)
				case a.Key == "id":
					ids[a.Val] = true
				case a.Key == "for" || a.Key == "list" || a.Key == "aria-labelledby" || a.Key == "aria-controls":
					wanted = append(wanted, a.Val)
				case a.Key == "style" || strings.HasPrefix(a.Key, "on"):
					t.Errorf("<%s> has %s, which the policy refuses", token.Data, a.Key)
				}
			}
			if !void[token.Data] {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			token := z.Token()
			if len(open) == 0 || open[len(open)-1] != token.Data {
				t.Fatalf("</%s> closes %v", token.Data, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func TestElementsThatScriptsLookForAreThere(t *testing.T) {
	page := text(t, serve(t, "GET", "/", ""))
	for _, m := range regexp.MustCompile(`byId\('([\w-]+)'\)`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, `id="`+m[1]+`"`) {
			t.Errorf("nothing is #%s", m[1])
		}
	}
}

func TestQuestionsComeFromThePageAlone(t *testing.T) {
	const asJSON = "application/json"
	for _, c := range []struct {
		name, target string
		headers      []string
		status       int
	}{
		{"the page itself", "/?ask=explain&pool=p", []string{"Content-Type", asJSON + "; charset=utf-8", "Sec-Fetch-Site", "same-origin"}, http.StatusTeapot},
		{"a program", "/?ask=tokenize", []string{"Content-Type", asJSON}, http.StatusTeapot},
		{"another site", "/?ask=explain", []string{"Content-Type", asJSON, "Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"a site beside", "/?ask=explain", []string{"Content-Type", asJSON, "Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{"an old browser on another site", "/?ask=explain", []string{"Content-Type", asJSON, "Origin", "https://evil.example"}, http.StatusForbidden},
		{"a form", "/?ask=explain", []string{"Content-Type", "text/plain", "Sec-Fetch-Site", "same-origin"}, http.StatusUnsupportedMediaType},
		{"no type", "/?ask=explain", nil, http.StatusUnsupportedMediaType},
		{"no question", "/", []string{"Content-Type", asJSON}, http.StatusNotFound},
		{"another question", "/?ask=forget", []string{"Content-Type", asJSON}, http.StatusNotFound},
	} {
		res := serve(t, "POST", c.target, "body", c.headers...)
		body := text(t, res)
		if res.StatusCode != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, res.StatusCode, body, c.status)
		}
		if c.name == "the page itself" && body != "explain pool=p body" {
			t.Errorf("it was asked %q", body)
		}
		if res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: lets others read", c.name)
		}
	}
}

func TestOtherMethodsAndSitesAreRefused(t *testing.T) {
	if res := serve(t, "PUT", "/", ""); res.StatusCode != http.StatusMethodNotAllowed || res.Header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("PUT: %d, Allow %q", res.StatusCode, res.Header.Get("Allow"))
	}
	if res := serve(t, "HEAD", "/", ""); res.StatusCode != http.StatusOK || text(t, res) != "" {
		t.Errorf("HEAD: %d", res.StatusCode)
	}
	for _, target := range []string{"/?stream", "/?snapshot"} {
		if res := serve(t, "GET", target, "", "Sec-Fetch-Site", "cross-site"); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s from another site: %d", target, res.StatusCode)
		}
	}
	if res := serve(t, "GET", "/?snapshot", ""); res.StatusCode != http.StatusOK || !strings.Contains(text(t, res), "whole") {
		t.Errorf("a snapshot: %d", res.StatusCode)
	}
}

func TestStreamsEndWhenTheHandlerIsClosedOrTheClientLeaves(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	hub := NewHub(new(source))
	h := NewHandler(hub)
	server := httptest.NewServer(h)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	open := func(ctx context.Context) *bufio.Reader {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/?stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if got := res.Header.Get("Content-Type") + " " + res.Header.Get("Cache-Control"); got != "text/event-stream no-store, no-transform" {
			t.Errorf("headers %q", got)
		}
		return bufio.NewReader(res.Body)
	}
	stays := open(t.Context())
	for _, want := range []string{"retry: 1000\n", "\n", "event: snapshot\n"} {
		if got, err := stays.ReadString('\n'); err != nil || got != want {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	leaves := open(ctx)
	if _, err := leaves.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()

	h.Close()
	h.Close()
	if rest, err := io.ReadAll(stays); err != nil {
		t.Errorf("the stream ends with %v after %q", err, rest)
	}
	res, err := client.Get(server.URL + "/?stream")
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after it was closed: %d", res.StatusCode)
	}
	res.Body.Close()
}
