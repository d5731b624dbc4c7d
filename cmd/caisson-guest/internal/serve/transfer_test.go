package serve

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// TestTransferPipe checks that a transfer whose other end neither reads nor
// writes ends if others wait, and only then.
func TestTransferPipe(t *testing.T) {
	for name, use := range map[string]func(transferPipe) error{
		"read":  func(p transferPipe) error { _, err := p.Read(make([]byte, 1)); return err },
		"write": func(p transferPipe) error { _, err := p.Write(make([]byte, 1<<20)); return err },
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		var waiting atomic.Int32
		p := transferPipe{map[string]*os.File{"read": r, "write": w}[name], &waiting, 20 * time.Millisecond}
		done := make(chan error, 1)
		go func() { done <- use(p) }()
		select {
		case err := <-done:
			t.Errorf("%s: it ends although nobody waits: %v", name, err)
		case <-time.After(300 * time.Millisecond):
		}
		waiting.Store(1)
		if err := <-done; !errors.Is(err, errStalled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
