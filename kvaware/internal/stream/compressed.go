// SPDX-License-Identifier: Apache-2.0

package stream

// A compressed response is not decoded: that would cost more than counting
// does, and a stream cut in the middle of a block cannot be. Its tokens are
// guessed from its bytes.
//
// The guesses are rounded from chat chunks of 200 bytes compressed with a
// flush after each, as proxies that compress streams do, and from English
// text in one JSON answer. They are off by a factor of two either way, which
// is why such a count is never Counted.
const (
	streamBytesPerToken = 16
	answerBytesPerToken = 2
	// compressedHeader is more than the header of gzip (10), zstd (up to 18)
	// or brotli takes. A writer may send it before there is output.
	compressedHeader = 18
)

// estimate counts n more bytes of a compressed response.
func (o *Observer) estimate(n int) {
	if o.refused() || o.options.Pooling {
		return
	}
	o.bytes += int64(n)
	if o.bytes <= compressedHeader {
		return
	}
	per := int64(answerBytesPerToken)
	if o.options.Streamed {
		per = streamBytesPerToken
	}
	tokens := min(max((o.bytes-compressedHeader)/per, 1), countMax)
	t := &o.tally
	last := o.options.Sequences - 1
	if len(t.sequences) == 0 {
		o.sequence(last)
		for i := range t.sequences {
			t.sequences[i].started, t.sequences[i].visible = true, true
			o.sink.Started(i, true)
		}
	}
	// Nothing tells the sequences apart: equal shares.
	share, extra := int(tokens)/(last+1), int(tokens)%(last+1)
	for i := range t.sequences {
		q := &t.sequences[i]
		q.base = share
		if i < extra {
			q.base++
		}
		o.report(i)
	}
}
