// Package picture reads the type and size of pictures without decoding them.
package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"net/http"
)

// Bounds of a picture: the bytes that the dispatcher passes on, and the pixels that
// providers accept (8000 a side). No picture is decoded here: a decoder must not be
// made to allocate for 60000 × 60000.
const (
	MaxBytes = 5 << 20
	MaxSide  = 8000
)

// Type returns the media type of a picture that models can see, or "".
func Type(head []byte) string {
	switch t := http.DetectContentType(head); t {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return t
	}
	return ""
}

// Size reads only a picture's header.
func Size(media string, data []byte) (image.Point, error) {
	var c image.Config
	var err error
	switch r := bytes.NewReader(data); media {
	case "image/png":
		c, err = png.DecodeConfig(r)
	case "image/jpeg":
		c, err = jpeg.DecodeConfig(r)
	case "image/gif":
		c, err = gif.DecodeConfig(r)
	default:
		return webpSize(data)
	}
	if err == nil && (c.Width <= 0 || c.Height <= 0) {
		err = errors.New("picture without pixels")
	}
	return image.Pt(c.Width, c.Height), err
}

// webpSize reads the size from a WebP header (RFC 9649, sections 2.5 to 2.7):
// RIFF, size, WEBP, then a chunk VP8X, VP8L or VP8 with its own size field.
func webpSize(b []byte) (image.Point, error) {
	if len(b) < 30 {
		return image.Point{}, errors.New("webp header is cut off")
	}
	switch chunk, body := string(b[12:16]), b[20:]; chunk {
	case "VP8X":
		return image.Pt(uint24(body[4:])+1, uint24(body[7:])+1), nil
	case "VP8L":
		if body[0] != 0x2f {
			return image.Point{}, errors.New("webp lossless signature is missing")
		}
		bits := binary.LittleEndian.Uint32(body[1:])
		return image.Pt(int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1), nil
	case "VP8 ":
		if !bytes.Equal(body[3:6], []byte{0x9d, 0x01, 0x2a}) {
			return image.Point{}, errors.New("webp start code is missing")
		}
		w, h := binary.LittleEndian.Uint16(body[6:]), binary.LittleEndian.Uint16(body[8:])
		return image.Pt(int(w&0x3fff), int(h&0x3fff)), nil
	default:
		return image.Point{}, fmt.Errorf("webp chunk is %q", chunk)
	}
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
