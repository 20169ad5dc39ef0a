// SPDX-License-Identifier: Apache-2.0

package kvaware

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/route"
)

func init() {
	caddy.RegisterModule(new(Policy))
}

// The defaults of the options.
const (
	DefaultBlockSize   = 16
	DefaultCacheTokens = 400_000
	DefaultMaxBody     = 16 << 20
	DefaultMaxBuffered = 1 << 30
	DefaultTokenCache  = 256 << 20
)

// The bounds of the options.
const (
	maxBlockSize   = 4096
	maxCacheTokens = 1_000_000_000_000
	maxBodyLimit   = 1 << 30
	maxMemory      = 1 << 40
	maxWeight      = 1_000_000 // a load is then always a number that JSON and headers can show
)

// Policy is a selection policy of reverse_proxy that sends each LLM request to
// the upstream where it costs least: by the prompt tokens that would have to be
// computed there because they are not in its KV cache, and by the work already
// waiting and running there. Requests that carry no prompt go where the fewest
// sequences run.
//
// It sets these placeholders, all with the prefix `http.reverse_proxy.`, so
// that `{rp.kv_aware.…}` is short for them:
//
// Placeholder | Description
// ------------|-------------
// `{http.reverse_proxy.kv_aware.upstream}` | Address of the upstream that was chosen
// `{http.reverse_proxy.kv_aware.prompt_tokens}` | Prompt tokens of the request, as counted here; 0 when none were read
// `{http.reverse_proxy.kv_aware.cached_tokens}` | Prompt tokens believed to be in the KV cache of that upstream
// `{http.reverse_proxy.kv_aware.generated_tokens}` | Tokens generated so far; all of them once the response has ended
// `{http.reverse_proxy.kv_aware.load}` | Token load of that upstream with the request, when it was chosen
// `{http.reverse_proxy.kv_aware.reason}` | Why it was chosen: `load`, `affinity`, `fallback`, or `no_tokens:` and why no prompt was read
type Policy struct {
	// How prompts become tokens. Belongs to the pool. Default: `auto`, the
	// encoding that a request's model is known to use, else a stand-in.
	Tokenizer *Tokenizer `json:"tokenizer,omitempty"`

	// Tokens in a KV block. Engines share prefixes in whole blocks only, so this
	// should be what the engines use: 16 is vLLM's default. A larger value makes
	// the index smaller and the match coarser. From 1 to 4096. Belongs to the pool.
	// Default: 16.
	BlockSize int `json:"block_size,omitempty"`

	// KV-cache capacity of each upstream, in tokens: what vLLM logs at start as
	// "GPU KV cache size". It bounds what the index believes an upstream to
	// hold. Too large, and requests are sent to prefixes that are gone; too
	// small, and they miss prefixes that are there. At least one block, fewer than
	// 2^30 blocks. Or `auto`, with `engine`: what each upstream's engine tells, less
	// if its events show that it evicts sooner, and the default until one of them is
	// known. Belongs to the pool.
	// Default: 400000, about an 8B model on one 80 GB accelerator.
	CacheTokens CacheTokens `json:"cache_tokens,omitempty"`

	// What is learnt of each upstream from its own metrics and list of models.
	// Belongs to the pool. Default: nothing.
	Engine *Engine `json:"engine,omitempty"`

	// How the engines keep their KV caches, where it is not in blocks that requests
	// share: in slots, as llama.cpp and Ollama do. Belongs to the pool. Default: in
	// blocks.
	Cache *Cache `json:"cache,omitempty"`

	// What engines report of their own KV caches. Belongs to the pool. Default: nothing
	// is listened to.
	KVEvents *KVEvents `json:"kv_events,omitempty"`

	// Bytes of a request body to read for its prompt, and to keep for retries
	// until the response begins. A longer body is not refused: it streams
	// through, routed by its length. At most 1073741824 (1 GiB); reading a body
	// takes several times its length in memory. Default: 16777216 (16 MiB).
	MaxBody int64 `json:"max_body,omitempty"`

	// Bytes of request bodies held at one time, all requests of the pool
	// together. Beyond it requests are routed by their length, never refused. At
	// most 1 TiB. Belongs to the pool. Default: 1073741824 (1 GiB).
	MaxBuffered int64 `json:"max_buffered,omitempty"`

	// Bytes of memory for remembering how prompts were encoded, so that a
	// conversation that grows costs only what is new in it. It holds hashes and a
	// few token ids, no text, and takes memory as it needs it. At most 1 TiB;
	// below about 1 KiB nothing is remembered. Belongs to the pool. Default:
	// 268435456 (256 MiB), room for conversations of about 300 million tokens.
	TokenCache int64 `json:"token_cache,omitempty"`

	// Other names under which the engines serve a model (vLLM's
	// `--served-model-name` takes several), by the name that stands for all.
	// Requests that name any of them share prefixes, what is learnt of counts, and
	// the choice of an encoding, which is that of the name itself. Names are
	// compared to the letter; the empty alias means requests that name no model. An
	// adapter that is served as a model is no alias of it. Global placeholders such
	// as {env.NAME} are replaced. Belongs to the pool. Default: none.
	ModelAlias map[string][]string `json:"model_alias,omitempty"`

	// What the choice makes least: `latency`, an estimate of what the request costs
	// itself and others in time, by prefill, waiting for memory, evictions and
	// decode steps; or `token_load`, the tokens that would wait and run at the
	// upstream. Default: `latency`, but `token_load` if weights are given.
	Objective string `json:"objective,omitempty"`

	// Sequences that each engine runs at once: vLLM's `--max-num-seqs`, SGLang's
	// `--max-running-requests`. Objective `latency` then expects that more wait.
	// From 1 to 1000000. Default: the slots of `cache`, else unknown, taken for no
	// limit.
	MaxSequences int `json:"max_sequences,omitempty"`

	// What a token of waiting prefill, a token of running decode and a running
	// sequence weigh against each other. Of objective `token_load` only.
	Weights Weights `json:"weights,omitzero"`

	// Name of the pool whose knowledge of upstreams (prefix index and load) this
	// handler shares. Handlers that name the same upstreams should share one.
	// Global placeholders such as {env.NAME} are replaced. Under another name
	// nothing that was learnt is known. Default: the pool without a name.
	Pool string `json:"pool,omitempty"`

	// What hashes of models, prompts and tenants are keyed by, at least 16 bytes;
	// `openssl rand -hex 32` makes a good one. Caddys that share a secret make the
	// same hashes. Global placeholders such as {env.NAME} and {file./path} are
	// replaced, and should be used: the admin API shows a configuration as it was
	// given. With another secret nothing that was learnt is known. Belongs to the
	// pool. Default: a random one that is made once and kept in Caddy's storage, as
	// `kv_aware/seed`; one of the process's own if that fails.
	Secret string `json:"secret,omitempty"`

	// What tells tenants apart, as a placeholder such as
	// `{http.request.header.X-Tenant}` (in a Caddyfile, `{header.X-Tenant}`):
	// prompts of different values are never taken for cached by each other's.
	// It parts what this policy believes, not what engines share: without the
	// engine's own `cache_salt` it is no security boundary. In JSON give the full
	// name: a placeholder that is not known is empty for everybody, and parts
	// nobody. Default: none.
	IsolateBy string `json:"isolate_by,omitempty"`

	// Whether to give each request a salt of its tenant, so that engines part their
	// KV caches by tenant too: `cache_salt` in the chat, completions, responses and
	// embeddings APIs (vLLM, SGLang, Dynamo), `extra_key` in SGLang's own. All other
	// bytes stay as they are. The salt is a keyed hash of the tenant and of the salt
	// that the client gave, if any, and takes its place: a client can part its own
	// tenant's cache further, and cannot get into another's. Requests whose
	// `isolate_by` is empty are one tenant. It holds as far as clients cannot choose
	// what isolate_by says.
	//
	// What cannot be given a salt goes on without one, is counted in the metric
	// `caddy_kv_aware_unsalted_total`, and shares the engines' cache with all else
	// that has none: other APIs (Anthropic, Ollama, TGI), bodies that are not read
	// (beyond max_body or max_buffered, compressed, multipart, no JSON), and bodies
	// with a digest in a header (Content-Digest, Repr-Digest, Digest, Content-MD5,
	// X-Amz-Content-Sha256), which would not be true of another body. Dynamo takes
	// its header X-Tenant-ID before any salt: delete it where clients can set it.
	// Default: false.
	InjectSalt bool `json:"inject_salt,omitempty"`

	// The policy for requests that carry no prompt. The request is charged to
	// the upstream it chooses, or to another if that one is full or was tried by
	// this request while another is free. It must not be or contain kv_aware.
	// Default: the fewest running sequences, then the
	// least token load, then at random.
	FallbackRaw json.RawMessage `json:"fallback,omitempty" caddy:"namespace=http.reverse_proxy.selection_policies inline_key=policy"`

	// Whether to tell the client about the decision, in the response headers
	// `X-KV-Aware-Upstream`, `X-KV-Aware-Prompt-Tokens`,
	// `X-KV-Aware-Cached-Tokens` and `X-KV-Aware-Load`. They name addresses of
	// upstreams and tell what others have asked before: not for the public.
	// Default: false.
	ResponseHeaders bool `json:"response_headers,omitempty"`

	fallback  reverseproxy.Selector
	objective route.Objective
	tokens    *tokens
	aliases   modelAliases
	scraping  *scraping     // nil without Engine
	events    *eventsConfig // nil without KVEvents
	// remembered is replaced when the pool's cache is.
	remembered atomic.Pointer[remembered]
	pool       *pool
	proxy      *reverseproxy.Handler // whose list of static upstreams is known
	params     poolParams
	// keys are nil until the app has started, except with a secret; see keysNow.
	keys   atomic.Pointer[hashKeys]
	logger *zap.Logger
	static atomic.Pointer[resolvedPool] // the last list of upstreams, resolved
}

// CaddyModule returns the Caddy module information.
func (*Policy) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.kv_aware",
		New: func() caddy.Module { return new(Policy) },
	}
}

// Provision sets up the policy. It opens nothing and starts nothing, since it
// also runs for configurations that are only validated or that fail later.
func (p *Policy) Provision(ctx caddy.Context) error {
	p.logger = ctx.Logger()
	if err := p.resolveOptions(); err != nil {
		return err
	}

	if p.InjectSalt && !ownsProxy(ctx, p) {
		return fmt.Errorf("inject_salt: this kv_aware is the fallback of another policy, and requests that the other one places would go on without a salt: make it the proxy's own policy")
	}

	if p.FallbackRaw != nil {
		mod, err := ctx.LoadModule(p, "FallbackRaw")
		if err != nil {
			return fmt.Errorf("loading fallback selection policy: %w", err)
		}
		p.fallback = mod.(reverseproxy.Selector)
	}

	appModule, err := ctx.App("kv_aware")
	if err != nil {
		return err
	}
	p.proxy = parentProxy(ctx)
	if err := p.checkEvents(); err != nil {
		return err
	}
	if err := appModule.(*App).use(p); err != nil {
		return err
	}
	// From here on there is something for Cleanup to give back.
	p.pool = acquirePool(p.Pool, p.params)
	// Now, while the policy that this one replaces still keeps its encoder: so
	// both have the same one, and what the cache holds outlives the reload.
	p.encoder("", p.keysNow())

	return p.wrapTransport(ctx)
}

// resolveOptions fills in defaults and the values of global placeholders.
func (p *Policy) resolveOptions() error {
	repl := caddy.NewReplacer()
	if err := replaceKnown(repl, "pool", &p.Pool); err != nil {
		return err
	}
	if p.Tokenizer == nil {
		p.Tokenizer = new(Tokenizer)
	}
	var err error
	if p.tokens, err = p.Tokenizer.provision(repl); err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	if p.tokens.inexact != nil {
		p.logger.Warn("chats with images are counted by an estimate", zap.Error(p.tokens.inexact))
	}
	p.tokens.key = maphash.String(tokenizerSeed, p.tokens.described)
	secret, err := keysOfSecret(repl, p.Secret)
	if err != nil {
		return err
	}
	var aliases string
	if p.aliases, aliases, err = aliasesOf(repl, p.ModelAlias); err != nil {
		return err
	}
	if p.scraping, err = p.Engine.provision(repl); err != nil {
		return err
	}
	if p.events, err = p.KVEvents.provision(repl, p.Tokenizer.Engine); err != nil {
		return fmt.Errorf("kv_events: %w", err)
	}
	setDefault(&p.BlockSize, DefaultBlockSize)
	setDefault(&p.CacheTokens, DefaultCacheTokens)
	setDefault(&p.MaxBody, DefaultMaxBody)
	setDefault(&p.MaxBuffered, DefaultMaxBuffered)
	setDefault(&p.TokenCache, DefaultTokenCache)
	p.resolveObjective()
	p.resolveCache()
	p.params = poolParams{
		tokenizer:   p.tokens.described,
		asking:      p.tokens.asking,
		blockSize:   p.BlockSize,
		cacheTokens: int64(p.CacheTokens),
		slots:       p.Cache.slots(),
		context:     p.Cache.context(),
		maxBuffered: p.MaxBuffered,
		tokenCache:  p.TokenCache,
		aliases:     aliases,
	}
	if p.CacheTokens == AutoCacheTokens {
		p.params.cacheTokens, p.params.cacheAuto = DefaultCacheTokens, true
	}
	if p.scraping != nil {
		p.params.engine = p.scraping.described
	}
	if p.events != nil {
		p.params.events = fmt.Sprintf("%s, predicted_ttl %s", p.events.described, p.events.ttl)
		p.params.ranks = p.events.ranks
	}
	if secret != nil {
		p.keys.Store(secret)
		p.params.secret = secret.id
	}
	// Checked here and not in Validate, which runs after the pool was taken.
	return p.checkOptions()
}

func (p *Policy) checkOptions() error {
	switch {
	case p.BlockSize < 1 || p.BlockSize > maxBlockSize:
		return fmt.Errorf("block_size %d: expecting 1 to %d tokens", p.BlockSize, maxBlockSize)
	case p.params.cacheTokens < int64(p.BlockSize):
		return fmt.Errorf("cache_tokens %d: expecting at least one block of %d tokens", p.params.cacheTokens, p.BlockSize)
	case p.params.cacheTokens/int64(p.BlockSize) > math.MaxInt32/2:
		return fmt.Errorf("cache_tokens %d: expecting fewer than 2^30 blocks of %d tokens", p.params.cacheTokens, p.BlockSize)
	case p.params.cacheAuto && p.scraping == nil:
		return fmt.Errorf("cache_tokens auto needs the option engine, which asks the engines for it: add it, or give a number of tokens")
	case p.MaxBody < 1 || p.MaxBody > maxBodyLimit:
		return fmt.Errorf("max_body %d: expecting 1 to %d bytes", p.MaxBody, maxBodyLimit)
	case p.MaxBuffered < 1 || p.MaxBuffered > maxMemory:
		return fmt.Errorf("max_buffered %d: expecting 1 to %d bytes", p.MaxBuffered, int64(maxMemory))
	case p.TokenCache < 1 || p.TokenCache > maxMemory:
		return fmt.Errorf("token_cache %d: expecting 1 to %d bytes", p.TokenCache, int64(maxMemory))
	case p.IsolateBy != "" && !strings.Contains(p.IsolateBy, "{"):
		return fmt.Errorf("isolate_by %q: a fixed text tells no tenants apart: give a placeholder such as {http.request.header.X-Tenant}", p.IsolateBy)
	case p.InjectSalt && p.IsolateBy == "":
		return fmt.Errorf("inject_salt needs isolate_by, which tells the tenants apart that get a salt each")
	case strings.ContainsAny(p.Pool, "{}"):
		return fmt.Errorf("pool %q: only global placeholders such as {env.NAME} can name a pool", p.Pool)
	}
	if err := p.checkCache(); err != nil {
		return err
	}
	return p.checkObjective()
}

// Cleanup gives back what Provision took. Requests that are still under way
// keep using the policy after it: nothing they need is taken from them.
func (p *Policy) Cleanup() error {
	if p.tokens != nil && p.tokens.remote != nil {
		p.tokens.remote.Close()
	}
	if p.pool != nil {
		p.pool.release()
	}
	return nil
}

// replaceKnown puts the values of global placeholders into an option. One that
// becomes empty by it is a mistake: it would mean the default.
func replaceKnown(repl *caddy.Replacer, option string, value *string) error {
	replaced := repl.ReplaceKnown(*value, "")
	if replaced == "" && *value != "" {
		return fmt.Errorf("%s %q is empty once its placeholders are replaced: give the variable a value", option, *value)
	}
	*value = replaced
	return nil
}

func setDefault[T ~int | ~int64](field *T, def T) {
	if *field == 0 {
		*field = def
	}
}

func valueOr(v *float64, def float64) float64 {
	if v == nil {
		return def
	}
	return *v
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Policy)(nil)
	_ caddy.CleanerUpper    = (*Policy)(nil)
	_ reverseproxy.Selector = (*Policy)(nil)
)
