// SPDX-License-Identifier: Apache-2.0

package caddyfile

import "strings"

// nearest finds the option that was probably meant: one that differs by case or
// dashes alone, else the one within two edits, or one edit for short names.
func nearest(given string, options []Option) (string, bool) {
	const longest = 64 // no option's name is near to a longer token
	if given == "" || len(given) > longest {
		return "", false
	}
	given = strings.ReplaceAll(strings.ToLower(given), "-", "_")
	best, bestEdits := "", 3
	for _, o := range options {
		most := 2
		if len(o.Name) < 6 {
			most = 1
		}
		if n := edits(given, o.Name); n <= most && n < bestEdits {
			best, bestEdits = o.Name, n
		}
	}
	return best, best != ""
}

// edits is the Levenshtein distance of two short strings, in bytes: the fewest
// insertions, deletions and substitutions that turn one into the other.
func edits(a, b string) int {
	row := make([]int, len(b)+1) // distances from a[:i] to every b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
