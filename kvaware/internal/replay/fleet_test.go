// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/kvaware/caddy-kvaware/kvaware/internal/engine"
)

func TestFleetsAreReadFromText(t *testing.T) {
	f := fleet(t, "2xh100, a10@0.5,3")
	var got []string
	for _, r := range f.Replicas {
		got = append(got, r.Machine.Name)
	}
	if want := []string{"h100", "h100", "a10", "h100", "h100", "h100"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if f.Replicas[0].Speed != 1 || f.Replicas[2].Speed != 0.5 {
		t.Errorf("%+v", f.Replicas)
	}
	for _, text := range []string{"", "0", "4x", "4xh1", "h100@0", "h100@x", "h100@-1", "10001xh100", "9999999999999999999", "h100,,h100", "h100@Inf", "h100@NaN", "h100@1e-300", "h100@1e300"} {
		if f, err := ParseFleet(text); err == nil {
			t.Errorf("%q is read as %+v", text, f)
		}
	}
}

func TestEveryMachineIsAnEngineOfItsDataSheet(t *testing.T) {
	for _, m := range Machines {
		for _, size := range []int{16, 64, 512} {
			p := m.Params(size)
			e, err := engine.New(p, nil)
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			if tokens := e.Capacity(); tokens < 10_000 || tokens > 3_000_000 {
				t.Errorf("%s: a cache of %d tokens", m.Name, tokens)
			}
			if m.Summary == "" || p.Pace.Step < 2e-3 || p.Pace.Step > 0.1 {
				t.Errorf("%s: %+v", m.Name, p)
			}
		}
	}
	// The default, which others have measured against, is near what follows from the
	// data sheet of its accelerators.
	derived := Machine{Accelerator: h100, Count: 4, Model: llama70B, MaxSeqs: 256, MaxBatched: 8192}.Params(16)
	stated := engine.Default()
	for name, pair := range map[string][2]float64{
		"a":        {derived.Pace.Step, stated.Pace.Step},
		"b":        {derived.Pace.Token, stated.Pace.Token},
		"c":        {derived.Pace.Context, stated.Pace.Context},
		"d":        {derived.Pace.Pair, stated.Pace.Pair},
		"capacity": {float64(derived.Blocks), float64(stated.Blocks)},
	} {
		if ratio := pair[0] / pair[1]; math.Abs(math.Log(ratio)) > math.Log(1.4) {
			t.Errorf("%s: derived %v, stated %v", name, pair[0], pair[1])
		}
	}
}

func TestEventsAreReadFromText(t *testing.T) {
	got, err := ParseEvents("slow:2@0.3=3,restart:0@0.5=90s, restart:1@0.5,leave:1@0.2,join:1@0.6,update@1")
	want := []Event{
		{Kind: Slow, Replica: 2, After: 0.3, Factor: 3, Down: restartTime},
		{Kind: Restart, After: 0.5, Down: 90 * time.Second, Factor: 1},
		{Kind: Restart, Replica: 1, After: 0.5, Down: restartTime, Factor: 1},
		{Kind: Leave, Replica: 1, After: 0.2, Down: restartTime, Factor: 1},
		{Kind: Join, Replica: 1, After: 0.6, Down: restartTime, Factor: 1},
		{Kind: Update, After: 1, Down: restartTime, Factor: 1},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"slow", "slow:1@0.5", "slow:1@0.5=0", "slow@0.5=2", "update:1@0.5", "leave:1@2", "leave:x@0.5", "burn:1@0.5", "leave:1@0.5=1", "restart:1@0.5=x", "leave:-1@0.5", "leave:1@NaN", "slow:1@0.5=NaN", "slow:1@0.5=1e300", "slow:1@0.5=1e-300", "restart:1@0.5=2540400h"} {
		if e, err := ParseEvents(text); err == nil {
			t.Errorf("%q is read as %+v", text, e)
		}
	}
	if e, err := ParseEvents(""); e != nil || err != nil {
		t.Errorf("nothing is read as %v, %v", e, err)
	}
}

func FuzzParseEvents(f *testing.F) {
	f.Add("slow:2@0.3=3,restart:0@0.5=90s")
	f.Fuzz(func(t *testing.T, text string) {
		events, err := ParseEvents(text)
		for _, e := range events {
			if err != nil || !(e.After >= 0 && e.After <= 1) || !(e.Factor > 0) || e.Replica < 0 {
				t.Fatalf("%+v, %v", e, err)
			}
		}
	})
}

func FuzzParseFleet(f *testing.F) {
	f.Add("2xh100,a10@0.5,3")
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := ParseFleet(text)
		if err == nil && (len(fleet.Replicas) == 0 || len(fleet.Replicas) > maxReplicas) {
			t.Fatalf("%d replicas", len(fleet.Replicas))
		}
		for _, r := range fleet.Replicas {
			if err := r.params(64).Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
