package ui

import (
	"io"
	"testing"
	"time"
)

func TestAsyncWriterGivesUpAndKeepsOrder(t *testing.T) {
	o := NewAsyncWriter()
	var got []int
	for i := range 100 {
		o.Queue(1, func() { got = append(got, i) })
	}
	if !o.Close(t.Context(), time.Minute, false) {
		t.Fatal("not all was written")
	}
	for i, v := range got {
		if i != v {
			t.Fatalf("write %d came at place %d", v, i)
		}
	}
	held := blocked{make(chan struct{})}
	defer close(held.free)
	o = NewAsyncWriter()
	o.Queue(1, func() { _, _ = io.WriteString(held, "x") })
	if o.Queue(asyncBytes, func() {}) || o.Queue(1, func() {}) {
		t.Error("more than the bound was taken, or something after the gap")
	}
	if o.Close(t.Context(), 10*time.Millisecond, false) {
		t.Error("a writer that is held has written")
	}
}

// blocked is a writer that waits until free is closed.
type blocked struct{ free chan struct{} }

func (b blocked) Write(p []byte) (int, error) {
	<-b.free
	return len(p), nil
}
