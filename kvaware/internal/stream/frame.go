// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"strings"
)

// lineState says where in a line of an event stream the next byte falls.
type lineState uint8

const (
	lineStart lineState = iota
	lineField           // in a field's name
	lineColon           // after the colon: one space belongs to it
	lineValue
)

type sseField uint8

const (
	sseOther sseField = iota // comments too
	sseData
	sseEvent
	sseError // llama.cpp's older way to tell of errors
)

const (
	fieldNameMax = 5 // no name that matters is longer
	eventNameMax = 48
)

var byteOrderMark = [3]byte{0xEF, 0xBB, 0xBF}

// framing is the state of what surrounds the JSON values.
type framing struct {
	mark int // matched bytes of a byte order mark at the start

	line    lineState
	field   sseField
	cr      bool // the last byte was a carriage return
	crlf    bool // the last line ended with CR and LF
	empty   bool // of an empty line the CR has come, the LF is to follow
	data    bool // the event has a data line
	nameLen int  // more than fieldNameMax: some other field
	name    [fieldNameMax]byte
	typeLen int
	typed   [eventNameMax]byte // value of the event field

	lines bool // JSON values end with their line
}

// linesType: the media type says that JSON values come line by line.
func linesType(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	for _, s := range [...]string{"ndjson", "jsonl", "jsonlines", "json-seq", "stream+json"} {
		if strings.HasSuffix(media, s) {
			return true
		}
	}
	return false
}

// recognise decides by the first byte that is neither blank nor part of a
// byte order mark, and returns what is left of p. What is no JSON is read as
// an event stream, whose unknown lines mean nothing.
func (o *Observer) recognise(p []byte) []byte {
	f := &o.framing
	for i, c := range p {
		switch {
		case f.mark < len(byteOrderMark) && c == byteOrderMark[f.mark]:
			f.mark++
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == 0x1E:
			f.mark = len(byteOrderMark)
		case c == '{' || c == '[':
			o.shape = shapeJSON
			return p[i:]
		default:
			o.shape = shapeSSE
			return p[i:]
		}
	}
	return nil
}

// readSSE splits an event stream into lines and hands the data to the scanner.
func (o *Observer) readSSE(p []byte) {
	f := &o.framing
	for len(p) > 0 {
		if f.cr {
			f.cr, f.crlf = false, p[0] == '\n'
			if f.empty {
				o.dispatchSSE()
			}
			if f.crlf {
				p = p[1:]
				continue
			}
		}
		switch f.line {
		case lineStart:
			if len(p) >= 5 && string(p[:5]) == "data:" {
				f.field, f.line = sseData, lineColon
				p = p[5:]
				continue
			}
			f.nameLen = 0
			if c := p[0]; c == '\n' || c == '\r' {
				p = p[1:]
				f.cr = c == '\r'
				if f.empty = f.cr && f.crlf; !f.empty {
					o.dispatchSSE()
				}
				continue
			}
			f.line = lineField

		case lineField:
			switch c := p[0]; {
			case c == ':':
				f.field, f.line = f.fieldName(), lineColon
			case c == '\n' || c == '\r':
				f.field = f.fieldName()
				o.beginValue()
				f.line = lineValue
				continue
			case f.nameLen < fieldNameMax:
				f.name[f.nameLen] = c
				f.nameLen++
			default:
				f.nameLen = fieldNameMax + 1
			}
			p = p[1:]

		case lineColon:
			o.beginValue()
			f.line = lineValue
			if p[0] == ' ' {
				p = p[1:]
			}

		case lineValue:
			p = o.lineValue(p)
		}
	}
}

func (f *framing) fieldName() sseField {
	if f.nameLen > fieldNameMax {
		return sseOther
	}
	switch string(f.name[:f.nameLen]) {
	case "data":
		return sseData
	case "event":
		return sseEvent
	case "error":
		return sseError
	}
	return sseOther
}

// beginValue prepares for the value of a field.
func (o *Observer) beginValue() {
	f := &o.framing
	switch f.field {
	case sseError:
		o.failed = true
	case sseEvent:
		f.typeLen = 0
	case sseData:
		if f.data && o.scanner.state == complete {
			// Servers that forget the empty line: the event before is whole.
			o.dispatchSSE()
		}
		if f.data {
			o.scan(lineFeed)
		}
		f.data = true
	}
}

var lineFeed = []byte{'\n'}

// lineValue takes the value up to the line's end or the end of p, and returns
// what follows.
func (o *Observer) lineValue(p []byte) []byte {
	f := &o.framing
	value, rest := p, []byte(nil)
	end := bytes.IndexByte(p, '\n')
	if end >= 0 {
		value = p[:end]
	}
	if r := bytes.IndexByte(value, '\r'); r >= 0 {
		end, value = r, value[:r]
	}
	switch f.field {
	case sseData:
		o.scan(value)
	case sseEvent:
		f.typeLen += copy(f.typed[f.typeLen:], value)
	}
	if end >= 0 {
		if f.cr = p[end] == '\r'; !f.cr {
			f.crlf = false
		}
		rest = p[end+1:]
		f.line = lineStart
	}
	return rest
}

func (o *Observer) dispatchSSE() {
	f := &o.framing
	if f.data {
		o.dispatch()
	}
	f.data, f.empty, f.typeLen = false, false, 0
}

// readJSON reads values that follow one another.
func (o *Observer) readJSON(p []byte) {
	f := &o.framing
	for len(p) > 0 {
		switch o.scanner.state {
		case complete, broken:
			// A line's value; the line's end makes it an event. After a broken
			// one the next line is a new start.
			end := bytes.IndexByte(p, '\n')
			if o.scanner.state == complete {
				blank := len(p) - len(bytes.TrimLeft(p, " \t\r\x1e"))
				if blank < len(p) && p[blank] != '\n' {
					o.countValue()
					p = p[blank:]
					continue
				}
			}
			if end < 0 {
				return
			}
			p = p[end+1:]
			o.countValue()
		default:
			if o.scanner.state == atRoot {
				p = bytes.TrimLeft(p, " \t\r\n\x1e")
				if len(p) == 0 {
					return
				}
				if o.values > 0 {
					f.lines = true
				}
			}
			p = p[o.scan(p):]
			if o.scanner.state == complete {
				f.lines = f.lines || o.object.unfinished
				if !f.lines {
					o.countValue()
				}
			}
		}
	}
}

func (o *Observer) countValue() {
	o.values++
	o.dispatch()
}

// endFraming takes what is whole but for the byte that would complete it. An
// event stream's last event needs a clean end for that.
func (o *Observer) endFraming(clean bool) {
	if o.framing.empty {
		o.dispatchSSE()
	}
	if o.scanner.state == complete {
		switch o.shape {
		case shapeSSE:
			if clean || o.event.done {
				o.dispatchSSE()
			}
		case shapeJSON:
			o.countValue()
		}
	}
	o.discard()
}
