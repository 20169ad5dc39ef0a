// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [--pool <name>] [--json]",
		Short: "Shows what each upstream carries, holds and does",
		Long: `Shows once what each upstream of a running Caddy carries now, what its cache
saves and how fast it answers: of the last minute, rates of the last ten seconds.
With --json, as GET /kv_aware/snapshot of the admin API gives it.

Exit codes: 0 if all is shown, 4 if no Caddy answers, 5 if it has no kv_aware in its
configuration or not that pool, 1 for all else.`,
		Example: `  caddy kv-aware status
  caddy kv-aware status --json | jq '.pools[].upstreams[] | {address, load, hit_rate}'`,
		Args: cobra.NoArgs,
		RunE: runStatus,
	}
	cmd.Flags().BoolP("json", "", false, "Print JSON")
	addFleetFlags(cmd)
	return cmd
}

// addFleetFlags adds the flags of commands that show the fleet.
func addFleetFlags(cmd *cobra.Command) {
	addAdminFlags(cmd)
	cmd.Flags().Lookup("pool").Usage = "Pool of the running instance (default: all)"
}

func runStatus(cmd *cobra.Command, _ []string) error {
	api, err := adminAPIOf(cmd)
	if err != nil {
		return err
	}
	s, text, err := api.snapshot(cmd.Context(), poolsAsked(cmd))
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		_, err := out.Write(text)
		return err
	}
	printFleet(out, s)
	return nil
}

// poolsAsked makes a query of the flag --pool.
func poolsAsked(cmd *cobra.Command) url.Values {
	query := url.Values{"limit": {"10000"}} // the most it lists
	if f := cmd.Flag("pool"); f.Changed {
		query.Set("pool", f.Value.String())
	}
	return query
}

// snapshot asks what there is to show, and gives it as it came too.
func (a *adminAPI) snapshot(ctx context.Context, query url.Values) (*kvaware.Snapshot, []byte, error) {
	text, err := a.call(ctx, "GET", "/kv_aware/snapshot", query, nil)
	if err != nil {
		return nil, nil, err
	}
	s := new(kvaware.Snapshot)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, nil, fmt.Errorf("the answer is not understood: %w", err)
	}
	if len(s.Pools) == 0 {
		return nil, nil, a.noPolicy()
	}
	return s, text, nil
}

// printFleet prints all of a snapshot, as wide as a terminal is.
func printFleet(w io.Writer, s *kvaware.Snapshot) {
	v := fleetView{width: widest}
	if file, is := w.(*os.File); is {
		if wide, _, err := term.GetSize(int(file.Fd())); err == nil {
			v.width = wide
		}
	}
	for i := range s.Pools {
		if i > 0 {
			fmt.Fprintln(w)
		}
		lines := v.pool(&s.Pools[i])
		for _, part := range [][]string{lines.head, lines.rows, lines.decisions} {
			for _, line := range part {
				fmt.Fprintln(w, line)
			}
		}
	}
	if s.Truncated {
		fmt.Fprintln(w, "\nThere are more upstreams.")
	}
}
