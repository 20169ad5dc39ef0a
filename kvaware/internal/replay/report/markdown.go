// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"io"
	"strings"
)

// Markdown writes what Table does, for documents.
func (r *Replay) Markdown(w io.Writer) error {
	return analyse(r).print(w, func(b *bytes.Buffer, line string) { b.WriteString(plain(line) + "\n\n") }, pipes)
}

// pipes writes rows of equal length as a table, the first column to the left and the
// others to the right.
func pipes(b *bytes.Buffer, rows [][]string) {
	for i, r := range rows {
		b.WriteByte('|')
		for _, text := range r {
			b.WriteString(" " + plain(printable(strings.TrimSpace(text))) + " |")
		}
		b.WriteByte('\n')
		if i == 0 {
			b.WriteString("|---|" + strings.Repeat("--:|", len(r)-1) + "\n")
		}
	}
}

// plain is text that stands for itself: names come from outside.
func plain(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strings.ContainsRune("\\`*_{}[]<>#|&!", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
