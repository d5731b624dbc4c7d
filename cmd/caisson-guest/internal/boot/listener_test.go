package boot

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestListenerEndsSilence checks that bytes come through, and that silence is
// an error unless it has no bound.
func TestListenerEndsSilence(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := &listener{in: r, silence: time.Minute}
	if _, err := w.WriteString("ping"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := l.Read(buf); err != nil || string(buf[:n]) != "ping" {
		t.Fatalf("read %q, %v", buf[:n], err)
	}
	l.silence = time.Millisecond
	if _, err := l.Read(buf); err == nil || !strings.Contains(err.Error(), "silent for 1ms") {
		t.Fatalf("after silence: %v", err)
	}
	l.silence = 0
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(buf); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
}
