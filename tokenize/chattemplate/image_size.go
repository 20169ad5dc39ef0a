// SPDX-License-Identifier: Apache-2.0

package chattemplate

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
)

// maxMarkers bounds how many segments of a JPEG are passed over on the way to
// its size.
const maxMarkers = 256

// ImageSize reads the width and height in pixels, as stored, from the header of
// a PNG, JPEG, WebP or GIF image in a base64 data URI. It looks at a few dozen
// bytes, however long the URI is. ok is false for anything else.
func ImageSize(dataURI []byte) (width, height int, ok bool) {
	comma := bytes.IndexByte(dataURI[:min(len(dataURI), 128)], ',')
	if comma < 5 || !bytes.EqualFold(dataURI[:5], []byte("data:")) || !bytes.HasSuffix(dataURI[:comma], []byte(";base64")) {
		return 0, 0, false
	}
	b := base64Bytes(dataURI[comma+1:])
	start := b.at(0, 30)
	switch {
	case bytes.HasPrefix(start, []byte("\x89PNG\r\n\x1a\n")) && len(start) >= 24:
		width, height = int(binary.BigEndian.Uint32(start[16:])), int(binary.BigEndian.Uint32(start[20:]))
	case (bytes.HasPrefix(start, []byte("GIF87a")) || bytes.HasPrefix(start, []byte("GIF89a"))) && len(start) >= 10:
		width, height = int(binary.LittleEndian.Uint16(start[6:])), int(binary.LittleEndian.Uint16(start[8:]))
	case bytes.HasPrefix(start, []byte("RIFF")) && len(start) >= 30 && string(start[8:12]) == "WEBP":
		width, height = webpSize(start)
	case bytes.HasPrefix(start, []byte("\xff\xd8")):
		width, height = jpegSize(b)
	}
	if width <= 0 || height <= 0 || width > maxImageSide || height > maxImageSide {
		return 0, 0, false
	}
	return width, height, true
}

// base64Bytes gives bytes of base64 text, decoding no more than is asked for.
type base64Bytes []byte

// at returns n bytes from an offset, or as many as there are.
func (b base64Bytes) at(offset, n int) []byte {
	from := offset / 3 * 4
	to := min(len(b), (offset+n+2)/3*4)
	if offset < 0 || from >= to {
		return nil
	}
	encoding := base64.StdEncoding
	text := b[from:to]
	if len(text)%4 != 0 {
		encoding = base64.RawStdEncoding
	}
	decoded, err := encoding.AppendDecode(nil, text)
	if skip := offset % 3; err == nil && len(decoded) >= skip {
		return decoded[skip:min(len(decoded), skip+n)]
	}
	return nil
}

func webpSize(h []byte) (width, height int) {
	switch string(h[12:16]) {
	case "VP8X":
		return 1 + (int(h[24]) | int(h[25])<<8 | int(h[26])<<16), 1 + (int(h[27]) | int(h[28])<<8 | int(h[29])<<16)
	case "VP8L":
		bits := binary.LittleEndian.Uint32(h[21:])
		return 1 + int(bits&0x3fff), 1 + int(bits>>14&0x3fff)
	case "VP8 ":
		return int(binary.LittleEndian.Uint16(h[26:]) & 0x3fff), int(binary.LittleEndian.Uint16(h[28:]) & 0x3fff)
	}
	return 0, 0
}

// jpegSize walks a JPEG's segments to its frame header.
func jpegSize(b base64Bytes) (width, height int) {
	pos := 2
	for range maxMarkers {
		h := b.at(pos, 9)
		if len(h) < 4 || h[0] != 0xff {
			return 0, 0
		}
		switch marker := h[1]; {
		case marker == 0xff: // fill
			pos++
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if len(h) < 9 {
				return 0, 0
			}
			return int(binary.BigEndian.Uint16(h[7:])), int(binary.BigEndian.Uint16(h[5:]))
		case marker == 0xda || marker == 0xd9: // the image itself, or its end
			return 0, 0
		default:
			pos += 2 + int(binary.BigEndian.Uint16(h[2:]))
		}
	}
	return 0, 0
}
