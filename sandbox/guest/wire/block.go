package wire

import "fmt"

// Block is a buffer whose content can be sent as data frames without a copy:
// before each [MaxData] bytes there is room for a header. One goroutine uses it.
type Block struct {
	buf  []byte
	size int
}

// NewBlock returns a Block for size bytes of payload.
func NewBlock(size int) *Block {
	pieces := (size + MaxData - 1) / MaxData
	return &Block{buf: make([]byte, size+pieces*HeaderSize), size: size}
}

// Size is the number of bytes of payload that fit.
func (b *Block) Size() int { return b.size }

// pieceStride is the distance between the headers of a Block.
const pieceStride = HeaderSize + MaxData

// Pieces returns the parts of the block for the first n bytes of payload, in
// order, each of at most MaxData bytes: to read into, or that were read.
func (b *Block) Pieces(n int) [][]byte { return b.Range(0, n) }

// Range is Pieces from byte at on: its first piece is the rest of the one that
// at lies in.
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

// encodeFrames encodes n bytes from at on as data frames in place and returns them.
// At must be at the begin of a piece.
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

// SendBlock writes n bytes of a block, from byte at on, as data frames. Where at
// is at the begin of a piece nothing is copied and all goes out by one Write;
// elsewhere the rest of the piece that it lies in goes before. It fails as Send
// does.
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
