// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/proxytest"
	"github.com/kvaware/caddy-kvaware/tokenize"
)

const aSecret = "correct horse battery staple"

func TestASecretsErrorsQuoteNothingOfIt(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{
		"hunter2":                        "7 bytes are too few",
		"{file." + short + "}":           "7 bytes are too few",
		"{env.KV_AWARE_NO_SUCH_VAR}":     "unknown or empty",
		"{file.hunter2}":                 "unknown or empty",
		"hunter2hunter2{hunter2}hunter2": "unknown or empty",
	} {
		p := &Policy{Secret: secret}
		err := p.resolveOptions()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error with %q", secret, err, want)
		}
	}
}

func TestEqualSecretsMakeEqualHashesHoweverTheyAreGiven(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(aSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KV_AWARE_TEST_SECRET", aSecret)
	var all []*hashKeys
	for _, secret := range []string{aSecret, "{env.KV_AWARE_TEST_SECRET}", "{file." + file + "}"} {
		p := &Policy{Secret: secret}
		if err := p.resolveOptions(); err != nil {
			t.Fatal(err)
		}
		all = append(all, p.keys.Load())
		if p.params.secret != all[0].id || all[len(all)-1] != all[0] {
			t.Errorf("%s makes other keys", secret)
		}
	}
	other, _ := keysOfSecret(caddy.NewReplacer(), aSecret+".")
	if one := all[0]; other.id == one.id || other.chains == one.chains || other.tenants == one.tenants || other.tenant("a") == one.tenant("a") {
		t.Error("another secret makes the same keys")
	}
}

// A fleet's chains are only equal if no process puts in anything of its own. These
// were computed by another process.
func TestChainsUnderASecretAreTheSameInEveryProcess(t *testing.T) {
	k, err := keysOfSecret(caddy.NewReplacer(), aSecret)
	if err != nil {
		t.Fatal(err)
	}
	rd := tokenize.NewReader()
	rd.SetSecret(k.chains)
	req, err := rd.Read(tokenize.OpenAIChat, "", []byte(`{"model":"m","cache_salt":"s","messages":[{"role":"user","content":"`+prose("fleet", 40)+`"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	rd.Chain(req, k.estimate, 16)
	got := [...]uint64{req.Namespace, k.tenant("a"), req.Prompts[0].Blocks[1]}
	want := [...]uint64{0x48afc56a7e1e1821, 0x486d1226b828c2dc, 0x444f9ac31a245f5f}
	if got != want {
		t.Errorf("got %#x, want %#x", got, want)
	}
}

func TestLengthsKeepTextsApart(t *testing.T) {
	var key [32]byte
	seen := make(map[[32]byte][]string)
	for _, texts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"a\x00b"}, {strings.Repeat("a", 300)}} {
		sum := mac(&key, texts...)
		if other, twice := seen[sum]; twice {
			t.Errorf("%q and %q have one sum", texts, other)
		}
		seen[sum] = texts
	}
}

func TestHandlersOfOnePoolMustShareASecret(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	c := proxytest.Start(t, "", "")
	second := func(secret string) string {
		return strings.NewReplacer("//site", "//site2", "{SITE}", "{SITE2}").Replace(site(engine.Addr(), secret, ""))
	}
	first := site(engine.Addr(), "secret hunter2hunter2hunter2", "")
	for _, other := range []string{"", "secret hunter3hunter3hunter3"} {
		err := c.TryReload("", first+second(other))
		if err == nil || !strings.Contains(err.Error(), "secret of pool") || strings.Contains(err.Error(), "hunter") {
			t.Errorf("got %v", err)
		}
	}
	if err := c.TryReload("", first+second("secret hunter2hunter2hunter2")); err != nil {
		t.Error(err)
	}
	if _, _, answer := c.Admin("GET", "/kv_aware/upstreams", ""); strings.Contains(answer, "hunter") {
		t.Errorf("the admin API shows %s", answer)
	}
}

func TestAnotherSecretForgetsWhatTheOldOneHashed(t *testing.T) {
	for _, tokenizer := range []string{"tokenizer auto", "tokenizer estimate"} {
		t.Run(tokenizer, func(t *testing.T) {
			engine := proxytest.NewEngine(t, nil)
			conf := func(secret string) string {
				return site(engine.Addr(), tokenizer+"\n"+secret+"\nisolate_by {header.X-Tenant}", "")
			}
			c := proxytest.Start(t, "", conf(""))
			body := chat(prose("secrets ", 100), true)
			found := func() bool {
				res := c.Post("/v1/chat/completions", body)
				proxytest.ReadAll(t, res)
				wantIdle(t)
				return res.Header.Get("X-KV-Aware-Cached-Tokens") != "0"
			}
			held := func() int {
				pl := defaultPool(t)
				return pl.index.Stats(pl.lookup(engine.Addr(), nil).slot).Idle
			}
			if found() || !found() {
				t.Fatal("the first configuration does not know its own prompts")
			}
			blocks := held()
			c.Reload("", conf(""))
			if !found() {
				t.Error("a reload without change forgot")
			}
			c.Reload("", conf(`secret "`+aSecret+`"`))
			if held() != 0 || found() || !found() || held() != blocks {
				t.Error("the secret changed nothing")
			}
			cache := defaultPool(t).tokens.Load()
			c.Reload("", conf(`secret "`+aSecret+`"`))
			if !found() || defaultPool(t).tokens.Load() != cache {
				t.Error("a reload with the same secret forgot")
			}
			c.Reload("", conf(""))
			if held() != 0 || found() {
				t.Error("the stored seed knows what the secret hashed")
			}
		})
	}
}

func TestTheSeedIsStoredByStartAndNotByValidation(t *testing.T) {
	engine := proxytest.NewEngine(t, nil)
	newProcess(t)
	c := proxytest.Start(t, "", `http://site {
	bind {SITE}
	respond ok
}
`)
	file := filepath.Join(c.Dir(), "kv_aware", "seed")
	conf := strings.ReplaceAll(`{"storage":{"module":"file_system","root":"{DIR}"},"apps":{"http":{"servers":{"s":{"listen":["unix/{DIR}/never"],"routes":[{"handle":[{"handler":"reverse_proxy",
		"load_balancing":{"selection_policy":{"policy":"kv_aware"}},"upstreams":[{"dial":"127.0.0.1:1"}]}]}]}}}}}`, "{DIR}", c.Dir())
	parsed := new(caddy.Config)
	if err := json.Unmarshal([]byte(conf), parsed); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(parsed); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("validating wrote the seed")
	}
	c.Reload("", site(engine.Addr(), "secret hunter2hunter2hunter2", ""))
	if _, err := os.Stat(file); err == nil {
		t.Fatal("a configuration with a secret wrote a seed")
	}
	c.Reload("", site(engine.Addr(), "", ""))
	text, err := os.ReadFile(file)
	if err != nil || len(text) != 2*seedSize+1 {
		t.Fatalf("got %d bytes and %v", len(text), err)
	}
	before := defaultPool(t).keys.Load()
	newProcess(t)
	c.Reload("", site(engine.Addr(), "", ""))
	if defaultPool(t).keys.Load() != before {
		t.Error("the seed was not taken from storage")
	}
}
