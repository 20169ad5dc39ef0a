// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

func recordCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "record [--output <file>] [--duration <duration>] [--pool <name>]",
		Short: "Records a running Caddy's requests as a trace, without their text",
		Long: `Records the requests that a running Caddy routes from now on, as a trace that
caddy kv-aware replay takes: when each came, how long prompt and answer were,
and which prompts began alike, told by hashes under a key that is thrown away.
There is no text in it.

It ends after --duration and once the requests that run then have ended, or
when the configuration is replaced. An interrupt ends it at once; what was
written by then is a trace too.`,
		Example: `  caddy kv-aware record --output traffic.jsonl --duration 30m
  caddy kv-aware replay --trace traffic.jsonl --replicas 8`,
		Args: cobra.NoArgs,
		RunE: runRecord,
	}
	cmd.Flags().StringP("output", "o", "-", "File to write, which is replaced; - for standard output")
	cmd.Flags().StringP("duration", "d", "10m", "How long to record, up to 24h")
	addAdminFlags(cmd)
	return cmd
}

func runRecord(cmd *cobra.Command, _ []string) (err error) {
	api, err := adminAPIOf(cmd)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	query := url.Values{"duration": {cmd.Flag("duration").Value.String()}}
	if f := cmd.Flag("pool"); f.Changed {
		query.Set("pool", f.Value.String())
	}
	res, err := api.ask(ctx, "GET", "/kv_aware/record", query, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()

	to := cmd.OutOrStdout()
	if name := cmd.Flag("output").Value.String(); name != "-" {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) //nolint:gosec // the user names the file
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		to = file
	}
	lines, read, written := copyLines(to, res.Body)
	switch {
	case written != nil:
		return written
	case ctx.Err() != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "Interrupted after %s.\n", counted(lines, "line"))
		return nil
	case read != nil:
		return fmt.Errorf("%w (%s written)", api.brokenOff(read), counted(lines, "line"))
	}
	var sum kvaware.Recording
	if err := json.Unmarshal([]byte(res.Trailer.Get(kvaware.RecordingTrailer)), &sum); err != nil {
		return fmt.Errorf("%w (%s written)", api.brokenOff(io.ErrUnexpectedEOF), counted(lines, "line"))
	}
	printRecording(cmd.ErrOrStderr(), &sum)
	return nil
}

// maxLine bounds a line of a recording, in bytes, as the replay does.
const maxLine = 16 << 20

// copyLines copies whole lines as they come.
func copyLines(to io.Writer, from io.Reader) (lines int, read, written error) {
	in := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return lines, nil, nil
		}
		if err != nil {
			return lines, err, nil
		}
		if _, err := to.Write(line); err != nil {
			return lines, nil, err
		}
		lines++
	}
}

func printRecording(w io.Writer, sum *kvaware.Recording) {
	fmt.Fprintf(w, "Recorded %s", counted(sum.Recorded, "request"))
	if sum.Lines != sum.Recorded {
		fmt.Fprintf(w, " in %s", counted(sum.Lines, "line"))
	}
	fmt.Fprintln(w, ".")
	for _, left := range []struct {
		n   int64
		why string
	}{
		{sum.Failed, "failed"},
		{sum.Unread, "had a prompt that was not read"},
		{sum.Unfinished, "did not end in time"},
		{sum.Dropped, "came faster than their lines were taken"},
	} {
		if left.n > 0 {
			fmt.Fprintf(w, "Left out: %s that %s.\n", counted(left.n, "request"), left.why)
		}
	}
	if sum.Ended == "reload" {
		fmt.Fprintln(w, "It ended early: Caddy's configuration was replaced.")
	}
}
