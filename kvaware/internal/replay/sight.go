// SPDX-License-Identifier: Apache-2.0

package replay

// sight shows the truth of a run to a Seer.
type sight struct{ run *run }

func (s sight) Output(r *Request) int { return r.truth.turn.Output }

func (s sight) Cached(r *Request, replica int) int {
	size := s.run.BlockSize
	return min(s.run.replicas[replica].engine.Cached(r.Blocks), (r.Prompt-1)/size) * size
}

func (s sight) Metrics(replica int) Metrics {
	m, _ := s.run.replicas[replica].metrics()
	return m
}

func (s sight) Backlog(replica int) float64 {
	p := s.run.replicas[replica]
	pace := p.engine.Params().Pace
	seconds := 0.0
	for q := p.head; q != nil; q = q.next {
		if q.seq.Generated() > 0 {
			continue
		}
		from := q.seq.Prefilled()
		if from == 0 {
			from = s.Cached(&q.Request, replica)
		}
		tokens := float64(q.Prompt - from)
		seconds += tokens*pace.Token + pace.Pair*tokens*float64(from+q.Prompt)/2 +
			pace.Step*tokens/float64(p.params.MaxBatchedTokens)
	}
	return seconds / s.Speed(replica)
}

func (s sight) Remaining(replica int) int {
	tokens := 0
	for q := s.run.replicas[replica].head; q != nil; q = q.next {
		tokens += q.seq.Output - q.seq.Generated()
	}
	return tokens
}

func (s sight) Speed(replica int) float64 { return s.run.replicas[replica].engine.Params().Speed }
