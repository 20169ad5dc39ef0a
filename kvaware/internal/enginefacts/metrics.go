// SPDX-License-Identifier: Apache-2.0

package enginefacts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
)

// MaxLine is the longest line of /metrics that is read, in bytes. Engines write a
// few thousand into that of their configuration.
const MaxLine = 64 << 10

// maxRanks bounds the data-parallel engines that are told apart.
const maxRanks = 1024

// maxTokens bounds capacities; what is beyond it is no number of KV tokens.
const maxTokens = 1 << 48

// maxBlock bounds the tokens of a KV block.
const maxBlock = 1 << 20

// ErrNoMetrics says that nothing in the text was a sample of the Prometheus format.
var ErrNoMetrics = errors.New("no samples of the Prometheus text format")

// Engines whose names a reader recognises.
const (
	VLLM     = "vllm"
	SGLang   = "sglang"
	TRTLLM   = "tensorrt-llm"
	LlamaCPP = "llama.cpp"
	TGI      = "tgi"
	Ollama   = "ollama"
)

// Told is yes, no, or not told.
type Told int8

// What is told.
const (
	Unknown Told = iota
	Yes
	No
)

func told(yes bool) Told {
	if yes {
		return Yes
	}
	return No
}

// Facts are what an engine tells beside its models. What it does not tell is zero.
type Facts struct {
	Engine    string // one of the names above, "" if it is none of them
	BlockSize int    // tokens in a KV block
	KVTokens  int64  // capacity of the KV cache of each engine
	Engines   int    // data-parallel engines that were told apart

	PrefixCaching Told // whether prefixes stay in the KV cache
	Awake         Told

	Started float64 // of the process, in Unix seconds
	// Prompt tokens computed since the process started: a count that falls means
	// that it has started anew, also where no time is told.
	PromptTokens float64

	Running, Waiting float64 // requests, of all engines
}

// Capacity is the KV capacity of all data-parallel engines together, in tokens.
func (f *Facts) Capacity() int64 { return f.KVTokens * int64(max(1, f.Engines)) }

// Add takes over what g tells and f does not.
func (f *Facts) Add(g Facts) {
	keep(&f.Engine, g.Engine)
	keep(&f.BlockSize, g.BlockSize)
	keep(&f.KVTokens, g.KVTokens)
	keep(&f.Engines, g.Engines)
	keep(&f.PrefixCaching, g.PrefixCaching)
	keep(&f.Awake, g.Awake)
	keep(&f.Started, g.Started)
}

func keep[T comparable](told *T, other T) {
	var none T
	if *told == none {
		*told = other
	}
}

// rank is what one data-parallel engine tells of its cache.
type rank struct {
	name           string
	tokens, blocks int64
	shared         bool // tokens are those of all engines together
	blockSize      int
}

// reading is the state of reading /metrics.
type reading struct {
	facts     Facts
	ranks     []rank
	awake     int // engines that say they are
	asleep    int
	trtBlocks int64
	samples   int
}

// ReadMetrics reads the Prometheus text format. It gives what could be read, with
// the error of the reader that ended it early, or [ErrNoMetrics].
func ReadMetrics(from io.Reader) (Facts, error) {
	r := new(reading)
	lines := bufio.NewReaderSize(from, MaxLine)
	var err error
	for err == nil {
		var line []byte
		line, err = lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			continue
		}
		r.line(line)
	}
	if !errors.Is(err, io.EOF) {
		return r.result(), err
	}
	if r.samples == 0 {
		return Facts{}, ErrNoMetrics
	}
	return r.result(), nil
}

// line reads one sample.
func (r *reading) line(line []byte) {
	line = bytes.TrimLeft(bytes.TrimRight(line, " \t\r\n"), " \t")
	if len(line) == 0 || line[0] == '#' {
		return
	}
	n := 0
	for n < len(line) && nameByte(line[n]) {
		n++
	}
	if n == 0 || n == len(line) || line[n] != '{' && line[n] != ' ' && line[n] != '\t' {
		return
	}
	s := sample{rest: bytes.TrimLeft(line[n:], " \t")}
	switch name := line[:n]; string(name) {
	case "vllm:cache_config_info":
		r.vllmCache(&s)
	case "vllm:engine_sleep_state":
		r.sleep(&s)
	case "vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing", "trtllm_num_requests_running":
		r.add(&r.facts.Running, &s)
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred", "trtllm_num_requests_waiting", "tgi_queue_size":
		r.add(&r.facts.Waiting, &s)
	case "vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total":
		r.add(&r.facts.PromptTokens, &s)
	case "sglang:cache_config_info":
		r.sglangPages(&s)
	case "sglang:max_total_num_tokens", "sglang:page_size", "sglang:num_pages":
		r.sglangCache(string(name), &s)
	case "trtllm_kv_cache_max_blocks":
		if v, ok := s.value(); ok {
			r.trtBlocks = max(r.trtBlocks, whole(v))
		}
	case "trtllm_kv_cache_tokens_per_block":
		if v, ok := s.value(); ok {
			r.facts.BlockSize = block(whole(v))
		}
	case "process_start_time_seconds":
		if v, ok := s.value(); ok && v > 0 && v <= maxTokens {
			r.facts.Started = v
		}
	default:
		if r.samples > 0 && r.facts.Engine != "" {
			return // nothing to learn from it
		}
		s.value()
	}
	if s.valid {
		r.samples++
		if e := engineOf(line[:n]); e != "" {
			r.facts.Engine = e
		}
	}
}

func nameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == ':'
}

// engineOf tells an engine by the name of one of its metrics.
func engineOf(name []byte) string {
	for _, e := range [...]struct{ prefix, engine string }{
		{"vllm:", VLLM}, {"sglang:", SGLang}, {"trtllm_", TRTLLM}, {"llamacpp:", LlamaCPP}, {"tgi_", TGI},
	} {
		if len(name) > len(e.prefix) && string(name[:len(e.prefix)]) == e.prefix {
			return e.engine
		}
	}
	return ""
}

func (r *reading) add(sum *float64, s *sample) {
	if v, ok := s.value(); ok && v >= 0 && *sum+v <= maxTokens {
		*sum += v
	}
}

// rank gives what is known of the data-parallel engine of that name.
func (r *reading) rank(name string) *rank {
	for i := range r.ranks {
		if r.ranks[i].name == name {
			return &r.ranks[i]
		}
	}
	if len(r.ranks) >= maxRanks {
		return &r.ranks[len(r.ranks)-1]
	}
	r.ranks = append(r.ranks, rank{name: name})
	return &r.ranks[len(r.ranks)-1]
}

func (r *reading) vllmCache(s *sample) {
	var tokens, blocks, size, aligned int64
	var caching Told
	engine := ""
	s.labels(func(name, value []byte) {
		switch string(name) {
		case "engine":
			engine = string(value)
		case "block_size":
			size = count(value)
		case "cache_hit_alignment_tokens":
			aligned = count(value)
		case "num_gpu_blocks":
			blocks = count(value)
		case "kv_cache_size_tokens":
			tokens = count(value)
		case "enable_prefix_caching":
			switch string(value) {
			case "True":
				caching = Yes
			case "False":
				caching = No
			}
		}
	})
	if _, ok := s.value(); !ok {
		return
	}
	k := r.rank(engine)
	if tokens == 0 {
		tokens = blocks * size // of all engines together
		k.shared = true
	}
	if aligned > 0 {
		size = aligned
	}
	k.tokens, k.blockSize = tokens, block(size)
	if r.facts.PrefixCaching != No {
		r.facts.PrefixCaching = caching
	}
}

func (r *reading) sleep(s *sample) {
	awake := false
	s.labels(func(name, value []byte) {
		awake = awake || string(name) == "sleep_state" && string(value) == "awake"
	})
	switch v, ok := s.value(); {
	case !ok || !awake:
	case v > 0:
		r.awake++
	default:
		r.asleep++
	}
}

func (r *reading) sglangPages(s *sample) {
	var size, pages int64
	dp := ""
	s.labels(func(name, value []byte) {
		switch string(name) {
		case "dp_rank":
			dp = string(value)
		case "page_size":
			size = count(value)
		case "num_pages":
			pages = count(value)
		}
	})
	if _, ok := s.value(); ok {
		k := r.rank(dp)
		k.blockSize, k.blocks = block(size), max(k.blocks, pages)
	}
}

func (r *reading) sglangCache(name string, s *sample) {
	dp := ""
	s.labels(func(name, value []byte) {
		if string(name) == "dp_rank" {
			dp = string(value)
		}
	})
	v, ok := s.value()
	if !ok {
		return
	}
	k := r.rank(dp)
	switch name {
	case "sglang:max_total_num_tokens":
		k.tokens = max(k.tokens, whole(v))
	case "sglang:page_size":
		k.blockSize = block(whole(v))
	case "sglang:num_pages":
		k.blocks = max(k.blocks, whole(v))
	}
}

// result concludes from all samples together.
func (r *reading) result() Facts {
	f := r.facts
	f.Engines = len(r.ranks)
	for _, k := range r.ranks {
		if k.blockSize > 0 {
			f.BlockSize = k.blockSize
		}
		tokens := k.tokens
		if tokens == 0 && k.blocks > 0 && k.blockSize > 0 {
			tokens = k.blocks * int64(k.blockSize)
		}
		if k.shared {
			tokens /= int64(len(r.ranks))
		}
		if tokens > 0 && (f.KVTokens == 0 || tokens < f.KVTokens) {
			f.KVTokens = tokens
		}
	}
	if f.Engine == TRTLLM && r.trtBlocks > 0 && f.BlockSize > 0 {
		f.KVTokens = r.trtBlocks * int64(f.BlockSize)
	}
	if f.KVTokens > maxTokens {
		f.KVTokens = 0
	}
	switch {
	case r.awake > 0:
		f.Awake = Yes
	case r.asleep > 0:
		f.Awake = No
	}
	return f
}

// count reads a label that is a whole number; 0 if it is none.
func count(label []byte) int64 {
	n, err := strconv.ParseInt(string(label), 10, 64)
	if err != nil || n < 0 || n > maxTokens {
		return 0
	}
	return n
}

// whole turns a value into a count; 0 if it is none.
func whole(v float64) int64 {
	if !(v >= 0 && v <= maxTokens) || v != math.Trunc(v) {
		return 0
	}
	return int64(v)
}

// block gives a block size; 0 if it is none.
func block(n int64) int {
	if n < 0 || n > maxBlock {
		return 0
	}
	return int(n)
}
