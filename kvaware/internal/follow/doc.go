// SPDX-License-Identifier: Apache-2.0

// Package follow follows what one engine, or one data-parallel rank of it,
// publishes about its KV cache, so that a Sink knows at each moment what the
// engine holds or that this is not known.
//
// # Sequence numbers
//
// A publisher counts its messages from 0 and starts over when its process does.
// A Follower knows the number that comes next, and hashes of the last messages:
//
//   - The number that comes next is applied.
//   - A number already seen, with the message that it had, is ignored.
//   - A number already seen with another message, or one that is long past, is a
//     publisher that has started over: the Sink forgets, and what the new one has
//     published is asked for from 0.
//   - A number further on is a gap: what is missing is asked for. What the replay
//     cannot give is lost. Removals may be among it, and blocks are counted, so
//     that a lost removal would leave a block believed forever: the Sink forgets,
//     and is partial.
//
// What is missing is asked for from the last message on: the same one shows that
// the publisher is the same. So it is when a connection is made anew. Without a
// replay endpoint the first live number tells as above. Between, nothing is
// trusted.
//
// A refused connection is an engine that is gone: the Sink forgets. Messages with other
// frames are counted and skipped; after a thousand of them in a row the connection is
// ended and made anew after a growing pause, so that what is no publisher takes no
// processor.
//
// # Partial
//
// A Sink is partial where the engine may hold what it was never told: followed
// from a number other than 0, after a loss, after Invalidate, and after a message
// that could not be decoded. It ends when the engine says that it cleared its
// cache, when a publisher is followed from 0, or when as many blocks were stored
// as the engine has room for: what the engine still holds from before is then
// only what it has used since.
//
// # Replays
//
// The replay socket answers a number with all kept messages from it on, and an end
// marker, which engines drop when the socket's queue is full, like any message
// behind that point. So an answer also ends with a quiet period, and as long as
// answers bring something new without an end marker, the next is asked for. A
// first message beyond those asked for means that the engine no longer has them.
// Meanwhile live messages wait in a bounded queue; when it is full, the connection
// is not read and the publisher's own bound counts. A replay that nobody answers
// is asked for again after a growing pause.
//
// After a while without messages the last one is asked for again, which finds
// messages that were lost and publishers that started over in silence.
//
// # Ranks
//
// Each data-parallel rank of an engine publishes at an endpoint of its own, with
// numbers of its own. A batch that names another rank than the one followed is
// skipped, and its number is none of the sequence; a Follower of an engine whose
// ranks are not told apart takes all.
package follow
