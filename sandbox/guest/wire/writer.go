package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Writer encodes frames. It is safe for concurrent use: frames never mix, and
// each is one Write of the destination.
type Writer struct {
	mu  sync.Mutex
	dst io.Writer
	buf []byte
	err error
}

// NewWriter returns a Writer to dst, which it never closes.
func NewWriter(dst io.Writer) *Writer { return &Writer{dst: dst} }

// Send writes one frame. The payload is not kept. A frame that breaks the
// bounds fails with [ErrProtocol] and writes nothing; after the destination
// failed, every call fails with its error.
func (w *Writer) Send(f Frame) error {
	if err := check(len(f.Payload), f.Stream, f.Type, f.Channel); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	h := f.header()
	w.buf = append(append(w.buf[:0], h[:]...), f.Payload...)
	if _, err := w.dst.Write(w.buf); err != nil {
		w.err = fmt.Errorf("write frame: %w", err)
	}
	if cap(w.buf) > HeaderSize+MaxData {
		w.buf = nil
	}
	return w.err
}

// SendJSON writes one frame whose payload is v as JSON.
func (w *Writer) SendJSON(stream uint32, typ Type, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame type %d: %w", typ, err)
	}
	return w.Send(Frame{Stream: stream, Type: typ, Payload: payload})
}

// SendCredit grants the sender of a channel n bytes more.
func (w *Writer) SendCredit(stream uint32, channel uint8, n uint32) error {
	return w.Send(Frame{
		Stream: stream, Type: TypeCredit, Channel: channel,
		Payload: binary.BigEndian.AppendUint32(nil, n),
	})
}
