// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
)

// run runs `caddy kv-aware` with arguments.
func run(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	cmd := &cobra.Command{Use: "kv-aware", SilenceUsage: true, SilenceErrors: true}
	addCommands(cmd)
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

// succeed is run for what must not fail.
func succeed(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	out, err := run(t, stdin, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// fails checks that an error holds all of want and nothing is printed.
func fails(t testing.TB, stdin string, args []string, want ...string) {
	t.Helper()
	out, err := run(t, stdin, args...)
	if err == nil || out != "" {
		t.Errorf("%v: error %v, prints %q", args, err, out)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: %q is not in %v", args, w, err)
		}
	}
}

func file(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// start runs a Caddy, and gives the address of its admin API.
func start(t testing.TB, sites string) (c *proxytest.Caddy, address string) {
	t.Helper()
	c = proxytest.Start(t, "", sites)
	return c, "unix/" + c.Dir() + "/admin"
}

const (
	site = `http://site {
	bind {SITE}
	reverse_proxy 127.0.0.1:1 127.0.0.1:2 {
		lb_policy kv_aware {
			block_size 4
		}
	}
}
`
	chat = `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What do the tides do?"}]}`
)

const chatTable = `API        openai_chat
model      m
tokenizer  auto (o200k_base): not exactly the engine's tokens

prompt: 22 tokens, 5 whole blocks of 4
  message    role  begins at token  in block  tokens
        1  system                0         0       8
        2    user                8         2      14
`

func TestCaddyHasTheCommand(t *testing.T) {
	if _, ok := caddycmd.Commands()["kv-aware"]; !ok {
		t.Error("caddy kv-aware is not registered")
	}
	help := succeed(t, "")
	for _, make := range commands {
		if c := make(); !strings.Contains(help, c.Name()) || !strings.Contains(help, c.Short) {
			t.Errorf("the help lacks %s", c.Name())
		}
	}
	fails(t, "", []string{"tokenise"}, "unknown command")
}

func TestTokenizeShowsAConversationAsATable(t *testing.T) {
	_, address := start(t, site)
	offline := succeed(t, "", "tokenize", file(t, chat), "--tokenizer", "auto", "--block-size", "4")
	running := succeed(t, chat, "tokenize", "-", "--address", address)
	if offline != chatTable || running != chatTable {
		t.Errorf("offline\n%srunning\n%swant\n%s", offline, running, chatTable)
	}
}

func TestTokenizePrintsJSONForMachines(t *testing.T) {
	_, address := start(t, site)
	var offline, running kvaware.Tokenized
	for into, args := range map[*kvaware.Tokenized][]string{
		&offline: {"--tokenizer", "tiktoken o200k_base"},
		&running: {"--address", address},
	} {
		if err := json.Unmarshal([]byte(succeed(t, `{"prompt":["a b","c"]}`, append([]string{"tokenize", "-", "--json", "--path", "/v1/completions"}, args...)...)), into); err != nil {
			t.Fatal(err)
		}
		if into.API != "openai_completions" || len(into.Prompts) != 2 || into.Prompts[0].Tokens != 2 || into.PromptTokens != 3 {
			t.Errorf("%v: %+v", args, into)
		}
	}
	if offline.BlockSize != 16 || running.BlockSize != 4 {
		t.Errorf("blocks of %d and %d", offline.BlockSize, running.BlockSize)
	}
}

func TestTokenizePrintsIDsOnlyWhereAsked(t *testing.T) {
	args := []string{"tokenize", "-", "--tokenizer", "tiktoken o200k_base"}
	body := `{"messages":[{"role":"user","content":"hello world"}]}`
	if out := succeed(t, body, args...); strings.Contains(out, "ids") {
		t.Errorf("without --ids: %s", out)
	}
	args = append(args, "--ids")
	if out := succeed(t, body, args...); !strings.Contains(out, "\nids . . . 24912 2375 . . . . .\n") {
		t.Errorf("with --ids: %s", out)
	}
	if out := succeed(t, body, append(args, "--json")...); !strings.Contains(out, `"ids":[[null,null,null,24912,2375,null,null,null,null,null]]`) {
		t.Errorf("with --ids --json: %s", out)
	}
}

func TestTokenizeTakesATemplateAsTheCaddyfileDoes(t *testing.T) {
	text, err := os.ReadFile("../../testdata/templates/texts/qwen3.jinja")
	if err != nil {
		t.Fatal(err)
	}
	template := filepath.Join(t.TempDir(), "chat_template.jinja")
	if err := os.WriteFile(template, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := succeed(t, chat, "tokenize", "-", "--tokenizer", "hf ../../testdata/exact/chatml.json", "--chat-template", template)
	if !strings.Contains(out, "exactly the engine's tokens") || !strings.Contains(out, "2    user") {
		t.Errorf("prints %s", out)
	}
	fails(t, chat, []string{"tokenize", "-", "--tokenizer", "auto", "--chat-template", template}, "kind hf")
	if err := os.WriteFile(template, []byte("{{ messages[0].content }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := succeed(t, chat, "tokenize", "-", "--tokenizer", "hf ../../testdata/exact/chatml.json", "--chat-template", template); !strings.Contains(out, "messages begin is not known") {
		t.Errorf("prints %s", out)
	}
}

func TestTokenizeSaysWhatIsWrongWithWhatItIsGiven(t *testing.T) {
	good := file(t, chat)
	missing := filepath.Join(t.TempDir(), "missing.json")
	offline := func(args ...string) []string { return append([]string{"tokenize", "--tokenizer", "auto"}, args...) }
	for _, c := range []struct {
		stdin string
		args  []string
		want  []string
	}{
		{"", []string{"tokenize"}, []string{"1 arg"}},
		{"", offline(missing), []string{missing, "no such file"}},
		{"", offline(t.TempDir()), []string{"is a directory"}},
		{"", offline("-"), []string{"empty"}},
		{"{]", offline("-"), []string{"not_json at byte 1"}},
		{`{"n":1}`, offline("-"), []string{"no_prompt", "--path"}},
		{chat, offline("-", "--path", "/v1/rerank"), []string{"unlisted", "--path"}},
		{"", offline(good, "--block-size", "0"), []string{"block size 0"}},
		{"", offline(good, "--address", "x"), []string{"tokenizer", "address"}},
		{"", []string{"tokenize", good, "--tokenizer", "tiktoken"}, []string{"tiktoken <encoding>"}},
		{"", []string{"tokenize", good, "--tokenizer", "hf " + missing}, []string{missing}},
		{"", []string{"tokenize", good, "--ids"}, []string{"--ids needs --tokenizer"}},
	} {
		fails(t, c.stdin, c.args, c.want...)
	}
}

func TestBothCommandsSayWhyTheRunningInstanceCannotAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	_, none := start(t, "http://site {\n\tbind {SITE}\n\trespond ok\n}\n")
	for _, command := range []string{"tokenize", "explain"} {
		at := func(address string) []string { return []string{command, "-", "--address", address} }
		fails(t, chat, at(closed), "no Caddy answers at "+closed, "refused", "is it running")
		fails(t, chat, at("unix/"+filepath.Join(t.TempDir(), "none")), "no Caddy answers", "is it running")
		fails(t, chat, at(strings.TrimPrefix(other.URL, "http://")), "built without kv_aware")
		fails(t, chat, at(none), "no pool", "lb_policy kv_aware")
		fails(t, chat, at("127.0.0.1:1-9"), "no address of an admin API")
		fails(t, chat, []string{command, "-", "--config", filepath.Join(t.TempDir(), "none.json")}, "finding the admin API")
	}
}

func TestExplainShowsTheSecondsThatTheLatencyIsMadeOf(t *testing.T) {
	_, address := start(t, site)
	want := `openai_chat: 22 tokens, 5 whole blocks of 4, by auto (o200k_base)
One of the first 2 takes it, at random.

     upstream  cached  uncached  sequences  own s  queue s  wait s  delay s  memory s  eviction s  step s  KV use  penalty      cost    
  127.0.0.1:1       0        22          0  0.013    0.000   0.000    0.000     0.000       0.000   0.012   0.001        0  0.000397  <-
  127.0.0.1:2       0        22          0  0.013    0.000   0.000    0.000     0.000       0.000   0.012   0.001        0  0.000397  <-
`
	if out := succeed(t, chat, "explain", "-", "--address", address); out != want {
		t.Errorf("prints\n%s, want\n%s", out, want)
	}
}

func TestTheAddressIsTakenFromTheConfiguration(t *testing.T) {
	c, address := start(t, site)
	config := filepath.Join(c.Dir(), "config.json")
	data, err := json.Marshal(map[string]any{"admin": map[string]string{"listen": address + "|0200"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := succeed(t, chat, "tokenize", "-", "--config", config); out != chatTable {
		t.Errorf("prints %s", out)
	}
	fails(t, `{"n":1}`, []string{"tokenize", "-", "--config", config}, "says: no_prompt at byte 0")
}

func TestExplainShowsWhatEachUpstreamWouldCost(t *testing.T) {
	_, address := start(t, strings.Replace(site, "block_size 4", "block_size 4\n\t\t\tobjective token_load", 1))
	want := `openai_chat: 22 tokens, 5 whole blocks of 4, by auto (o200k_base)
One of the first 2 takes it, at random.

     upstream  cached  uncached  prefill  decode  sequences  load  penalty  cost    
  127.0.0.1:1       0        22        0       0          0    22        0    22  <-
  127.0.0.1:2       0        22        0       0          0    22        0    22  <-
`
	if out := succeed(t, chat, "explain", "-", "--address", address); out != want {
		t.Errorf("prints\n%s, want\n%s", out, want)
	}
	out := succeed(t, chat, "explain", "-", "--address", address, "--json", "--pool", "", "--tenant", "x")
	if !json.Valid([]byte(out)) || !strings.Contains(out, `"prompt_tokens":22`) {
		t.Errorf("prints %s", out)
	}
	fails(t, chat, []string{"explain", "-", "--address", address, "--pool", "none"}, "no such pool")
}

func TestNamesFromOutsideCannotWriteToTheTerminal(t *testing.T) {
	out := succeed(t, `{"model":"a\u001b[2J\nb","prompt":"x"}`, "tokenize", "-", "--tokenizer", "estimate")
	if strings.Contains(out, "\x1b") || !strings.Contains(out, `"a\x1b[2J\nb"`) {
		t.Errorf("prints %q", out)
	}
}

func TestExplainSaysWhoIsLeftOutAndWhy(t *testing.T) {
	var e explanation
	if err := json.Unmarshal([]byte(`{"api":"openai_chat","objective":"token_load","tied":1,"upstreams":[
		{"address":"a:1","chosen":true,"uncached_tokens":22,"load":22,"cost":22},
		{"address":"b:1","excluded":"asleep"},{"address":"c:1","excluded":"model"},{"address":"d:1","excluded":"\u001b[2J"}]}`), &e); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	printExplanation(&out, &e)
	table, rest, _ := strings.Cut(out.String(), "<-\n")
	want := `b:1 is left out while others are available: its engine sleeps.
c:1 is left out while others are available: it does not serve the model.
d:1 is left out while others are available: "\x1b[2J".
`
	if rest != want || strings.Contains(table, "b:1") {
		t.Errorf("prints\n%s", out.String())
	}
}

func TestErrorsFromOutsideCannotWriteToTheTerminal(t *testing.T) {
	evil := "no \"such\" pool\x1b]0;x\a\r\n\u202e" + strings.Repeat("A", 10_000)
	said, err := json.Marshal(map[string]string{"error": evil})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(said)
	}))
	defer server.Close()
	for _, args := range [][]string{{"status"}, {"top"}, {"explain", "-"}, {"tokenize", "-"}, {"record"}, {"dashboard", "--no-open"}} {
		_, err := run(t, chat, append(args, "--address", strings.TrimPrefix(server.URL, "http://"))...)
		if err == nil || !strings.Contains(err.Error(), `says: no "such" pool\x1b]0;x\a\r\n\u202eAAA`) || len(err.Error()) > 1200 || strings.ContainsAny(err.Error(), "\x1b\a\r\n\u202e") {
			t.Errorf("%v: %q", args, err)
		}
	}
}

func TestACaddyThatDoesNotAnswerInTimeIsGivenUp(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(over)
	cmd := statusCommand()
	if err := cmd.Flags().Set("address", strings.TrimPrefix(server.URL, "http://")); err != nil {
		t.Fatal(err)
	}
	api, err := adminAPIOf(cmd)
	if err != nil {
		t.Fatal(err)
	}
	api.patience = time.Millisecond
	var f failure
	if _, _, err := api.snapshot(t.Context(), nil); !errors.As(err, &f) || f.code != exitNoCaddy || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("it says %v", err)
	}
}
