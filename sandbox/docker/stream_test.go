package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/pkg/stdcopy"
)

func readStream(r io.Reader) (string, string, error) {
	s := &stream{reader: bufio.NewReader(r)}
	out, err := io.ReadAll(s)
	return string(out), s.Stderr(), err
}

func TestStream(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, tt := range []struct {
		name     string
		in       []byte
		out, err string
		bad      bool
	}{
		{name: "nothing"},
		{name: "one frame", in: frame(1, "hello"), out: "hello"},
		{name: "empty frame", in: append(frame(1, ""), frame(1, "x")...), out: "x"},
		{name: "stderr between", in: bytes.Join([][]byte{frame(1, "a"), frame(2, "oops"), frame(1, "b")}, nil), out: "ab", err: "oops"},
		{name: "long frame", in: frame(1, long), out: long},
		{name: "long stderr is cut", in: append(frame(2, long), frame(1, "x")...), out: "x", err: long[:maxStderr]},
		{name: "engine's own error", in: append(frame(1, "x"), frame(3, "broken")...), out: "x", bad: true},
		{name: "unknown stream", in: frame(4, "x"), bad: true},
		{name: "cut in a header", in: frame(1, "x")[:5], bad: true},
		{name: "not framed", in: []byte("HTTP/1.1 500 no\r\n"), bad: true},
	} {
		for chunks, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			t.Run(tt.name+" "+chunks, func(t *testing.T) {
				out, complaint, err := readStream(wrap(bytes.NewReader(tt.in)))
				if out != tt.out || complaint != tt.err || (err != nil) != tt.bad {
					t.Errorf("read %.40q, complaint %.40q, error %v", out, complaint, err)
				}
			})
		}
	}
}

// FuzzStream compares with the engine's implementation, which drops an
// incomplete frame.
func FuzzStream(f *testing.F) {
	seeds := [][]byte{
		frame(1, "a"), bytes.Join([][]byte{frame(1, "a"), frame(2, "b"), frame(0, "c")}, nil), frame(3, "x"), frame(1, "abc")[:9],
	}
	if len(seeds) == 0 {
		f.Fatal("no seed corpus")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, _, _ := readStream(bytes.NewReader(data))
		if largest(data) > 1<<20 {
			return // it allocates what a header announces
		}
		var want, wantErr bytes.Buffer
		_, _ = stdcopy.StdCopy(&want, &wantErr, bytes.NewReader(data)) // what it read so far counts
		if !strings.HasPrefix(out, want.String()) {
			t.Errorf("read %q, which lacks %q", out, &want)
		}
	})
}

// largest returns the largest length in a header.
func largest(data []byte) (n uint32) {
	for len(data) >= frameHeader {
		length := binary.BigEndian.Uint32(data[4:])
		n = max(n, length)
		data = data[min(uint64(len(data)), frameHeader+uint64(length)):]
	}
	return n
}

func TestStreamCloseUnblocks(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	s := &stream{conn: ours, reader: bufio.NewReader(ours)}
	read := make(chan error)
	go func() {
		_, err := s.Read(make([]byte, 1))
		read <- err
	}()
	must(t, s.Close())
	must(t, s.Close())
	if err := <-read; err == nil {
		t.Error("the read did not fail")
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a write after close did not fail")
	}
}
