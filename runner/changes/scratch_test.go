package changes

import (
	"os"
	"strings"
	"testing"
)

// TestScratchOnFullDisk: what was added before the disk was full stays readable, and memory doesn't
// grow afterwards.
func TestScratchOnFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &scratch{file: full}
	t.Cleanup(func() { _ = full.Close() })
	before, err := s.appendText([]byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.appendText([]byte(strings.Repeat("x", bufferBytes))); err == nil {
		t.Fatal("more than the buffer was added without an error")
	}
	for range 3 {
		if _, err := s.appendText([]byte("after")); err == nil {
			t.Error("text was added after an error")
		}
	}
	if text, err := s.readExtent(before); err != nil || string(text) != "before" {
		t.Errorf("read %q, %v", text, err)
	}
	if len(s.buffer) > len("before") {
		t.Errorf("the buffer has %d bytes", len(s.buffer))
	}
}
