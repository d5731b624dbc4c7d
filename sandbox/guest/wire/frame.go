package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Sizes and bounds of the protocol, in bytes.
const (
	// HeaderSize is the size of the header before every payload.
	HeaderSize = 10
	// MaxData bounds a data frame: as much as one read of a default pipe
	// returns. Frames of another stream may have to wait for one.
	MaxData = 64 << 10
	// MaxControl bounds a JSON payload. The largest is an open with as many
	// arguments as Linux takes (2 MiB, a quarter of the default stack), in
	// base64.
	MaxControl = 4 << 20
	// maxSmall bounds control payloads with a few fields and a message.
	maxSmall = 4 << 10
	// Window is the initial credit of a channel, and so the most that its
	// receiver buffers. Each grant wakes every process between the two ends
	// (three with Docker), so grants are for half the window.
	Window = 2 << 20
)

// Type is the type of a frame. Values are never reused.
type Type uint8

// The frame types, after who sends them.
const (
	TypeConfig  Type = 1  // host: [Config], the first frame
	TypeHello   Type = 2  // guest: [Hello], the answer to it
	TypePing    Type = 3  // either: 8 bytes
	TypePong    Type = 4  // either: the 8 bytes of the ping
	TypeOpen    Type = 5  // either: [Open], makes a stream
	TypeStarted Type = 6  // server: [Started], the command runs
	TypeRefused Type = 7  // server: [Refused], the stream never began; its last frame
	TypeData    Type = 8  // either: bytes of a channel
	TypeEOF     Type = 9  // sender of a channel: no more data on it
	TypeCredit  Type = 10 // receiver of a channel: u32, that many bytes more may be sent
	TypeStop    Type = 11 // receiver of a channel: it reads no more, what comes is dropped
	TypeCancel  Type = 12 // host: [Cancel], end the stream's work
	TypeEnd     Type = 13 // server: [Exit], [Applied], [ReadResult] or [LookupAnswer], the stream's last frame; either: [RelayEnd]
	TypeResize  Type = 14 // host: [TerminalSize.Encode], the command's terminal has another size
)

// maxPayload returns the largest payload of a type. ok is false for an unknown
// type.
func (t Type) maxPayload() (n int, ok bool) {
	switch t {
	case TypeConfig, TypeHello, TypeOpen, TypeEnd:
		return MaxControl, true
	case TypePing, TypePong:
		return 8, true
	case TypeStarted, TypeRefused, TypeCancel:
		return maxSmall, true
	case TypeData:
		return MaxData, true
	case TypeCredit, TypeResize:
		return 4, true
	case TypeEOF, TypeStop:
		return 0, true
	}
	return 0, false
}

// ErrProtocol is wrapped by the error of every violation of the protocol. The
// connection must not be used after one.
var ErrProtocol = errors.New("guest protocol violated")

// Frame is one frame. How long Payload is valid depends on the frame's
// producer.
type Frame struct {
	Stream  uint32
	Type    Type
	Channel uint8
	Payload []byte
}

func (f Frame) encodeHeader() (h [HeaderSize]byte) {
	binary.BigEndian.PutUint32(h[0:], uint32(len(f.Payload)))
	binary.BigEndian.PutUint32(h[4:], f.Stream)
	h[8] = byte(f.Type)
	h[9] = f.Channel
	return h
}

// checkHeader checks a header without knowing the streams.
func checkHeader(length int, stream uint32, typ Type, channel uint8) error {
	bound, ok := typ.maxPayload()
	switch {
	case !ok:
		return fmt.Errorf("%w: unknown frame type %d", ErrProtocol, typ)
	case length > bound:
		return fmt.Errorf("%w: frame type %d has %d bytes, may have %d", ErrProtocol, typ, length, bound)
	case channel > 2:
		return fmt.Errorf("%w: channel %d", ErrProtocol, channel)
	}
	connection := typ <= TypePong
	if connection != (stream == 0) {
		return fmt.Errorf("%w: frame type %d on stream %d", ErrProtocol, typ, stream)
	}
	exact := typ == TypePing || typ == TypePong || typ == TypeCredit || typ == TypeResize
	if exact && length != bound {
		return fmt.Errorf("%w: frame type %d has %d bytes, must have %d", ErrProtocol, typ, length, bound)
	}
	if typ == TypeData && length == 0 {
		return fmt.Errorf("%w: empty data frame", ErrProtocol)
	}
	return nil
}

// Reader decodes frames. It is not safe for concurrent use.
type Reader struct {
	src  io.Reader
	head [HeaderSize]byte
	buf  []byte
}

// NewReader returns a Reader of src, which it never closes. It reads no more of
// src than the returned frames need.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next reads one frame, whose payload is valid until the next call. It returns
// io.EOF at the end between frames, an error wrapping io.ErrUnexpectedEOF
// inside one, or [ErrProtocol]. After an error the Reader must not be used.
func (r *Reader) Next() (Frame, error) {
	if _, err := io.ReadFull(r.src, r.head[:]); err != nil {
		if err == io.EOF {
			return Frame{}, io.EOF
		}
		return Frame{}, fmt.Errorf("read frame header: %w", err)
	}
	length := binary.BigEndian.Uint32(r.head[0:])
	f := Frame{
		Stream:  binary.BigEndian.Uint32(r.head[4:]),
		Type:    Type(r.head[8]),
		Channel: r.head[9],
	}
	if length > MaxControl {
		return Frame{}, fmt.Errorf("%w: frame of %d bytes", ErrProtocol, length)
	}
	if err := checkHeader(int(length), f.Stream, f.Type, f.Channel); err != nil {
		return Frame{}, err
	}
	f.Payload = r.buffer(int(length))
	if _, err := io.ReadFull(r.src, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, fmt.Errorf("read frame payload: %w", err)
	}
	return f, nil
}

// buffer returns n bytes of the Reader's buffer. It drops the buffer of a rare
// large frame at the next one, so an idle Reader stays small.
func (r *Reader) buffer(n int) []byte {
	const keep = MaxData
	if cap(r.buf) >= n && (cap(r.buf) <= keep || n > keep) {
		r.buf = r.buf[:n]
		return r.buf
	}
	r.buf = make([]byte, n, max(n, 512))
	return r.buf
}

// Block is a buffer that can be sent as data frames without a copy: before each
// [MaxData] bytes there is room for a header. It is not safe for concurrent
// use.
type Block struct {
	buf  []byte
	size int
}

// NewBlock returns a Block for size bytes of payload.
func NewBlock(size int) *Block {
	pieces := (size + MaxData - 1) / MaxData
	return &Block{buf: make([]byte, size+pieces*HeaderSize), size: size}
}

// Size returns how many bytes of payload fit.
func (b *Block) Size() int { return b.size }

// pieceStride is the distance between a Block's headers.
const pieceStride = HeaderSize + MaxData

// Pieces returns the parts of the block for the first n bytes of payload, in
// order, each of at most MaxData bytes.
func (b *Block) Pieces(n int) [][]byte { return b.Range(0, n) }

// Range is Pieces for n bytes from at on. The first piece is the rest of the
// piece that contains at.
func (b *Block) Range(at, n int) [][]byte {
	pieces := make([][]byte, 0, n/MaxData+2)
	for end := at + n; at < end; {
		skip := at % MaxData
		from := at/MaxData*pieceStride + HeaderSize + skip
		length := min(end-at, MaxData-skip)
		pieces = append(pieces, b.buf[from:from+length])
		at += length
	}
	return pieces
}

// encodeFrames encodes n bytes from at on in place as data frames, and returns
// them. at must be the beginning of a piece.
func (b *Block) encodeFrames(stream uint32, channel uint8, at, n int) []byte {
	first := at / MaxData * pieceStride
	end := first
	for _, piece := range b.Range(at, n) {
		h := Frame{Stream: stream, Type: TypeData, Channel: channel, Payload: piece}.encodeHeader()
		copy(b.buf[end:], h[:])
		end += HeaderSize + len(piece)
	}
	return b.buf[first:end]
}

// SendBlock writes n bytes of a block, from at on, as data frames. If at is the
// beginning of a piece, it writes all by one Write, without a copy. Otherwise it
// first sends the rest of that piece. It returns errors as Send does.
func (w *Writer) SendBlock(stream uint32, channel uint8, b *Block, at, n int) error {
	if stream == 0 || channel > 2 || at < 0 || n <= 0 || at+n > b.size {
		return fmt.Errorf("%w: %d bytes of a block of %d on channel %d of stream %d", ErrProtocol, n, b.size, channel, stream)
	}
	if skip := at % MaxData; skip != 0 {
		rest := min(n, MaxData-skip)
		if err := w.Send(Frame{Stream: stream, Type: TypeData, Channel: channel, Payload: b.Range(at, rest)[0]}); err != nil {
			return err
		}
		if at, n = at+rest, n-rest; n == 0 {
			return nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writeFrames(b.encodeFrames(stream, channel, at, n))
}

// Writer encodes frames. It is safe for concurrent use. Each Write of the
// destination gets whole frames.
type Writer struct {
	mu  sync.Mutex
	dst io.Writer
	buf []byte
	err error
}

// NewWriter returns a Writer to dst, which it never closes.
func NewWriter(dst io.Writer) *Writer { return &Writer{dst: dst} }

// Send writes frames, together and in order, by one Write. It does not keep
// payloads. If a frame breaks the bounds, it returns [ErrProtocol] and writes
// nothing. Once the destination has failed, every call returns its error.
func (w *Writer) Send(frames ...Frame) error { return w.SendAfter(nil, frames...) }

// SendAfter is Send, but first calls before, unless it is nil, with the
// Writer's lock held. before must not send.
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

// writeFrames writes encoded frames. The lock must be held.
func (w *Writer) writeFrames(encoded []byte) error {
	if w.err != nil {
		return w.err
	}
	if _, err := w.dst.Write(encoded); err != nil {
		w.err = fmt.Errorf("write frame: %w", err)
	}
	return w.err
}

// SendJSON writes a frame with v as JSON.
func (w *Writer) SendJSON(stream uint32, typ Type, v any) error {
	f, err := JSON(stream, typ, v)
	if err != nil {
		return err
	}
	return w.Send(f)
}

// JSON returns a frame with v as JSON.
func JSON(stream uint32, typ Type, v any) (Frame, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Frame{}, fmt.Errorf("encode frame type %d: %w", typ, err)
	}
	return Frame{Stream: stream, Type: typ, Payload: payload}, nil
}

// SendCredit grants the sender of a channel n more bytes.
func (w *Writer) SendCredit(stream uint32, channel uint8, n uint32) error {
	return w.Send(Frame{
		Stream: stream, Type: TypeCredit, Channel: channel,
		Payload: binary.BigEndian.AppendUint32(nil, n),
	})
}
