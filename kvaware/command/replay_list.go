// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/ours"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/peers"
	"github.com/kvaware/caddy-kvaware/kvaware/internal/trace"
)

// printReplayList prints what a replay can be made of.
func printReplayList(w io.Writer) error {
	rows := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "Generators (--trace), with their parameters and defaults:")
	for _, g := range trace.Generators {
		fmt.Fprintf(rows, "  %s\t%s\n", g.Name, g.Summary)
		for _, p := range g.Params {
			fmt.Fprintf(rows, "    %s=%s\t  %s\n", p.Name, strconv.FormatFloat(p.Value, 'f', -1, 64), p.Meaning)
		}
	}
	fmt.Fprintln(rows, "\nPolicies (--policies) and what they minimise, ours first:")
	for _, s := range append(ours.All(), peers.All()...) {
		fmt.Fprintf(rows, "  %s\t%s\n", s.Name, s.Summary)
	}
	fmt.Fprintln(rows, "\nMachines (--fleet):")
	for _, m := range replay.Machines {
		fmt.Fprintf(rows, "  %s\t%s\n", m.Name, m.Summary)
	}
	var kinds []string
	for k := replay.Leave; k <= replay.Update; k++ {
		kinds = append(kinds, k.String())
	}
	fmt.Fprintf(rows, "\nEvents (--events): %s\n", strings.Join(kinds, ", "))
	return rows.Flush()
}
