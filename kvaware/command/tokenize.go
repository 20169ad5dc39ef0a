// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kvaware/caddy-kvaware/kvaware"
)

func tokenizeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokenize <body.json|-> [--tokenizer <kind> [--chat-template <file>] [--block-size <tokens>] [--ids]] [--path <path>]",
		Short: "Shows a request's tokens and blocks, and where each message begins",
		Long: `Shows how the body of an LLM request becomes tokens and KV blocks, and in
which of them each message begins. No text is shown.

A running Caddy is asked, and answers by its configuration. With --tokenizer
none is needed; its value is what stands behind tokenizer in the Caddyfile.`,
		Example: `  caddy kv-aware tokenize body.json
  caddy kv-aware tokenize - --path /v1/messages < body.json
  caddy kv-aware tokenize body.json --tokenizer "tiktoken cl100k_base" --ids
  caddy kv-aware tokenize body.json --tokenizer "hf /models/qwen3/tokenizer.json" \
      --chat-template /models/qwen3/tokenizer_config.json`,
		Args: cobra.ExactArgs(1),
		RunE: runTokenize,
	}
	cmd.Flags().StringP("tokenizer", "t", "", "Tokenizer as in the Caddyfile: auto, \"tiktoken <encoding>\", \"hf <tokenizer.json>\" or estimate")
	cmd.Flags().StringP("chat-template", "", "", "Chat template for hf: a tokenizer_config.json or .jinja file")
	cmd.Flags().IntP("block-size", "", 16, "Tokens in a KV block")
	cmd.Flags().BoolP("ids", "", false, "Print token ids too")
	addBodyFlags(cmd)
	for _, online := range []string{"pool", "address", "config", "adapter"} {
		cmd.MarkFlagsMutuallyExclusive("tokenizer", online)
	}
	return cmd
}

// promptIDs are the ids of each prompt; null for what is no token of the
// vocabulary, and for a prompt whose ids are not known.
type promptIDs [][]*uint32

func runTokenize(cmd *cobra.Command, args []string) error {
	body, err := readBody(cmd, args[0])
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("tokenizer") {
		for _, offline := range []string{"chat-template", "block-size", "ids"} {
			if cmd.Flags().Changed(offline) {
				return fmt.Errorf("--%s needs --tokenizer: a running Caddy answers by its configuration, without token ids", offline)
			}
		}
		return askAbout(cmd, "/kv_aware/tokenize", body, func(w io.Writer, t *kvaware.Tokenized) { printTokenized(w, t, nil) })
	}

	tokenized, ids, err := tokenizeOffline(cmd, body)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON, _ := cmd.Flags().GetBool("json"); !asJSON {
		printTokenized(out, tokenized, ids)
		return nil
	}
	return json.NewEncoder(out).Encode(struct {
		*kvaware.Tokenized
		IDs promptIDs `json:"ids,omitempty"`
	}{tokenized, ids})
}

func tokenizeOffline(cmd *cobra.Command, body []byte) (*kvaware.Tokenized, promptIDs, error) {
	flags := cmd.Flags()
	text, err := flags.GetString("tokenizer")
	if err != nil {
		return nil, nil, err
	}
	tokenizer, err := kvaware.ParseTokenizer(text)
	if err != nil {
		return nil, nil, err
	}
	if flags.Changed("chat-template") {
		if tokenizer.ChatTemplate != "" {
			return nil, nil, errors.New("two chat templates: --tokenizer names one, --chat-template another")
		}
		tokenizer.ChatTemplate, _ = flags.GetString("chat-template")
	}
	size, _ := flags.GetInt("block-size")
	path, _ := flags.GetString("path")
	var ids promptIDs
	var each func([]uint32)
	if wanted, _ := flags.GetBool("ids"); wanted {
		each = func(some []uint32) { ids = append(ids, idsOf(some)) }
	}
	tokenized, err := tokenizer.Tokenize(cmd.Context(), path, body, size, each)
	return tokenized, ids, err
}

func idsOf(some []uint32) []*uint32 {
	if some == nil {
		return nil
	}
	ids := make([]*uint32, len(some))
	for i, id := range some {
		if id < 1<<31 {
			ids[i] = &id
		}
	}
	return ids
}

func printTokenized(w io.Writer, t *kvaware.Tokenized, ids promptIDs) {
	fmt.Fprintf(w, "API        %s\n", t.API)
	if t.Model != "" {
		fmt.Fprintf(w, "model      %s\n", shown(t.Model))
	}
	if t.Pool != "" {
		fmt.Fprintf(w, "pool       %s\n", shown(t.Pool))
	}
	exact := "not exactly the engine's tokens"
	if t.Exact {
		exact = "exactly the engine's tokens"
	}
	fmt.Fprintf(w, "tokenizer  %s: %s\n", shown(t.Tokenizer), exact)
	if t.TokenRatio != 1 {
		fmt.Fprintf(w, "corrected  %s, by a learnt ratio of %.3f\n", counted(t.PromptTokens, "token"), t.TokenRatio)
	}
	for i := range t.Prompts {
		p := &t.Prompts[i]
		name := "prompt"
		if len(t.Prompts) > 1 {
			name = fmt.Sprint("prompt ", i+1)
		}
		fmt.Fprintf(w, "\n%s: %s, %s of %d\n", name, counted(p.Tokens, "token"), counted(p.Blocks, "whole block"), t.BlockSize)
		if t.API == "openai_chat" && p.Messages == nil {
			fmt.Fprintln(w, "Where its messages begin is not known.")
		}
		printMessages(w, p)
		if i < len(ids) {
			printIDs(w, ids[i])
		}
	}
	if t.Truncated {
		fmt.Fprintln(w, "\nThere is more than is listed.")
	}
}

func printMessages(w io.Writer, p *kvaware.TokenizedPrompt) {
	if len(p.Messages) == 0 {
		return
	}
	rows := table(w)
	fmt.Fprint(rows, "message\trole\tbegins at token\tin block\ttokens\t\n")
	for i, m := range p.Messages {
		fmt.Fprintf(rows, "%d\t%s\t%d\t%d\t%d\t\n", i+1, m.Role, m.Start, m.Block, m.Tokens)
	}
	_ = rows.Flush() // as for every other line, a pipe that is closed is the reader's affair
}

// printIDs prints ids, a point for each that is no token of the vocabulary.
func printIDs(w io.Writer, ids []*uint32) {
	line := []byte("ids")
	for _, id := range ids {
		if id == nil {
			line = append(line, " ."...)
			continue
		}
		line = strconv.AppendUint(append(line, ' '), uint64(*id), 10)
	}
	fmt.Fprintf(w, "%s\n", line)
}
