package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// TestSendBlock checks that the frames of any part of a block, in any steps,
// carry its bytes in order within the bound, and that earlier headers don't
// spoil later parts.
func TestSendBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 100, MaxData - 1, MaxData, MaxData + 1, 3*MaxData + 5}).Draw(t, "size")
		b := NewBlock(size)
		var want []byte
		for i, piece := range b.Pieces(size) {
			for j := range piece {
				piece[j] = byte(i + j*7)
			}
			want = append(want, piece...)
		}
		if len(want) != size {
			t.Fatalf("pieces of %d bytes hold %d", size, len(want))
		}
		var stream bytes.Buffer
		w := NewWriter(&stream)
		for at := 0; at < size; {
			n := rapid.IntRange(1, size-at).Draw(t, "n")
			if err := w.SendBlock(7, Stdout, b, at, n); err != nil {
				t.Fatal(err)
			}
			at += n
		}
		var got []byte
		for r := NewReader(&stream); ; {
			f, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || f.Type != TypeData || f.Stream != 7 || f.Channel != Stdout {
				t.Fatalf("%+v, %v", f, err)
			}
			got = append(got, f.Payload...)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came, or others, of %d", len(got), size)
		}
	})
}

// TestSendBlockAtOnce checks that an aligned part is one Write.
func TestSendBlockAtOnce(t *testing.T) {
	var writes countWrites
	if err := NewWriter(&writes).SendBlock(1, Stderr, NewBlock(4*MaxData), MaxData, 3*MaxData); err != nil {
		t.Fatal(err)
	}
	if writes != 1 {
		t.Errorf("%d writes", writes)
	}
}

type countWrites int

func (c *countWrites) Write(p []byte) (int, error) { *c++; return len(p), nil }

func TestSendBlockRefuses(t *testing.T) {
	b := NewBlock(10)
	for _, tt := range []struct {
		stream  uint32
		channel uint8
		at, n   int
	}{{0, 1, 0, 1}, {1, 3, 0, 1}, {1, 1, 0, 11}, {1, 1, 5, 6}, {1, 1, 0, 0}, {1, 1, -1, 1}} {
		if err := NewWriter(io.Discard).SendBlock(tt.stream, tt.channel, b, tt.at, tt.n); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// BenchmarkFrames is only the codec: 64 KiB data frames written and read in
// memory, copied and in place.
func BenchmarkFrames(b *testing.B) {
	block := NewBlock(4 * MaxData)
	payload := make([]byte, MaxData)
	for name, send := range map[string]func(*Writer) error{
		"copied": func(w *Writer) error {
			for range 4 {
				if err := w.Send(Frame{Stream: 1, Type: TypeData, Channel: Stdout, Payload: payload}); err != nil {
					return err
				}
			}
			return nil
		},
		"in-place": func(w *Writer) error { return w.SendBlock(1, Stdout, block, 0, block.Size()) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(block.Size()))
			b.ReportAllocs()
			var stream bytes.Buffer
			w, r := NewWriter(&stream), NewReader(&stream)
			for b.Loop() {
				if err := send(w); err != nil {
					b.Fatal(err)
				}
				for range 4 {
					if _, err := r.Next(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
