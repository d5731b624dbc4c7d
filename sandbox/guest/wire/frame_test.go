package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func encode(t testing.TB, frames ...Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := NewWriter(&b).Send(frames...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFrames(t *testing.T) {
	frames := []Frame{
		{Type: TypePing, Payload: []byte("12345678")},
		{Stream: 1, Type: TypeOpen, Payload: []byte(`{}`)},
		{Stream: 1, Type: TypeData, Channel: 2, Payload: bytes.Repeat([]byte{0, 255}, MaxData/2)},
		{Stream: 1, Type: TypeEOF, Channel: 1, Payload: []byte{}},
		{Stream: 1<<32 - 1, Type: TypeCredit, Payload: []byte{0, 0, 1, 0}},
		{Stream: 7, Type: TypeEnd, Payload: bytes.Repeat([]byte{' '}, MaxControl)},
		{Stream: 7, Type: TypeStop, Payload: []byte{}},
		{Stream: 7, Type: TypeResize, Payload: TerminalSize{Rows: 1, Columns: 1<<16 - 1}.Encode()},
	}
	r := NewReader(bytes.NewReader(encode(t, frames...)))
	for i, want := range frames {
		got, err := r.Next()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("frame %d: %d bytes, want %d", i, len(got.Payload), len(want.Payload))
		}
		got.Payload, want.Payload = nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("frame %d (-want +got):\n%s", i, diff)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// bad are frames that neither side may send or accept.
var bad = map[string]Frame{
	"unknown type":       {Stream: 1, Type: 99},
	"type zero":          {Stream: 1},
	"channel":            {Stream: 1, Type: TypeData, Channel: 3, Payload: []byte("x")},
	"data too long":      {Stream: 1, Type: TypeData, Payload: make([]byte, MaxData+1)},
	"empty data":         {Stream: 1, Type: TypeData},
	"control too long":   {Stream: 1, Type: TypeOpen, Payload: make([]byte, MaxControl+1)},
	"started too long":   {Stream: 1, Type: TypeStarted, Payload: make([]byte, maxSmall+1)},
	"short ping":         {Type: TypePing, Payload: make([]byte, 7)},
	"long pong":          {Type: TypePong, Payload: make([]byte, 9)},
	"short resize":       {Stream: 1, Type: TypeResize, Payload: make([]byte, 3)},
	"short credit":       {Stream: 1, Type: TypeCredit, Payload: make([]byte, 3)},
	"eof with payload":   {Stream: 1, Type: TypeEOF, Payload: []byte{0}},
	"ping on a stream":   {Stream: 1, Type: TypePing, Payload: make([]byte, 8)},
	"data on connection": {Type: TypeData, Payload: []byte("x")},
}

func TestBadFrames(t *testing.T) {
	for name, f := range bad {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			good := Frame{Stream: 1, Type: TypeEOF}
			if err := NewWriter(&out).Send(good, f); !errors.Is(err, ErrProtocol) || out.Len() != 0 {
				t.Errorf("sent with %v, %d bytes", err, out.Len())
			}
			h := f.encodeHeader()
			if _, err := NewReader(bytes.NewReader(append(h[:], f.Payload...))).Next(); !errors.Is(err, ErrProtocol) {
				t.Errorf("read with %v", err)
			}
		})
	}
}

// TestLengthBeforeAllocation checks that a too large length costs nothing.
func TestLengthBeforeAllocation(t *testing.T) {
	for _, length := range []uint32{MaxControl + 1, 1 << 31, 1<<32 - 1} {
		h := Frame{Stream: 1, Type: TypeOpen}.encodeHeader()
		binary.BigEndian.PutUint32(h[:], length)
		allocated := testing.AllocsPerRun(10, func() {
			if _, err := NewReader(bytes.NewReader(h[:])).Next(); !errors.Is(err, ErrProtocol) {
				t.Errorf("length %d: %v", length, err)
			}
		})
		if allocated > 10 {
			t.Errorf("length %d: %v allocations", length, allocated)
		}
	}
}

func TestCutFrames(t *testing.T) {
	whole := encode(t, Frame{Stream: 1, Type: TypeData, Payload: []byte("hello")})
	for n := 1; n < len(whole); n++ {
		_, err := NewReader(bytes.NewReader(whole[:n])).Next()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

// TestReaderLetsGo checks that one large frame doesn't make an idle reader
// large.
func TestReaderLetsGo(t *testing.T) {
	r := NewReader(bytes.NewReader(encode(t,
		Frame{Stream: 1, Type: TypeOpen, Payload: make([]byte, MaxControl)},
		Frame{Stream: 1, Type: TypeData, Payload: []byte("x")},
	)))
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(r.buf) > MaxData {
		t.Errorf("it keeps %d bytes", cap(r.buf))
	}
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, errors.New("broken")
	}
	return len(p), nil
}

func TestWriterStaysBroken(t *testing.T) {
	f := Frame{Stream: 1, Type: TypeEOF}
	w := NewWriter(&failing{after: 1})
	for i, broken := range []bool{false, true, true} {
		if err := w.Send(f); (err != nil) != broken {
			t.Errorf("frame %d: %v", i, err)
		}
	}
}

// TestWriterMixesNothing sends from many goroutines.
func TestWriterMixesNothing(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	var senders sync.WaitGroup
	const each = 200
	for s := range uint32(8) {
		senders.Go(func() {
			for i := range each {
				payload := bytes.Repeat([]byte{byte(s)}, 1+i)
				if err := w.Send(Frame{Stream: s + 1, Type: TypeData, Payload: payload}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	r := NewReader(&b)
	next := map[uint32]int{}
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		next[f.Stream]++
		if len(f.Payload) != next[f.Stream] || bytes.Count(f.Payload, []byte{byte(f.Stream - 1)}) != len(f.Payload) {
			t.Fatalf("stream %d: frame %d has %d bytes", f.Stream, next[f.Stream], len(f.Payload))
		}
	}
	for s, n := range next {
		if n != each {
			t.Errorf("stream %d: %d frames", s, n)
		}
	}
}

// FuzzReader checks that the reader accepts only frames that a writer would
// send.
func FuzzReader(f *testing.F) {
	seeds := [][]byte{
		{},
		encode(f, Frame{Type: TypePing, Payload: []byte("12345678")}),
		encode(f, Frame{Stream: 1, Type: TypeData, Channel: 1, Payload: []byte("hello")}, Frame{Stream: 1, Type: TypeEOF, Channel: 1}),
		encode(f, Frame{Stream: 3, Type: TypeCredit, Payload: []byte{0, 1, 0, 0}}),
		binary.BigEndian.AppendUint32(nil, 1<<32-1),
		[]byte(strings.Repeat("A", 64)),
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		var again bytes.Buffer
		for {
			frame, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrProtocol) {
					t.Fatalf("error is %v", err)
				}
				break
			}
			if err := NewWriter(&again).Send(frame); err != nil {
				t.Fatalf("accepted %+v, which can't be sent: %v", frame, err)
			}
		}
		if !bytes.HasPrefix(data, again.Bytes()) {
			t.Fatal("what was accepted is not what came in")
		}
	})
}
