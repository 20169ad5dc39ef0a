// SPDX-License-Identifier: Apache-2.0

package tokenize

// laterRanges are the letters, marks and numbers that Unicode 15.1 and 16.0
// added. Go's tables are those of 15.0, tiktoken's regular expressions use 16.0.
var laterRanges = []struct {
	lo, hi rune
	class  runeClass
}{
	{0x0897, 0x0897, combiningMark},
	{0x1c89, 0x1c89, upperLetter},
	{0x1c8a, 0x1c8a, lowerLetter},
	{0xa7cb, 0xa7cc, upperLetter},
	{0xa7cd, 0xa7cd, lowerLetter},
	{0xa7da, 0xa7da, upperLetter},
	{0xa7db, 0xa7db, lowerLetter},
	{0xa7dc, 0xa7dc, upperLetter},
	{0x105c0, 0x105f3, caselessLetter},
	{0x10d40, 0x10d49, classNumber},
	{0x10d4a, 0x10d4f, caselessLetter},
	{0x10d50, 0x10d65, upperLetter},
	{0x10d69, 0x10d6d, combiningMark},
	{0x10d6f, 0x10d6f, caselessLetter},
	{0x10d70, 0x10d85, lowerLetter},
	{0x10ec2, 0x10ec4, caselessLetter},
	{0x10efc, 0x10efc, combiningMark},
	{0x11380, 0x11389, caselessLetter},
	{0x1138b, 0x1138b, caselessLetter},
	{0x1138e, 0x1138e, caselessLetter},
	{0x11390, 0x113b5, caselessLetter},
	{0x113b7, 0x113b7, caselessLetter},
	{0x113b8, 0x113c0, combiningMark},
	{0x113c2, 0x113c2, combiningMark},
	{0x113c5, 0x113c5, combiningMark},
	{0x113c7, 0x113ca, combiningMark},
	{0x113cc, 0x113d0, combiningMark},
	{0x113d1, 0x113d1, caselessLetter},
	{0x113d2, 0x113d2, combiningMark},
	{0x113d3, 0x113d3, caselessLetter},
	{0x113e1, 0x113e2, combiningMark},
	{0x116d0, 0x116e3, classNumber},
	{0x11bc0, 0x11be0, caselessLetter},
	{0x11bf0, 0x11bf9, classNumber},
	{0x11f5a, 0x11f5a, combiningMark},
	{0x13460, 0x143fa, caselessLetter},
	{0x16100, 0x1611d, caselessLetter},
	{0x1611e, 0x1612f, combiningMark},
	{0x16130, 0x16139, classNumber},
	{0x16d40, 0x16d6c, caselessLetter},
	{0x16d70, 0x16d79, classNumber},
	{0x18cff, 0x18cff, caselessLetter},
	{0x1ccf0, 0x1ccf9, classNumber},
	{0x1e5d0, 0x1e5ed, caselessLetter},
	{0x1e5ee, 0x1e5ef, combiningMark},
	{0x1e5f0, 0x1e5f0, caselessLetter},
	{0x1e5f1, 0x1e5fa, classNumber},
	{0x2ebf0, 0x2ee5d, caselessLetter},
}
