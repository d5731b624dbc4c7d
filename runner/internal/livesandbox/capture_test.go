package livesandbox

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// numbered gives n bytes that differ by place.
func numbered(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte('a' + i*7/26%26)
	}
	return out
}

func TestCaptureKeepsBothEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		live, cut, tail int // bytes that arrive, that the guest left out, that it kept
		pieces          int
	}{
		"nothing":              {0, 0, 0, 1},
		"short":                {100, 0, 0, 10},
		"not worth a file":     {spillFrom, 0, 0, 7},
		"worth a file":         {spillFrom + 1, 0, 0, 7},
		"exactly the head":     {captureBytes, 0, 0, 1000},
		"one more":             {captureBytes + 1, 0, 0, 1 << 20},
		"long, in bits":        {10 * captureBytes, 0, 0, 17},
		"long, at once":        {10 * captureBytes, 0, 0, 1 << 20},
		"guest kept all":       {2 * captureBytes, 0, 500, 4096},
		"guest cut":            {2 * captureBytes, 1_000_000, captureBytes, 4096},
		"guest cut, tail tiny": {2 * captureBytes, 10, 5, 4096},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "spill"), 0o700); err != nil {
				t.Fatal(err)
			}
			whole := numbered(tc.live + tc.cut + tc.tail)
			var watched bytes.Buffer
			c := newSpiller(dir, nil).newCapture(1, "stdout", &watched)
			for rest := whole[:tc.live]; len(rest) > 0; {
				n := min(tc.pieces, len(rest))
				if got, err := c.Write(rest[:n]); got != n || err != nil {
					t.Fatalf("write: %d, %v", got, err)
				}
				rest = rest[n:]
			}
			got := c.finishCapture(sandbox.Stream{Total: int64(len(whole)), Live: int64(tc.live), Tail: whole[tc.live+tc.cut:]})
			if !bytes.Equal(watched.Bytes(), whole[:tc.live]) {
				t.Error("what was watched is not what arrived")
			}
			if !bytes.HasPrefix(whole, got.Head) || !bytes.HasSuffix(whole, got.Tail) || len(got.Head)+len(got.Tail) > len(whole) {
				t.Errorf("head of %d and tail of %d bytes are not the ends of %d", len(got.Head), len(got.Tail), len(whole))
			}
			if want := min(captureBytes, len(whole)); len(got.Head) != min(want, tc.live) || int(got.Total) != len(whole) {
				t.Errorf("head of %d bytes, total %d", len(got.Head), got.Total)
			}
			spilled := tc.live > spillFrom
			if (got.Spill != "") != spilled {
				t.Fatalf("spilled to %q", got.Spill)
			}
			if spilled {
				want := whole[:tc.live]
				if tc.cut == 0 {
					want = whole
				}
				if text, err := os.ReadFile(filepath.Join(dir, got.Spill)); err != nil || !bytes.Equal(text, want) {
					t.Errorf("spilled %d bytes, want %d: %v", len(text), len(want), err)
				}
				kept, err := c.spill.Output(got.Handle)
				if err != nil {
					t.Fatal(err)
				}
				defer kept.Close()
				if kept.Size != int64(len(want)) || kept.Total != int64(len(whole)) || kept.Whole != (tc.cut == 0) || kept.Redacted {
					t.Errorf("kept %+v", kept)
				}
			}
		})
	}
}

func TestSpillingIsBounded(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "spill"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newSpiller(dir, nil)
	s.left = 3 * captureBytes
	for range 3 {
		c := s.newCapture(0, "stdout", io.Discard)
		_, _ = c.Write(numbered(captureBytes))
		_, _ = c.Write(numbered(captureBytes))
		c.finishCapture(sandbox.Stream{Total: 2 * captureBytes, Live: 2 * captureBytes})
	}
	total := int64(0)
	files, err := filepath.Glob(filepath.Join(dir, "spill", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 3*captureBytes || total < 2*captureBytes {
		t.Errorf("spilled %d bytes of at most %d", total, 3*captureBytes)
	}
}
