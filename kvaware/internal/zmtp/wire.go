// SPDX-License-Identifier: Apache-2.0

package zmtp

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// The greeting (RFC 23): signature, version, mechanism, as-server, filler.
const (
	greetingSize   = 64
	signatureSize  = 10
	mechanismStart = 12
	mechanismEnd   = 32
)

// A frame's flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// maxCommand bounds a command's frame; the ones in use take some hundred bytes.
// A connection's buffer holds one.
const maxCommand = 8 << 10

const (
	mechanismNull  = "NULL"
	mechanismPlain = "PLAIN"
)

type greeting struct {
	minor     byte
	mechanism string
	asServer  bool
}

func appendGreeting(dst []byte, g greeting) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, greetingSize)...)
	b := dst[start:]
	b[0], b[9] = 0xFF, 0x7F
	b[10], b[11] = 3, g.minor
	copy(b[mechanismStart:mechanismEnd], g.mechanism)
	if g.asServer {
		b[32] = 1
	}
	return dst
}

// checkGreeting judges as much of a greeting as has come, so that a peer of
// another protocol is not waited for.
func checkGreeting(b []byte) error {
	switch {
	case len(b) > 0 && b[0] != 0xFF, len(b) >= signatureSize && b[9]&1 == 0:
		return fault(NotZMTP, "the peer does not speak ZMTP: is this the port of an engine's KV events?")
	case len(b) > signatureSize && b[signatureSize] < 3:
		return fault(OldVersion, "the peer speaks ZMTP "+strconv.Itoa(int(b[signatureSize]))+", not 3: it needs libzmq 4 or later")
	}
	return nil
}

// parseGreeting reads a whole greeting.
func parseGreeting(b []byte) (greeting, error) {
	if err := checkGreeting(b); err != nil {
		return greeting{}, err
	}
	g := greeting{minor: b[11], asServer: b[32]&1 == 1}
	if b[10] > 3 {
		g.minor = 1 // a later one, which has to come down to ours
	}
	name := b[mechanismStart:mechanismEnd]
	for i, c := range name {
		if c == 0 {
			name = name[:i]
			break
		}
	}
	// RFC 23: upper-case letters, digits, hyphen, underscore, dot, plus.
	for _, c := range name {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' && c != '+' {
			return greeting{}, fault(Malformed, "the greeting's mechanism is no name")
		}
	}
	g.mechanism = string(name)
	return g, nil
}

// appendFrame appends a frame of a message.
func appendFrame(dst, body []byte, more bool) []byte {
	var flags byte
	if more {
		flags = flagMore
	}
	return append(appendHeader(dst, flags, len(body)), body...)
}

func appendHeader(dst []byte, flags byte, size int) []byte {
	if size < 256 {
		return append(dst, flags, byte(size))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(size))
}

func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, frame := range frames {
		dst = appendFrame(dst, frame, i < len(frames)-1)
	}
	return dst
}

// appendCommand appends a command's frame.
func appendCommand(dst []byte, name string, body []byte) []byte {
	dst = appendHeader(dst, flagCommand, 1+len(name)+len(body))
	dst = append(append(dst, byte(len(name))), name...)
	return append(dst, body...)
}

// parseCommand splits a command's frame.
func parseCommand(b []byte) (name, body []byte, err error) {
	if body, ok := bytes.CutPrefix(b, []byte("^RROR")); ok {
		// libzmq's PLAIN server: its "\x5ERROR" is what a C compiler makes so of.
		return []byte("ERROR"), body, nil
	}
	if len(b) == 0 || b[0] == 0 || len(b) < 1+int(b[0]) {
		return nil, nil, fault(Malformed, "a command without a name")
	}
	return b[1 : 1+b[0]], b[1+b[0]:], nil
}

// header reads a frame's header, of which b is what has come. size is 0 while
// more bytes are needed.
func header(b []byte) (flags byte, body uint64, size int, err error) {
	if len(b) == 0 {
		return 0, 0, 0, nil
	}
	flags = b[0]
	switch {
	case flags&^(flagMore|flagLong|flagCommand) != 0:
		return 0, 0, 0, fault(Malformed, "a frame with reserved flags")
	case flags&flagCommand != 0 && flags&flagMore != 0:
		return 0, 0, 0, fault(Malformed, "a command of more than one frame")
	case flags&flagLong == 0:
		if len(b) < 2 {
			return flags, 0, 0, nil
		}
		return flags, uint64(b[1]), 2, nil
	case len(b) < 9:
		return flags, 0, 0, nil
	}
	return flags, binary.BigEndian.Uint64(b[1:]), 9, nil
}

// appendProperty appends a property of metadata.
func appendProperty(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(value))), value...)
}

// socketTypeOf finds the peer's socket type in the metadata of READY or INITIATE.
func socketTypeOf(b []byte) (string, error) {
	found := ""
	for len(b) > 0 {
		n := int(b[0])
		if n == 0 || len(b) < 1+n+4 {
			return "", fault(Malformed, "metadata that ends early")
		}
		name := b[1 : 1+n]
		b = b[1+n:]
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		if uint64(size) > uint64(len(b)) {
			return "", fault(Malformed, "metadata that ends early")
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			found = string(b[:size])
		}
		b = b[size:]
	}
	return found, nil
}

// readable returns at most 64 bytes of a peer's text, without what could garble a
// log.
func readable(b []byte) string {
	b = b[:min(len(b), 64)]
	out := make([]byte, len(b))
	for i, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out[i] = c
	}
	return string(out)
}
