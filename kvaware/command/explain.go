// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain <body.json|-> [--path <path>] [--pool <name>] [--tenant <name>]",
		Short: "Shows where a request would go, and why",
		Long: `Asks a running Caddy where it would send the LLM request in the file now, and
what it would cost each upstream. Nothing is sent to them.`,
		Example: `  caddy kv-aware explain body.json
  caddy kv-aware explain - --path /v1/messages < body.json`,
		Args: cobra.ExactArgs(1),
		RunE: runExplain,
	}
	cmd.Flags().StringP("tenant", "", "", "What isolate_by would say of the request")
	addBodyFlags(cmd)
	return cmd
}

// explanation is what is shown of the answer to POST /kv_aware/explain.
type explanation struct {
	Pool         string `json:"pool"`
	API          string `json:"api"`
	Reason       string `json:"reason"`
	Tokenizer    string `json:"tokenizer"`
	PromptTokens int64  `json:"prompt_tokens"`
	Blocks       int    `json:"blocks"`
	BlockSize    int    `json:"block_size"`
	Objective    string `json:"objective"`
	Tied         int    `json:"tied"`
	Upstreams    []struct {
		Address        string  `json:"address"`
		Chosen         bool    `json:"chosen"`
		CachedTokens   int64   `json:"cached_tokens"`
		UncachedTokens int64   `json:"uncached_tokens"`
		PrefillTokens  int64   `json:"prefill_tokens"`
		DecodeTokens   int64   `json:"decode_tokens"`
		Sequences      int64   `json:"sequences"`
		Load           float64 `json:"load"`
		FailurePenalty float64 `json:"failure_penalty"`
		Cost           float64 `json:"cost"`
		Excluded       string  `json:"excluded"` // then nothing else is told of it
		// With objective latency only.
		Own      float64 `json:"own_seconds"`
		Queue    float64 `json:"queue_seconds"`
		Wait     float64 `json:"wait_seconds"`
		Delay    float64 `json:"delay_seconds"`
		Memory   float64 `json:"memory_seconds"`
		Eviction float64 `json:"eviction_seconds"`
		Step     float64 `json:"step_seconds"`
		KVUse    float64 `json:"kv_use"`
	} `json:"upstreams"`
	Truncated bool `json:"truncated"`
}

func runExplain(cmd *cobra.Command, args []string) error {
	body, err := readBody(cmd, args[0])
	if err != nil {
		return err
	}
	return askAbout(cmd, "/kv_aware/explain", body, printExplanation, "tenant")
}

func printExplanation(w io.Writer, e *explanation) {
	fmt.Fprintf(w, "%s: %s, %s of %d, by %s\n", e.API, counted(e.PromptTokens, "token"), counted(e.Blocks, "whole block"), e.BlockSize, shown(e.Tokenizer))
	switch {
	case e.Reason == "affinity":
		fmt.Fprintln(w, "It follows the upstream that made the response it continues.")
	case e.Tied > 1:
		fmt.Fprintf(w, "One of the first %d takes it, at random.\n", e.Tied)
	}
	fmt.Fprintln(w)
	rows := table(w)
	if e.Objective == "token_load" {
		fmt.Fprint(rows, "upstream\tcached\tuncached\tprefill\tdecode\tsequences\tload\tpenalty\tcost\t\t\n")
	} else {
		fmt.Fprint(rows, "upstream\tcached\tuncached\tsequences\town s\tqueue s\twait s\tdelay s\tmemory s\teviction s\tstep s\tKV use\tpenalty\tcost\t\t\n")
	}
	for _, u := range e.Upstreams {
		if u.Excluded != "" {
			continue
		}
		mark := ""
		if u.Chosen {
			mark = "<-"
		}
		if e.Objective == "token_load" {
			fmt.Fprintf(rows, "%s\t%d\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f\t%s\t\n", shown(u.Address),
				u.CachedTokens, u.UncachedTokens, u.PrefillTokens, u.DecodeTokens, u.Sequences, u.Load, u.FailurePenalty, u.Cost, mark)
			continue
		}
		fmt.Fprintf(rows, "%s\t%d\t%d\t%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3g\t%.3g\t%s\t\n", shown(u.Address),
			u.CachedTokens, u.UncachedTokens, u.Sequences, u.Own, u.Queue, u.Wait, u.Delay, u.Memory, u.Eviction, u.Step, u.KVUse, u.FailurePenalty, u.Cost, mark)
	}
	_ = rows.Flush() // a pipe that is closed is the reader's affair
	for _, u := range e.Upstreams {
		if u.Excluded != "" {
			fmt.Fprintf(w, "%s is left out while others are available: %s.\n", shown(u.Address), whyExcluded(u.Excluded))
		}
	}
	if e.Truncated {
		fmt.Fprintln(w, "There are more upstreams.")
	}
}

// whyExcluded words why an upstream is left out.
func whyExcluded(reason string) string {
	switch reason {
	case "model":
		return "it does not serve the model"
	case "asleep":
		return "its engine sleeps"
	}
	return shown(reason)
}
