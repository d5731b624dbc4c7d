package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools/workspace"
)

// TestSnapshotKeepsNoLongTargets: 10,000 links with targets of 4,000 bytes are
// 40 MB of the agent's choice; what is kept of them is ours.
func TestSnapshotKeepsNoLongTargets(t *testing.T) {
	const links = 10_000
	dir := t.TempDir()
	long := strings.Repeat("x", 4000)
	for i := range links {
		if err := os.Symlink(long, filepath.Join(dir, fmt.Sprintf("%05d", i))); err != nil {
			t.Fatal(err)
		}
	}
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	r, err := workspace.NewReader(held, workspace.ReaderOptions{MaxEntries: snapshotEntries})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	s, err := takeSnapshot(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	grown := heap() - before
	t.Logf("%d bytes are held of %d links", grown, links)
	if len(s.files) != links || s.incomplete() || grown > 10<<20 {
		t.Errorf("%d bytes are held of %d links, incomplete %v", grown, len(s.files), s.incomplete())
	}
	same, err := takeSnapshot(t.Context(), r)
	if err != nil || len(s.compare(same)) != 0 {
		t.Errorf("nothing has changed: %v, %v", s.compare(same), err)
	}
	runtime.KeepAlive(s)
}

// TestLongTargetsDiffer: by their last byte too, and none is a short one.
func TestLongTargetsDiffer(t *testing.T) {
	long := strings.Repeat("x", 4000)
	seen := map[stamp]string{}
	for _, target := range []string{"", "a", strings.Repeat("x", 256), strings.Repeat("x", 257), long, long[1:] + "y", long + "x"} {
		s := stampOf(workspace.Entry{Type: workspace.TypeLink, Target: target})
		if was, ok := seen[s]; ok {
			t.Errorf("targets of %d and %d bytes have one stamp", len(was), len(target))
		}
		seen[s] = target
		if s != stampOf(workspace.Entry{Type: workspace.TypeLink, Target: strings.Clone(target)}) {
			t.Errorf("a target of %d bytes has two stamps", len(target))
		}
	}
}
