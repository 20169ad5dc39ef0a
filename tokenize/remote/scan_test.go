// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// scanned reads an answer in parts of n bytes.
func scanned(answer []byte, key string, most, n int) (*scanner, error) {
	s := &scanner{key: key, most: most}
	for part := range slices.Chunk(answer, n) {
		if err := s.write(part); err != nil {
			return s, err
		}
	}
	return s, s.end()
}

// Answers as vLLM and SGLang word them.
const (
	tokenizeVLLM   = `{"count":4,"max_model_len":32768,"tokens":[151644,872,198,0],"token_strs":null}`
	tokenizeSGLang = `{"tokens":[1,2,3],"count":3,"max_model_len":131072}`
	renderChat     = `{"request_id":"chatcmpl-8f","token_ids":[1,22,333],"token_offsets":null,"features":null,"content_parts":null,"sampling_params":{"n":1,"stop":["]","}\"{"],"token_ids":[9],"structured_outputs":null},"model":"m","stream":false,"stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null}`
	renderBatch    = `[{"request_id":"cmpl-1","token_ids":[5,6],"features":null}, {"token_ids":[],"model":"m"} ,{"x":{"token_ids":[1]},"token_ids":[7]}]`
)

func TestIDsAreTakenOutOfAnswersOfAnyForm(t *testing.T) {
	for _, c := range []struct {
		answer, key string
		ids         []uint32
		ends        []int
	}{
		{tokenizeVLLM, "tokens", []uint32{151644, 872, 198, 0}, []int{4}},
		{tokenizeSGLang, "tokens", []uint32{1, 2, 3}, []int{3}},
		{renderChat, "token_ids", []uint32{1, 22, 333}, []int{3}},
		{renderBatch, "token_ids", []uint32{5, 6, 7}, []int{2, 2, 3}},
		{" [ ] \n", "tokens", nil, nil},
		{"{\n  \"a\" : -1.5e3 ,\r\n \"tokens\" : [ 1 ,\t2147483647 ] , \"b\":true}\n", "tokens", []uint32{1, 1<<31 - 1}, []int{2}},
		{`{"token":[9],"tokensx":[9],"to\u006bens":[9],"tokens":[1]}`, "tokens", []uint32{1}, []int{1}},
	} {
		for _, n := range []int{1, 2, 7, 1 << 20} {
			s, err := scanned([]byte(c.answer), c.key, 100, n)
			if err != nil || !slices.Equal(s.ids, c.ids) || !slices.Equal(s.ends, c.ends) {
				t.Errorf("in parts of %d: %s: got %v %v, %v", n, c.answer, s.ids, s.ends, err)
			}
		}
	}
}

func TestAnythingElseIsNoAnswer(t *testing.T) {
	for _, answer := range []string{
		"", " ", "null", "7", `"tokens"`, "{}", "{", "[{}]", `{"tokens":[1]`, `{"tokens":[1]}}`, `{"tokens":[1]} {}`,
		`{"tokens":7}`, `{"tokens":null}`, `{"tokens":"1"}`, `{"tokens":{}}`, `{"tokens":[[1],[2]]}`, `{"tokens":["1"]}`,
		`{"tokens":[1.5]}`, `{"tokens":[-1]}`, `{"tokens":[1e3]}`, `{"tokens":[2147483648]}`, `{"tokens":[99999999999999999999999]}`,
		`{"tokens":[1,]}`, `{"tokens":[,1]}`, `{"tokens":[1 2]}`, `{"tokens":[1],}`, `{,"tokens":[1]}`, `{"tokens":[1]"a":2}`,
		`{"tokens":[1],"tokens":[2]}`, `{"a":{"tokens":[1]}}`, `{"a":,"tokens":[1]}`, `{"a" "tokens":[1]}`,
		`[[{"tokens":[1]}]]`, `[{"tokens":[1]},]`, `[{"tokens":[1]}`, `{"error":{"message":"x"}}`, "<html>", `{"a":"`, `{"a":[`,
	} {
		if s, err := scanned([]byte(answer), "tokens", 100, 3); err == nil {
			t.Errorf("%s is taken for an answer: %v", answer, s.ids)
		}
	}
	if _, err := scanned([]byte(`{"tokens":[1,2,3]}`), "tokens", 2, 100); !errors.Is(err, errTooMany) {
		t.Errorf("three ids where two may be: %v", err)
	}
	// However deep: it only counts.
	deep := strings.Repeat("[", 1<<20)
	if _, err := scanned([]byte(`{"a":`+deep+`]`), "tokens", 2, 1<<16); err == nil {
		t.Error("unclosed brackets are taken")
	}
}

// FuzzAnswer checks the scanner against encoding/json: of what is JSON it takes
// the very ids, or nothing.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{tokenizeVLLM, tokenizeSGLang, strings.ReplaceAll(renderChat, "token_ids", "tokens"), strings.ReplaceAll(renderBatch, "token_ids", "tokens"),
		`{"tokens":[1],"tokens":[2]}`, `{"tokens":[[1]]}`, `{"a":"\\\"","tokens":[1,2]}`, `[]`, `{"tokens":[1e1]}`, `{"tokens":[01]}`} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, answer []byte, n int) {
		whole, err := scanned(answer, "tokens", 1000, max(1, len(answer)))
		parts, err2 := scanned(answer, "tokens", 1000, 1+int(uint(n)%64))
		if (err == nil) != (err2 == nil) || err == nil && (!slices.Equal(whole.ids, parts.ids) || !slices.Equal(whole.ends, parts.ends)) {
			t.Fatalf("whole: %v %v, in parts: %v %v", whole.ids, err, parts.ids, err2)
		}
		if !json.Valid(answer) || bytes.ContainsRune(answer, '\\') || bytes.Count(answer, []byte(`"tokens"`)) > 1 {
			return // encoding/json finds the last of two, and names that are escaped
		}
		ids, ends, ok := reference(answer)
		switch {
		case ok && (err != nil || !slices.Equal(whole.ids, ids) || !slices.Equal(whole.ends, ends)):
			t.Fatalf("got %v %v, %v; encoding/json reads %v %v", whole.ids, whole.ends, err, ids, ends)
		case !ok && err == nil:
			t.Fatalf("got %v of what encoding/json finds nothing in", whole.ids)
		}
	})
}

// reference reads an answer with encoding/json.
func reference(answer []byte) (ids []uint32, ends []int, ok bool) {
	var objects []json.RawMessage
	if json.Unmarshal(answer, &objects) != nil {
		objects = []json.RawMessage{answer}
	}
	for _, raw := range objects {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil || members["tokens"] == nil {
			return nil, nil, false
		}
		var list []json.Number
		if bytes.Equal(members["tokens"], []byte("null")) || json.Unmarshal(members["tokens"], &list) != nil {
			return nil, nil, false
		}
		for _, n := range list {
			id, err := strconv.ParseUint(n.String(), 10, 31)
			if err != nil || len(ids) == 1000 {
				return nil, nil, false
			}
			ids = append(ids, uint32(id))
		}
		ends = append(ends, len(ids))
	}
	return ids, ends, true
}

func BenchmarkScan(b *testing.B) {
	answer := []byte(`{"count":1000000,"tokens":[`)
	for i := range 1_000_000 {
		if i > 0 {
			answer = append(answer, ',')
		}
		answer = strconv.AppendInt(answer, int64(i*7919%150_000), 10)
	}
	answer = append(answer, "]}"...)
	ids := make([]uint32, 0, 1_000_000)
	b.SetBytes(int64(len(answer)))
	b.ReportAllocs()
	for b.Loop() {
		s := scanner{key: "tokens", most: 1_000_000, ids: ids, ends: make([]int, 0, 1)}
		for part := range slices.Chunk(answer, readSize) {
			if err := s.write(part); err != nil {
				b.Fatal(err)
			}
		}
		if s.end() != nil || len(s.ids) != 1_000_000 {
			b.Fatal("not whole")
		}
	}
}
