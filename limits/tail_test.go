package limits

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	const size = 64 << 10
	tail := Tail{Size: size}
	for i := range 1000 {
		_, _ = io.WriteString(&tail, strings.Repeat(string(rune('a'+i%26)), 997))
	}
	_, _ = tail.Write(bytes.Repeat([]byte("z"), 3))
	if kept := tail.String(); tail.Total() != 997_003 || len(kept) != size || !strings.HasSuffix(kept, "lzzz") || len(tail.kept) > 2*size {
		t.Errorf("kept %d of %d, ends %q", len(kept), tail.Total(), kept[len(kept)-5:])
	}
	_, _ = tail.Write(bytes.Repeat([]byte("y"), 1<<20))
	if kept := tail.String(); len(kept) != size || strings.Trim(kept, "y") != "" {
		t.Errorf("after a long write: kept %d", len(kept))
	}
}
