// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

var samples = os.DirFS("../../../testdata/traces")

// read takes at most n sessions.
func read(t testing.TB, tr *Trace, seed uint64, n int) []*Session {
	t.Helper()
	src, err := tr.Open(seed)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var all []*Session
	for len(all) < n {
		s, err := src.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// loadFS is Load of a file of fsys.
func loadFS(fsys fs.FS, path string, o Options) (*Trace, error) {
	return load(path, func() (io.ReadCloser, error) { return fsys.Open(path) }, o)
}

func loaded(t testing.TB, fsys fs.FS, name string, o Options) *Trace {
	t.Helper()
	tr, err := loadFS(fsys, name, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func text(t testing.TB, content string) *Trace {
	t.Helper()
	return loaded(t, fstest.MapFS{"x": {Data: []byte(content)}}, "x", Options{})
}

// idealHits is the share of prompt tokens that a cache of endless size would hold.
func idealHits(sessions []*Session, size int) float64 {
	seen := map[uint64]bool{}
	hit, all := 0, 0
	for _, s := range sessions {
		for i := range s.Turns {
			p, o := s.Turns[i].Hash(size, nil, nil)
			n := 0
			for n < len(p) && seen[p[n]] {
				n++
			}
			hit += n * size
			all += s.Turns[i].Prompt
			for _, h := range slices.Concat(p, o) {
				seen[h] = true
			}
		}
	}
	return float64(hit) / float64(all)
}

func TestEachFormatIsToldByItsFirstLineAndReadToItsEnd(t *testing.T) {
	for name, want := range map[string]struct{ requests, sessions int }{
		"conversation.jsonl":   {60, 60},
		"agentic_coding.jsonl": {65, 6},
		"azure_conv.csv":       {59, 59},
	} {
		tr := loaded(t, samples, name, Options{})
		if tr.Requests != want.requests || tr.Name+name[len(tr.Name):] != name || tr.Rate <= 0 {
			t.Errorf("%s: %+v, want %d requests", name, tr, want.requests)
		}
		sessions := read(t, tr, 1, want.sessions)
		if len(sessions) != want.sessions {
			t.Errorf("%s: %d sessions, want %d", name, len(sessions), want.sessions)
		}
		for i, s := range sessions {
			if i > 0 && s.Start < sessions[i-1].Start {
				t.Errorf("%s: session %d starts before the one before it", name, i)
			}
			for k := range s.Turns {
				turn := &s.Turns[k]
				p, _ := turn.Hash(16, nil, nil)
				if len(p) != turn.Prompt/16 {
					t.Errorf("%s: session %d turn %d: %d blocks for %d tokens", name, i, k, len(p), turn.Prompt)
				}
			}
		}
	}
}

func TestTheConversationsPromptsBeginAlike(t *testing.T) {
	s := read(t, loaded(t, samples, "conversation.jsonl", Options{}), 1, 60)
	seen := map[uint64]bool{}
	first := 0
	for _, x := range s {
		p, _ := x.Turns[0].Hash(512, nil, nil)
		if len(p) > 0 && seen[p[0]] {
			first++
		}
		for _, h := range p {
			seen[h] = true
		}
	}
	// All of the trace's prompts begin with its block 0.
	if first != len(s)-1 {
		t.Errorf("%d of %d prompts begin with a block that came before", first, len(s))
	}
	if a, b := idealHits(s, 512), idealHits(s, 64); a < 0.04 || b < a {
		t.Errorf("of an endless cache's hits %.3f with the file's blocks, %.3f with smaller ones", a, b)
	}
}

func TestBlocksOfAnySizeAreEqualExactlyIfTheFilesBlocksAre(t *testing.T) {
	tr := text(t, `{"timestamp":0,"input_length":1600,"output_length":1,"hash_ids":[1,2,3,4]}
{"timestamp":1,"input_length":1600,"output_length":1,"hash_ids":[1,2,9,10]}
{"timestamp":2,"input_length":1100,"output_length":1,"hash_ids":[1,7,8]}
{"timestamp":3,"input_length":600,"output_length":1,"hash_ids":[5,6]}`)
	s := read(t, tr, 1, 9)
	ids := [][]int{{1, 2, 3, 4}, {1, 2, 9, 10}, {1, 7, 8}, {5, 6}}
	for _, size := range []int{1, 16, 64, 100, 512, 700, 1024} {
		for i := range s {
			for k := range s {
				a, _ := s[i].Turns[0].Hash(size, nil, nil)
				b, _ := s[k].Turns[0].Hash(size, nil, nil)
				for n := range min(len(a), len(b)) {
					at := ((n+1)*size - 1) / 512 // the file's block around the block's end
					if equal := slices.Equal(ids[i][:at+1], ids[k][:at+1]); (a[n] == b[n]) != equal {
						t.Fatalf("size %d: block %d of prompts %d and %d: equal %v, want %v", size, n, i, k, a[n] == b[n], equal)
					}
				}
			}
		}
	}
}

func TestALaterPromptThatGoesOnTellsTheOutputsBlocks(t *testing.T) {
	tr := text(t, `{"timestamp":0,"input_length":1100,"output_length":500,"hash_ids":[1,2,3]}
{"timestamp":9000,"input_length":2000,"output_length":10,"hash_ids":[1,2,4,5]}
{"timestamp":9000,"input_length":700,"output_length":10,"hash_ids":[1,7]}`)
	s := read(t, tr, 1, 9)
	first, next := &s[0].Turns[0], &s[1].Turns[0]
	p, o := first.Hash(64, nil, nil)
	q, _ := next.Hash(64, nil, nil)
	if len(p) != 1100/64 || len(o) != 1600/64-1100/64 {
		t.Fatalf("%d and %d blocks", len(p), len(o))
	}
	if got := slices.Concat(p, o); !slices.Equal(got, q[:len(got)]) {
		t.Error("the next turn does not find prompt and output")
	}
	if _, o := next.Hash(64, nil, nil); len(o) != 0 {
		t.Error("an output that nothing repeats has blocks")
	}
}

func TestAnAgentsSessionsShareTheSharedPrefixOnly(t *testing.T) {
	row := `{"session":"%","t":0,"input_length":640,"output_length":64,"shared_prefix":200,"blocks":[[1,10]]}` + "\n" +
		`{"session":"%","t":30,"input_length":832,"output_length":9,"shared_prefix":200,"blocks":[[1,13]],"think_time":20}` + "\n"
	tr := text(t, strings.ReplaceAll(row, "%", "a")+strings.ReplaceAll(row, "%", "b"))
	s := read(t, tr, 1, 4)
	if tr.Requests != 4 || len(s) != 4 {
		t.Fatalf("%d requests, %d sessions: the file is not read over and over", tr.Requests, len(s))
	}
	a, _ := s[0].Turns[0].Hash(64, nil, nil)
	for _, other := range s[1:] {
		b, _ := other.Turns[0].Hash(64, nil, nil)
		if !slices.Equal(a[:3], b[:3]) {
			t.Error("the shared prefix differs")
		}
		for i := 3; i < 10; i++ {
			if a[i] == b[i] {
				t.Errorf("block %d is shared", i)
			}
		}
	}
	next, _ := s[0].Turns[1].Hash(64, nil, nil)
	_, out := s[0].Turns[0].Hash(64, nil, nil)
	if !slices.Equal(a, next[:10]) || !slices.Equal(out, next[10:11]) {
		t.Error("the second turn does not repeat the first and its output")
	}
	// 30 s less the 2 s and 64 tokens' time of the answer, of which no time is given.
	if want := 30*time.Second - usualStart - 64*usualToken; s[0].Turns[1].Think != want {
		t.Errorf("think time %v, want %v", s[0].Turns[1].Think, want)
	}
}

func TestLongThinkTimesAreCut(t *testing.T) {
	const rows = `{"session":"a","t":0,"input_length":640,"output_length":1,"blocks":[],"api_time":1}
{"session":"a","t":4000,"input_length":640,"output_length":1,"blocks":[]}`
	fsys := fstest.MapFS{"x": {Data: []byte(rows)}}
	for idle, want := range map[time.Duration]time.Duration{0: 5 * time.Minute, -1: 3999 * time.Second, time.Minute: time.Minute} {
		s := read(t, loaded(t, fsys, "x", Options{MaxIdle: idle}), 1, 1)
		if got := s[0].Turns[1].Think; got != want {
			t.Errorf("limit %v: %v, want %v", idle, got, want)
		}
	}
}

func TestRequestsOfOneTimestampAreSpreadOverTheClocksGrain(t *testing.T) {
	var b strings.Builder
	for i := range 30 {
		b.WriteString(`{"timestamp":` + []string{"0", "3000", "6000"}[i/10] + `,"input_length":9,"output_length":9,"hash_ids":[]}` + "\n")
	}
	s := read(t, text(t, b.String()), 1, 99)
	for i, x := range s[:20] {
		from := time.Duration(i/10) * 3 * time.Second
		if x.Start < from || x.Start >= from+3*time.Second {
			t.Errorf("request %d comes at %v", i, x.Start)
		}
	}
	if s[0].Start == s[9].Start || s[20].Start != s[29].Start {
		t.Error("the first are not spread, or the last are, of which no next tells how far")
	}
}

func TestWhatIsWrongIsToldWithItsLineAndARemedy(t *testing.T) {
	good := `{"timestamp":0,"input_length":9,"output_length":9,"hash_ids":[]}` + "\n"
	own := `{"timestamp":0,"input_length":130,"output_length":9,"block_hashes":["1f","2e"]}` + "\n"
	agent := `{"session":"a","t":0,"input_length":640,"output_length":1,"blocks":[]}` + "\n"
	for name, c := range map[string]struct {
		content string
		line    int
	}{
		"empty":                {"", 0},
		"blank lines":          {"\n \n", 0},
		"no format":            {"hello\n", 1},
		"half a line":          {good + `{"timestamp":`, 2},
		"backwards":            {`{"timestamp":9,"input_length":9,"output_length":9,"hash_ids":[]}` + "\n" + good, 2},
		"negative":             {good + "\n\n" + `{"timestamp":0,"input_length":-9,"output_length":9,"hash_ids":[]}`, 4},
		"missing":              {good + `{"timestamp":0,"output_length":9,"hash_ids":[]}`, 2},
		"too many ids":         {good + `{"timestamp":0,"input_length":9,"output_length":9,"hash_ids":[1,2]}`, 2},
		"azure":                {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1,x\n", 2},
		"azure columns":        {"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1\n", 2},
		"azure time":           {"TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", 2},
		"agent without a name": {agent + `{"t":0,"input_length":640,"output_length":1,"blocks":[]}`, 2},
		"agent's blocks":       {agent + `{"session":"a","t":0,"input_length":64,"output_length":1,"blocks":[[1,2]]}`, 2},
		"agent's time":         {agent + `{"session":"a","t":-1,"input_length":64,"output_length":1,"blocks":[]}`, 2},
		"not a hash":           {own + strings.Replace(own, "2e", "x", 1), 2},
		"keeps too much":       {own + `{"timestamp":0,"input_length":640,"output_length":9,"keep":3}`, 2},
		"another's think time": {own + `{"timestamp":0,"input_length":640,"output_length":9,"session":"a","think_time":1}`, 2},
		"block size":           {own + `{"timestamp":0,"input_length":640,"output_length":9,"block_size":-1}`, 2},
	} {
		_, err := loadFS(fstest.MapFS{"x": {Data: []byte(c.content)}}, "x", Options{})
		var e *Error
		if !errors.As(err, &e) || e.Line != c.line || e.Remedy == "" {
			t.Errorf("%s: %v, want an error of line %d with a remedy", name, err, c.line)
		}
	}
}

func TestTheProjectsOwnFormatHasSessionsBoundsAndTenants(t *testing.T) {
	s := read(t, text(t, `{"timestamp":1000,"session":"a","tenant":2,"input_length":130,"output_length":70,"max_tokens":99,"stream":false,"block_size":64,"block_hashes":["1f","2e"]}
{"timestamp":1000,"session":"a","input_length":260,"output_length":9,"keep":2,"block_hashes":["3","4"],"think_time":2.5}
{"timestamp":1500,"input_length":260,"output_length":9,"block_size":128,"block_hashes":["2e"],"update":true}
`), 1, 9)
	if len(s) != 2 || len(s[0].Turns) != 2 || s[0].Start != 0 || s[1].Start != 500*time.Millisecond || s[0].ID == 0 || s[0].Tenant != 2 || !s[1].Update {
		t.Fatalf("%+v", s)
	}
	a, b := s[0].Turns[0], s[0].Turns[1]
	if a.MaxTokens != 99 || !a.Whole || b.Whole || b.Think != 2500*time.Millisecond {
		t.Errorf("%+v, then %+v", a, b)
	}
	p, o := a.Hash(64, nil, nil)
	q, _ := b.Hash(64, nil, nil)
	if len(p) != 2 || len(o) != 1 || !slices.Equal(slices.Concat(p, o), q[:3]) {
		t.Error("the second turn does not repeat the first and its output")
	}
}

func TestWhatCannotBeReadIsNoFormat(t *testing.T) {
	_, err := Load(t.TempDir(), Options{})
	var e *Error
	if !errors.As(err, &e) || e.Err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a directory: %v", err)
	}
}

func FuzzMooncake(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":1100,"output_length":500,"hash_ids":[1,2,3]}` + "\n" + `{"timestamp":9,"input_length":1700,"output_length":1,"hash_ids":[1,2,4,5]}`))
	f.Add([]byte(`{"timestamp":1e99,"input_length":9,"output_length":9,"hash_ids":[]}`))
	fuzz(f, func(r io.ReadCloser) Source { return newMooncake(r, 1) })
}

func FuzzAgentic(f *testing.F) {
	f.Add([]byte(`{"session":"a","t":0,"input_length":640,"output_length":64,"shared_prefix":200,"blocks":[[1,5],[6,1],[9,4]]}` + "\n" + `{"session":"a","t":9,"input_length":640,"output_length":64,"blocks":[[1,5]]}`))
	f.Add([]byte(`{"session":"a","t":0,"input_length":640,"output_length":64,"blocks":[[1,18446744073709551615]]}`))
	fuzz(f, func(r io.ReadCloser) Source { return newAgentic(r, 1, time.Minute, nil) })
}

func FuzzAzure(f *testing.F) {
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"))
	f.Add([]byte("9999-11-16 18:15:46,1,1\n0001-11-16 18:15:46,1,1\n"))
	fuzz(f, func(r io.ReadCloser) Source { return newAzure(r, 1) })
}

func FuzzGeneric(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"session":"a","input_length":130,"output_length":70,"block_hashes":["1f","2e"]}` + "\n" + `{"timestamp":0,"session":"a","input_length":260,"output_length":9,"keep":2,"block_hashes":["3","4"],"think_time":2.5}`))
	f.Add([]byte(`{"timestamp":0,"input_length":1,"output_length":9,"keep":-1,"block_size":1000000}`))
	fuzz(f, func(r io.ReadCloser) Source { return newGeneric(r, 1) })
}

// fuzz holds a reader to give sane sessions or an error of its own kind.
func fuzz(f *testing.F, open func(io.ReadCloser) Source) {
	f.Fuzz(func(t *testing.T, data []byte) {
		src := open(io.NopCloser(strings.NewReader(string(data))))
		last := time.Duration(0)
		for {
			s, err := src.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("%T: %v", err, err)
				}
				return
			}
			if s.Start < last || len(s.Turns) == 0 {
				t.Fatalf("starts at %v after %v, with %d turns", s.Start, last, len(s.Turns))
			}
			last = s.Start
			for i := range s.Turns {
				turn := &s.Turns[i]
				if turn.Prompt < 1 || turn.Output < 1 || turn.Think < 0 {
					t.Fatalf("%+v", turn)
				}
				if turn.Prompt > 1<<16 {
					continue // takes long to hash
				}
				p, _ := turn.Hash(64, nil, nil)
				if len(p) != turn.Prompt/64 {
					t.Fatalf("%d blocks for %d tokens", len(p), turn.Prompt)
				}
			}
		}
	})
}

func TestAByteOrderMarkIsNoPartOfATrace(t *testing.T) {
	for _, content := range []string{
		"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n",
		`{"timestamp":0,"input_length":600,"output_length":9,"hash_ids":[0,1]}`,
		`{"session":"a","t":0,"input_length":130,"output_length":9,"shared_prefix":64,"blocks":[[1,2]]}`,
		"\r\n" + `{"timestamp":0,"input_length":130,"output_length":9}`,
	} {
		plain, marked := read(t, text(t, content), 1, 1), read(t, text(t, "\ufeff"+content), 1, 1)
		if len(plain) != 1 || len(marked) != 1 || marked[0].Turns[0].Prompt != plain[0].Turns[0].Prompt {
			t.Errorf("%q: %d sessions, with a mark %d", content, len(plain), len(marked))
		}
	}
}
