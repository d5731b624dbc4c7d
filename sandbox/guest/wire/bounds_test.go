package wire

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestBounds checks that each type is accepted with its largest payload on its
// streams, and not with one byte more.
func TestBounds(t *testing.T) {
	const stream = 5
	for typ, tt := range map[Type]struct {
		stream uint32
		bound  int
		exact  bool
	}{
		TypeConfig: {bound: MaxControl}, TypeHello: {bound: MaxControl},
		TypePing: {bound: 8, exact: true}, TypePong: {bound: 8, exact: true},
		TypeOpen: {stream: stream, bound: MaxControl}, TypeEnd: {stream: stream, bound: MaxControl},
		TypeStarted: {stream: stream, bound: maxSmall}, TypeRefused: {stream: stream, bound: maxSmall}, TypeCancel: {stream: stream, bound: maxSmall},
		TypeData: {stream: stream, bound: MaxData}, TypeCredit: {stream: stream, bound: 4, exact: true},
		TypeEOF: {stream: stream}, TypeStop: {stream: stream},
	} {
		if err := checkHeader(tt.bound, tt.stream, typ, 2); err != nil {
			t.Errorf("type %d with %d bytes: %v", typ, tt.bound, err)
		}
		for _, err := range []error{
			checkHeader(tt.bound+1, tt.stream, typ, 0), checkHeader(tt.bound, stream-tt.stream, typ, 0), checkHeader(tt.bound, tt.stream, typ, 3),
		} {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("type %d is taken beyond its bounds", typ)
			}
		}
		if tt.bound > 0 && (checkHeader(tt.bound-1, tt.stream, typ, 0) != nil) != tt.exact {
			t.Errorf("type %d with a byte less", typ)
		}
	}
}

// TestReaderSpace checks that buffers are reused, except those for rare large
// frames.
func TestReaderSpace(t *testing.T) {
	var r Reader
	for i, tt := range []struct{ n, capacity int }{
		{100, 512},
		{512, 512},
		{600, 600},
		{100, 600},
		{MaxData, MaxData},
		{10, MaxData},
		{MaxData + 5, MaxData + 5},
		{MaxData + 1, MaxData + 5},
		{MaxData, MaxData},
		{MaxData + 5, MaxData + 5},
		{10, 512},
	} {
		if got := r.buffer(tt.n); len(got) != tt.n || cap(got) != tt.capacity {
			t.Errorf("%d: %d bytes of %d, want %+v", i, len(got), cap(got), tt)
		}
	}
}

func TestWriterLetsGo(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	for _, tt := range []struct {
		frames int
		keeps  bool
	}{{1, true}, {2, false}, {1, true}} {
		var frames []Frame
		for range tt.frames {
			frames = append(frames, Frame{Stream: 1, Type: TypeData, Payload: make([]byte, MaxData/2+1)})
		}
		if err := w.Send(frames...); err != nil || (w.buf != nil) != tt.keeps {
			t.Errorf("after %d frames the buffer has %d bytes, %v", tt.frames, cap(w.buf), err)
		}
	}
}

type broken struct{}

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestWriterErrors(t *testing.T) {
	b := NewBlock(2 * MaxData)
	for name, send := range map[string]func(*Writer) error{
		"block":           func(w *Writer) error { return w.SendBlock(1, Stdout, b, 0, 10) },
		"rest of a piece": func(w *Writer) error { return w.SendBlock(1, Stdout, b, 1, MaxData) },
		"JSON":            func(w *Writer) error { return w.SendJSON(1, TypeOpen, Open{}) },
		"credit":          func(w *Writer) error { return w.SendCredit(1, Stdout, 1) },
	} {
		if err := send(NewWriter(broken{})); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out bytes.Buffer
	if err := NewWriter(&out).SendJSON(1, TypeOpen, make(chan int)); err == nil || errors.Is(err, ErrProtocol) || out.Len() != 0 {
		t.Errorf("what is no JSON: %v, %d bytes were sent", err, out.Len())
	}
	if err := NewWriter(&out).SendJSON(1, TypeCancel, Cancel{}); err != nil {
		t.Fatal(err)
	}
	if f, err := NewReader(&out).Next(); err != nil || f.Type != TypeCancel || string(f.Payload) != "{}" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestBlockPieces(t *testing.T) {
	for size, pieces := range map[int]int{1: 1, MaxData - 1: 1, MaxData: 1, MaxData + 1: 2, 2 * MaxData: 2} {
		if got := len(NewBlock(size).buf); got != size+pieces*HeaderSize {
			t.Errorf("a block of %d bytes has %d", size, got)
		}
	}
	var lengths []int
	for _, p := range NewBlock(2*MaxData).Range(100, MaxData) {
		lengths = append(lengths, len(p))
	}
	if diff := cmp.Diff([]int{MaxData - 100, 100}, lengths); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
}

func TestTakeOne(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	if n := NewCredit().Take(1, stop); n != 1 {
		t.Errorf("took %d of a whole window", n)
	}
}

// TestQueueWakes checks that a waiting reader sees the end, and a break.
func TestQueueWakes(t *testing.T) {
	for name, end := range map[string]func(*Queue){"end": func(q *Queue) { _ = q.End() }, "break": (*Queue).Break} {
		synctest.Test(t, func(t *testing.T) {
			q := NewQueue()
			got := make(chan []byte)
			go func() { got <- q.Next() }()
			synctest.Wait()
			end(q)
			if b := <-got; b != nil {
				t.Errorf("%s: %q", name, b)
			}
		})
	}
}

func TestQueueGrantsHalfAWindow(t *testing.T) {
	q := NewQueue()
	if err := q.Push(make([]byte, Window)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		n    int
		want uint32
	}{{Window/2 - 1, 0}, {1, Window / 2}, {Window / 2, Window / 2}} {
		if got := q.Done(tt.n); got != tt.want {
			t.Errorf("Done(%d) grants %d, want %d", tt.n, got, tt.want)
		}
	}
	for range 2 {
		if n, ended := q.Total(); n != Window || ended {
			t.Errorf("total %d, ended %t", n, ended)
		}
	}
}

func TestConfigBounds(t *testing.T) {
	good := Config{Protocol: Version, CommandUID: 10001, CommandGID: 10001, GIDBase: 30000, GIDCount: 1, Workspace: "/workspace"}
	for name, tt := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"as it is":         {change: func(*Config) {}, ok: true},
		"silence":          {change: func(c *Config) { c.SilenceMS = -1 }},
		"highest gids":     {change: func(c *Config) { c.GIDBase, c.GIDCount = 1<<31-2, 1 }, ok: true},
		"lowest gids":      {change: func(c *Config) { c.GIDBase = 1 }, ok: true},
		"too high":         {change: func(c *Config) { c.GIDBase, c.GIDCount = 1<<31-1, 1 }},
		"first of them":    {change: func(c *Config) { c.CommandGID = 30000 }},
		"last of them":     {change: func(c *Config) { c.GIDCount, c.CommandGID = 5, 30004 }},
		"after the last":   {change: func(c *Config) { c.GIDCount, c.CommandGID = 5, 30005 }, ok: true},
		"before the first": {change: func(c *Config) { c.GIDCount, c.CommandGID = 5, 29999 }, ok: true},
		"one user":         {change: func(c *Config) { c.SingleUID, c.CommandGID = true, 30000 }, ok: true},
		"one user, no ids": {change: func(c *Config) { *c = Config{Protocol: Version, SingleUID: true, Workspace: "/"} }, ok: true},
	} {
		c := good
		tt.change(&c)
		if err := c.Validate(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
