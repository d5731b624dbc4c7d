package overlay

import (
	"encoding/binary"
	"testing"
)

// TestNextNameWithoutInode tests that entries of file systems that report no inodes are kept.
func TestNextNameWithoutInode(t *testing.T) {
	record := func(name string) []byte {
		buf := make([]byte, (19+len(name)+1+7)/8*8) // the inode is 0
		binary.NativeEndian.PutUint16(buf[16:], uint16(len(buf)))
		copy(buf[19:], name)
		return buf
	}
	rest := append(record("one"), record("another one")...)
	for _, want := range []string{"one", "another one"} {
		var got string
		if got, rest = nextName(rest); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if len(rest) > 0 {
		t.Errorf("%d bytes are left", len(rest))
	}
}
