// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay/report"
)

func replayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay --trace <file|generator> [--fleet <fleet>] [--policies <names>] [--load <loads>]",
		Short: "Replays a trace on modelled engines, under each routing policy",
		Long: `Replays a trace of requests on a fleet of modelled engines, on a virtual clock,
once for each routing policy, with the same arrivals. Prints a table, and
writes an HTML report that needs no network. Nothing is sent anywhere.

A trace is a file in the format of Mooncake, of agent sessions, Azure's CSV or
JSON lines, or a generator such as chat or, with parameters, chat:turns=5.
Load 1.0 is the highest rate at which the better of two reference policies
(dynamo_out and llmd) keeps the mean time to first token and the mean
end-to-end latency within 4 times those of an unloaded fleet; it is found
first. A policy's score is the geometric mean of mean and p99 of these two
latencies, and is compared with the best peer's of the same trace, fleet and
load. --list shows all generators, policies and machines.

An interrupt ends it with a report of the runs that were done.`,
		Example: `  caddy kv-aware replay --trace conversation.jsonl --replicas 8 --policies all --load 0.6,0.8,0.95
  caddy kv-aware replay --trace chat:turns=8,rl --fleet 4xh100,4xa100 --policies kv_aware,peers --seeds 3
  caddy kv-aware replay --trace chat --events slow:2@0.3=3 --json - --html ""`,
		Args: cobra.NoArgs,
		RunE: runReplay,
	}
	flags := cmd.Flags()
	flags.StringArrayP("trace", "t", nil, "Files or generators, separated by commas, or given several times; generators stands for all of these")
	flags.IntP("requests", "n", 0, "Requests of a run: of a generator (default 10000), at most of a file")
	flags.StringArrayP("fleet", "f", nil, "Replicas, such as 4xh100,4xa10, or 4xh100@0.5 at half their speed; may be given several times (default 8xh100)")
	flags.IntP("replicas", "r", 0, "Replicas of the default machine, instead of --fleet")
	flags.StringP("policies", "p", "all", "Names, or all, ours, peers")
	flags.StringP("load", "l", "0.8", "Loads relative to what the fleet bears, or trace for the trace's own times")
	flags.StringP("rate", "", "", "Requests a second, instead of --load")
	flags.StringP("clients", "", "", "Sessions that go on at once, each waiting for its answers, instead of --load")
	flags.StringP("routers", "", "1", "How many routers share the requests, each with a view of its own, such as 1,4; 4/session if a session's requests come to the same")
	flags.IntP("seeds", "", 1, "How many seeds, each a run")
	flags.Uint64P("seed", "", 1, "The first seed")
	flags.StringP("events", "", "", "Changes of the fleet, by the share of requests that have arrived: slow:2@0.3=3,restart:0@0.5=60s,leave:1@0.2,join:1@0.6,update@0.5")
	flags.BoolP("hints", "", false, "Requests tell how long their answers will be, as max_tokens, which harnesses of agents may know")
	flags.IntP("block-size", "", 64, "Tokens in a KV block")
	flags.Float64P("warm-up", "", 0.2, "Share of the requests, those that arrive first, that are served but not measured")
	flags.DurationP("max-idle", "", 5*time.Minute, "Cuts the think times of recorded sessions; 0 for no limit")
	flags.StringP("slo", "", "2s,100ms", "Time to first token, and mean time between tokens, within which an answer is a good one")
	flags.StringP("json", "", "", "File to write JSON to, - for standard output instead of the table")
	flags.StringP("html", "", "replay.html", "File to write the HTML report to, \"\" for none")
	flags.StringP("markdown", "", "", "File to write the tables to as Markdown, - for standard output instead of the table")
	flags.StringP("svg", "", "", "File to write a drawing of all scores to")
	flags.BoolP("quiet", "q", false, "No progress bar, which only a terminal sees anyway")
	flags.BoolP("list", "", false, "List generators, policies, machines and kinds of events")
	for _, other := range []string{"rate", "clients"} {
		cmd.MarkFlagsMutuallyExclusive("load", other)
	}
	cmd.MarkFlagsMutuallyExclusive("rate", "clients")
	cmd.MarkFlagsMutuallyExclusive("fleet", "replicas")
	return cmd
}

func runReplay(cmd *cobra.Command, _ []string) error {
	if list, _ := cmd.Flags().GetBool("list"); list {
		return printReplayList(cmd.OutOrStdout())
	}
	plan, err := replayPlanOf(cmd)
	if err != nil {
		return err
	}
	var to replayOutputs
	to.json, _ = cmd.Flags().GetString("json")
	to.html, _ = cmd.Flags().GetString("html")
	to.markdown, _ = cmd.Flags().GetString("markdown")
	to.svg, _ = cmd.Flags().GetString("svg")
	if err := to.check(); err != nil {
		return err
	}
	plan.plots = to.html != ""

	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt does not wait for the report
	var bar *progress
	if quiet, _ := cmd.Flags().GetBool("quiet"); !quiet {
		bar = newProgress(cmd.ErrOrStderr())
	}
	found, runErr := plan.run(ctx, bar)
	bar.clear()
	if found == nil {
		return runErr
	}
	if err := writeReplay(cmd, found, to); err != nil {
		return errors.Join(runErr, err)
	}
	return runErr
}

// writeReplay writes what was found to where the flags say. What cannot be written
// does not keep the rest from it.
func writeReplay(cmd *cobra.Command, found *report.Replay, to replayOutputs) error {
	var errs []error
	wrote := func(name string, write func(io.Writer) error) bool {
		if name == "" {
			return false
		}
		var b bytes.Buffer
		err := write(&b)
		if err == nil {
			err = writeTo(cmd, name, b.Bytes())
		}
		errs = append(errs, err)
		return err == nil
	}
	page := wrote(to.html, found.HTML)
	wrote(to.json, found.JSON)
	wrote(to.markdown, found.Markdown)
	wrote(to.svg, found.SVG)
	if !to.standard() {
		wrote("-", found.Table)
		if page {
			fmt.Fprintf(cmd.OutOrStdout(), "The report with plots is in %s\n", shown(to.html))
		}
	}
	return errors.Join(errs...)
}

// replayOutputs are files; "" is none and - is standard output.
type replayOutputs struct{ json, html, markdown, svg string }

func (o replayOutputs) each() []string { return []string{o.json, o.html, o.markdown, o.svg} }

// standard tells whether one goes to standard output, where then nothing else goes.
func (o replayOutputs) standard() bool { return slices.Contains(o.each(), "-") }

// check tells what cannot be written, rather before the runs than after them.
func (o replayOutputs) check() error {
	standard := 0
	names := o.each()
	for i, name := range names {
		switch name {
		case "":
		case "-":
			if standard++; standard > 1 {
				return errors.New("two of --json, --html, --markdown and --svg to standard output; give one of them")
			}
		default:
			for _, other := range names[:i] {
				if sameFile(name, other) {
					return fmt.Errorf("two of --json, --html, --markdown and --svg to %s; give each a file of its own", shown(name))
				}
			}
			dir := filepath.Dir(name)
			if info, err := os.Stat(dir); err != nil {
				return err
			} else if !info.IsDir() {
				return fmt.Errorf("%s is no directory", dir)
			}
			if _, err := os.Stat(name); err != nil {
				continue
			}
			file, err := os.OpenFile(name, os.O_WRONLY, 0) //nolint:gosec // the file that the caller names is what is wanted
			if err != nil {
				return err
			}
			if err := file.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameFile tells whether two names are of one file, which need not be there yet.
func sameFile(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) && b != "" {
		return true
	}
	one, err1 := os.Stat(a)
	other, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && one.Mode().IsRegular() && os.SameFile(one, other)
}

func writeTo(cmd *cobra.Command, name string, data []byte) error {
	if name == "-" {
		_, err := cmd.OutOrStdout().Write(data)
		return err
	}
	return os.WriteFile(name, data, 0o644) //nolint:gosec // a report for others to read
}
