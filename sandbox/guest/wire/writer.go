package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Writer encodes frames. It is safe for concurrent use: frames never mix, and
// the destination gets whole frames in each Write.
type Writer struct {
	mu  sync.Mutex
	dst io.Writer
	buf []byte
	err error
}

// NewWriter returns a Writer to dst, which it never closes.
func NewWriter(dst io.Writer) *Writer { return &Writer{dst: dst} }

// Send writes frames, together and in order, by one Write. Payloads are not
// kept. Where one breaks the bounds it fails with [ErrProtocol] and writes
// nothing; after the destination failed, every call fails with its error.
func (w *Writer) Send(frames ...Frame) error { return w.SendAfter(nil, frames...) }

// SendAfter is Send, and calls before, unless it is nil, when it is the turn of
// these frames, not while others are written. It must not send.
func (w *Writer) SendAfter(before func(), frames ...Frame) error {
	for _, f := range frames {
		if err := checkHeader(len(f.Payload), f.Stream, f.Type, f.Channel); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if before != nil {
		before()
	}
	w.buf = w.buf[:0]
	for _, f := range frames {
		h := f.encodeHeader()
		w.buf = append(append(w.buf, h[:]...), f.Payload...)
	}
	err := w.writeFrames(w.buf)
	if cap(w.buf) > HeaderSize+MaxData {
		w.buf = nil
	}
	return err
}

// writeFrames writes encoded frames. The lock is held.
func (w *Writer) writeFrames(encoded []byte) error {
	if w.err != nil {
		return w.err
	}
	if _, err := w.dst.Write(encoded); err != nil {
		w.err = fmt.Errorf("write frame: %w", err)
	}
	return w.err
}

// SendJSON writes one frame whose payload is v as JSON.
func (w *Writer) SendJSON(stream uint32, typ Type, v any) error {
	f, err := JSON(stream, typ, v)
	if err != nil {
		return err
	}
	return w.Send(f)
}

// JSON makes a frame whose payload is v as JSON.
func JSON(stream uint32, typ Type, v any) (Frame, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Frame{}, fmt.Errorf("encode frame type %d: %w", typ, err)
	}
	return Frame{Stream: stream, Type: typ, Payload: payload}, nil
}

// SendCredit grants the sender of a channel n bytes more.
func (w *Writer) SendCredit(stream uint32, channel uint8, n uint32) error {
	return w.Send(Frame{
		Stream: stream, Type: TypeCredit, Channel: channel,
		Payload: binary.BigEndian.AppendUint32(nil, n),
	})
}
