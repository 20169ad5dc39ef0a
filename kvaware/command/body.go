// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// maxBody bounds the body that a command reads, as max_body does for requests.
const maxBody = 1 << 30

// readBody reads the file of that name, or what comes in by - .
func readBody(cmd *cobra.Command, name string) ([]byte, error) {
	from := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name) //nolint:gosec // the user names the file
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	body, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("%s: longer than %d bytes", name, maxBody)
	}
	return body, nil
}

// addBodyFlags adds the flags of commands about the body of a request.
func addBodyFlags(cmd *cobra.Command) {
	cmd.Flags().StringP("path", "", "", "Where the request would be sent, such as /v1/messages (default: told by the body's shape)")
	cmd.Flags().BoolP("json", "", false, "Print JSON")
	addAdminFlags(cmd)
}

// askAbout shows what the running instance answers about a body: as it is with
// --json, else by print. Of the flags named, those given go into the query.
func askAbout[T any](cmd *cobra.Command, endpoint string, body []byte, print func(io.Writer, *T), parameters ...string) error {
	api, err := adminAPIOf(cmd)
	if err != nil {
		return err
	}
	query := url.Values{"limit": {"10000"}} // the most it lists
	for _, name := range append(parameters, "path", "pool") {
		if f := cmd.Flags().Lookup(name); f.Changed {
			query.Set(name, f.Value.String())
		}
	}
	answer, err := api.call(cmd.Context(), "POST", endpoint, query, body)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		_, err := out.Write(answer)
		return err
	}
	var answered T
	if err := json.Unmarshal(answer, &answered); err != nil {
		return fmt.Errorf("the answer is not understood: %w", err)
	}
	print(out, &answered)
	return nil
}

// table aligns columns, numbers to the right. Cells end with a tab.
func table(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// counted is a number with its noun.
func counted[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprint(n, " ", noun, "s")
}

// shown makes text from outside fit for a terminal.
func shown(text string) string {
	quoted := fmt.Sprintf("%q", text)
	if inside := quoted[1 : len(quoted)-1]; inside == text && text != "" {
		return text
	}
	return quoted
}

// harmless makes a sentence from outside fit for a terminal: no longer than a few
// lines, with what is not printable escaped. Quotes in it stay.
func harmless(text string) string {
	const longest = 1000
	var fit strings.Builder
	for _, r := range text {
		if fit.Len() > longest {
			fit.WriteString("…")
			break
		}
		if strconv.IsPrint(r) {
			fit.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		fit.WriteString(quoted[1 : len(quoted)-1])
	}
	return fit.String()
}
