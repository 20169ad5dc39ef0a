// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"io"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/replay"
)

// cellScore names its cell in full.
type cellScore struct {
	Cell
	replay.CellScore
}

// JSON writes the results, without the points of the plots, and what follows from
// them.
func (r *Replay) JSON(w io.Writer) error {
	a := analyse(r)
	out := struct {
		Replay
		Scores []cellScore          `json:"scores"`
		Totals []replay.PolicyScore `json:"totals"`
		Paired []*Pair              `json:"paired"`
	}{Replay: *r, Scores: []cellScore{}, Totals: []replay.PolicyScore{}, Paired: []*Pair{}}
	out.Results = make([]*replay.Result, 0, len(r.Results))
	for _, result := range r.Results {
		bare := *result
		bare.Times = nil
		bare.Replicas = make([]replay.ReplicaResult, len(result.Replicas))
		for i, replica := range result.Replicas {
			replica.Points = nil
			bare.Replicas[i] = replica
		}
		out.Results = append(out.Results, &bare)
	}
	for _, c := range a.cells {
		for _, row := range c.Rows {
			if row.Score.Seeds > 0 {
				out.Scores = append(out.Scores, cellScore{c.Cell, row.Score})
			}
		}
		if c.Pair != nil {
			out.Paired = append(out.Paired, c.Pair)
		}
	}
	for _, t := range a.totals {
		out.Totals = append(out.Totals, t.PolicyScore)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	return encoder.Encode(out)
}
