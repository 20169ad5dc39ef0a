// SPDX-License-Identifier: Apache-2.0

package residency

// Both hash tables are directories of small segments with open addressing, so that
// growing never moves more than a segment. A segment grows by a sixth to a third,
// at its own time, so the load stays high; one that is full at the last size is
// split in two (extendible hashing; Fagin et al. 1979).

// segmentSizes are sizes in slots of 16 bytes that fill the runtime's size classes.
var segmentSizes = [...]int{16, 24, 32, 40, 48, 64, 88, 112, 128, 152, 176, 216, 256, 304, 384, 448, 512, 592, 680, 768, 896, 1024}

// segmentPad slots behind a segment's last keep probing from wrapping around.
const segmentPad = 8

// sizeFor returns a segment's slots, without the pad, for entries of which there
// may be as many again as load, in percent, leaves room for.
func sizeFor(entries, load int) int {
	for _, n := range segmentSizes {
		if (n-segmentPad)*load >= entries*100 {
			return n - segmentPad
		}
	}
	return segmentSizes[len(segmentSizes)-1] - segmentPad
}

// sizeOf returns the slots, without the pad, of a segment that has at least so many
// with it.
func sizeOf(least int) int {
	for _, n := range segmentSizes {
		if n >= least {
			return n - segmentPad
		}
	}
	return max(least-segmentPad, largestSegment)
}

const largestSegment = 1024 - segmentPad

// home is where a hash's probing begins in a segment of n slots: hash's bits below
// the directory's, as a fraction of the segment.
func home(hash uint64, depth uint8, n int) int {
	return int((hash << depth >> 32) * uint64(n) >> 32)
}

// mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
