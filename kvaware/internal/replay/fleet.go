// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

// Machine is a model on accelerators that serve as one engine.
type Machine struct {
	Name        string
	Summary     string
	Accelerator Accelerator
	Count       int // accelerators, tensor parallel
	Model       Model
	MaxSeqs     int // requests that run at once
	MaxBatched  int // tokens of a step
}

// Accelerator holds figures of a data sheet.
type Accelerator struct {
	Memory    float64 // bytes
	Bandwidth float64 // bytes a second
	FLOPS     float64 // dense bfloat16, a second
}

// Model holds what a model's configuration file says.
type Model struct {
	Parameters float64
	Layers     int
	Heads      int // of queries
	KVHeads    int
	HeadSize   int
}

// Figures of the manufacturers' data sheets: NVIDIA H100, H200 and A100 80 GB SXM,
// A10, L4; AMD Instinct MI300X. FLOPS are without sparsity.
var (
	h100   = Accelerator{Memory: 80e9, Bandwidth: 3.35e12, FLOPS: 989e12}
	h200   = Accelerator{Memory: 141e9, Bandwidth: 4.8e12, FLOPS: 989e12}
	a100   = Accelerator{Memory: 80e9, Bandwidth: 2.039e12, FLOPS: 312e12}
	a10    = Accelerator{Memory: 24e9, Bandwidth: 600e9, FLOPS: 125e12}
	l4     = Accelerator{Memory: 24e9, Bandwidth: 300e9, FLOPS: 121e12}
	mi300x = Accelerator{Memory: 192e9, Bandwidth: 5.3e12, FLOPS: 1307e12}
)

// Figures of the models' config.json: Llama 3.1 8B and 3.3 70B.
var (
	llama8B  = Model{Parameters: 8.03e9, Layers: 32, Heads: 32, KVHeads: 8, HeadSize: 128}
	llama70B = Model{Parameters: 70.6e9, Layers: 80, Heads: 64, KVHeads: 8, HeadSize: 128}
)

// Machines are the presets. The first is [engine.Default], whose figures are
// rounded; those of the others follow from [Machine.Params]. Limits are vLLM's for
// its API server (vllm/engine/arg_utils.py, get_batch_defaults): 1024 requests and
// 8192 tokens a step on accelerators of 70 GiB or more, 256 and 2048 on others and
// on the A100; but the first runs 256 requests.
var Machines = []Machine{
	{Name: "h100", Summary: "Llama 70B in bfloat16 on 4 H100"},
	{Name: "h200", Summary: "Llama 70B in bfloat16 on 4 H200", Accelerator: h200, Count: 4, Model: llama70B, MaxSeqs: 1024, MaxBatched: 8192},
	{Name: "a100", Summary: "Llama 70B in bfloat16 on 4 A100 80 GB", Accelerator: a100, Count: 4, Model: llama70B, MaxSeqs: 256, MaxBatched: 2048},
	{Name: "mi300x", Summary: "Llama 70B in bfloat16 on 2 MI300X", Accelerator: mi300x, Count: 2, Model: llama70B, MaxSeqs: 1024, MaxBatched: 8192},
	{Name: "h100_8b", Summary: "Llama 8B in bfloat16 on one H100", Accelerator: h100, Count: 1, Model: llama8B, MaxSeqs: 1024, MaxBatched: 8192},
	{Name: "a100_8b", Summary: "Llama 8B in bfloat16 on one A100 80 GB", Accelerator: a100, Count: 1, Model: llama8B, MaxSeqs: 256, MaxBatched: 2048},
	{Name: "a10", Summary: "Llama 8B in bfloat16 on one A10", Accelerator: a10, Count: 1, Model: llama8B, MaxSeqs: 256, MaxBatched: 2048},
	{Name: "l4", Summary: "Llama 8B in bfloat16 on one L4", Accelerator: l4, Count: 1, Model: llama8B, MaxSeqs: 256, MaxBatched: 2048},
}

// Shares of a data sheet's figure that kernels reach, as roofline studies of serving
// find them (about 0.7 to 0.9 of the bandwidth, 0.5 to 0.75 of the FLOPS), and of the
// memory that vLLM takes (gpu_memory_utilization), less what activations need.
const (
	reachedBandwidth = 0.85
	reachedFLOPS     = 0.7
	takenMemory      = 0.9
	activations      = 2e9 // bytes of each accelerator
	launch           = 1e-3
)

// Params derives an engine of blocks of that many tokens:
//
//	a = weights / bandwidth + 1 ms to schedule and launch a step
//	b = 2 · parameters / FLOPS
//	c = KV bytes of a token / bandwidth
//	d = 4 · layers · heads · head size / FLOPS
//	capacity = (0.9 · memory − 2 GB − weights) / KV bytes of a token
//
// with the bandwidth, FLOPS and memory of all accelerators, of the first two what
// kernels reach of them, two bytes a weight and a KV element.
func (m Machine) Params(blockSize int) engine.Params {
	p := engine.Default()
	tokens := p.Blocks * p.BlockSize
	if m.Count > 0 {
		n := float64(m.Count)
		weights := 2 * m.Model.Parameters
		kv := float64(2 * 2 * m.Model.Layers * m.Model.KVHeads * m.Model.HeadSize)
		bandwidth := n * m.Accelerator.Bandwidth * reachedBandwidth
		flops := n * m.Accelerator.FLOPS * reachedFLOPS
		p.Pace = engine.Pace{
			Step:    weights/bandwidth + launch,
			Token:   2 * m.Model.Parameters / flops,
			Context: kv / bandwidth,
			Pair:    float64(4*m.Model.Layers*m.Model.Heads*m.Model.HeadSize) / flops,
		}
		tokens = int((n*(m.Accelerator.Memory*takenMemory-activations) - weights) / kv)
		p.MaxSeqs, p.MaxBatchedTokens = m.MaxSeqs, m.MaxBatched
	}
	p.BlockSize = blockSize
	p.Blocks = max(tokens/blockSize, 1)
	return p
}

// Replica is one engine of a fleet.
type Replica struct {
	Machine Machine
	Speed   float64 // divides its steps' time
	// Params overrides the machine's, if it is not nil; the block size is the run's.
	Params *engine.Params
}

func (r Replica) params(blockSize int) engine.Params {
	p := r.Machine.Params(blockSize)
	if r.Params != nil {
		tokens := r.Params.Blocks * r.Params.BlockSize
		p = *r.Params
		p.BlockSize, p.Blocks = blockSize, max(tokens/blockSize, 1)
	}
	p.Speed = r.Speed
	return p
}

// Fleet is a number of engines.
type Fleet struct {
	Name     string
	Replicas []Replica
}

const maxReplicas = 10_000

// mostSpeed, and one over it, bound how much faster and slower steps may be, so that
// times stay those of engines and their sums are exact.
const mostSpeed = 1000.0

func sane(speed float64) bool { return speed >= 1/mostSpeed && speed <= mostSpeed }

// ParseFleet reads a fleet such as 4xh100,4xa10 or, with replicas at a share of
// their machine's speed, 4xh100,4xh100@0.4. A number alone is so many h100.
func ParseFleet(text string) (Fleet, error) {
	f := Fleet{Name: text}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		count, rest := "1", part
		if n, name, ok := strings.Cut(part, "x"); ok && isNumber(n) {
			count, rest = n, name
		} else if isNumber(part) {
			count, rest = part, Machines[0].Name
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > maxReplicas-len(f.Replicas) {
			return Fleet{}, fmt.Errorf("fleet %q: %s replicas; there may be from 1 to %d", text, count, maxReplicas)
		}
		name, speedText, given := strings.Cut(rest, "@")
		speed := 1.0
		if given {
			if speed, err = strconv.ParseFloat(speedText, 64); err != nil || !sane(speed) {
				return Fleet{}, fmt.Errorf("fleet %q: speed %q; give a number from %g to %g", text, speedText, 1/mostSpeed, mostSpeed)
			}
		}
		machine, ok := machineOf(name)
		if !ok {
			return Fleet{}, fmt.Errorf("fleet %q: no machine %q; there are %s", text, name, machineNames())
		}
		for range n {
			f.Replicas = append(f.Replicas, Replica{Machine: machine, Speed: speed})
		}
	}
	return f, nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func machineOf(name string) (Machine, bool) {
	for _, m := range Machines {
		if m.Name == name {
			return m, true
		}
	}
	return Machine{}, false
}

func machineNames() string {
	var names []string
	for _, m := range Machines {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}
