// SPDX-License-Identifier: Apache-2.0

//go:build race

package chattemplate

// raceEnabled tells whether the race detector is on; sync.Pool then drops what
// it is given at random, so allocations cannot be counted.
const raceEnabled = true
