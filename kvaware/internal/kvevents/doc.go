// SPDX-License-Identifier: Apache-2.0

// Package kvevents reads and writes the messages in which inference engines
// tell what their KV caches hold: msgpack over ZeroMQ, from vLLM and SGLang and
// those who follow them.
//
// A message is a Batch of Events. Decoder reads every shape in the field into
// reused memory and trusts nothing: a length is compared with the bytes left
// before memory is taken for it, nesting costs no stack. AppendBatch writes
// every shape, for simulated engines and for tests.
//
// # Frames
//
// A PUB socket sends (topic, sequence number, payload), the number in 8 bytes,
// big-endian, counted from 0 for each process. The replay socket is a ROUTER:
// to a DEALER's ("", first wanted number) it answers with ("", number, payload)
// or, in newer engines, ("", topic, number, payload) for each batch it still
// has, and ends with the number -1 and an empty payload in the same form. So
// the payload is the last frame and the number the one before it, however many
// there are. vLLM polls that socket once per batch or each 100 ms, whichever
// comes first. [vllm/distributed/kv_events.py 0.32.0;
// sglang/srt/disaggregation/kv_events.py 0.5.23]
package kvevents
