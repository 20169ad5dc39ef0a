// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"io"
	"strconv"
	"time"
)

// newAzure reads the CSV of Azure's LLM inference traces (github.com/Azure/
// AzurePublicDataset): TIMESTAMP, ContextTokens, GeneratedTokens. It knows no
// prefixes: no two prompts begin alike.
func newAzure(r io.ReadCloser, seed uint64) Source {
	var first time.Time
	seen := false
	parse := func(l *lines, line []byte) (*row, error) {
		if l.n == 1 && bytes.HasPrefix(line, []byte("TIMESTAMP")) {
			return nil, nil
		}
		fields := bytes.Split(line, []byte(","))
		remedy := "a line is like 2023-11-16 18:15:46.6805900,374,44"
		if len(fields) < 3 {
			return nil, l.wrong("fewer than three columns", remedy, nil)
		}
		stamp := string(bytes.TrimSpace(fields[0]))
		at, err := time.Parse("2006-01-02 15:04:05.999999999", stamp)
		if err != nil {
			at, err = time.Parse("2006-01-02 15:04:05.999999999Z07:00", stamp)
		}
		if err != nil {
			return nil, l.wrong("no timestamp", remedy, err)
		}
		var n [2]int
		for i := range n {
			if n[i], err = strconv.Atoi(string(bytes.TrimSpace(fields[i+1]))); err != nil {
				return nil, l.wrong("not a number of tokens", remedy, err)
			}
		}
		if !seen {
			first, seen = at, true
		}
		since, err := l.seconds("a time since the first request", at.Sub(first).Seconds())
		if err != nil {
			return nil, err
		}
		prompt, output, err := l.lengths(n[0], n[1])
		if err != nil {
			return nil, err
		}
		return &row{at: since, prompt: prompt, output: output, size: 1}, nil
	}
	return &flat{lines: newLines(r), parse: parse, link: newLinker(), rng: chance(seed, 1)}
}
