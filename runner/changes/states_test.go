package changes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/workspace"
)

// TestSnapshotKeepsNoLongTargets: 2,000 links with 4,000-byte targets are 8 MB of the agent's choice,
// which must not be kept in memory.
func TestSnapshotKeepsNoLongTargets(t *testing.T) {
	const links = 2_000
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
	r, err := workspace.NewReader(held, workspace.ReaderOptions{MaxEntries: 500_000})
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
	s, err := TakeFileStates(t.Context(), r, t.TempDir(), Look{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	grown := heap() - before
	t.Logf("%d bytes are held of %d links", grown, links)
	if n := len(filesOf(t, s)); n != links || s.isIncomplete() || grown > 2<<20 {
		t.Errorf("%d bytes are held of %d links, incomplete %v", grown, n, s.isIncomplete())
	}
	if list := changesSince(t, s, r); len(list) != 0 {
		t.Errorf("nothing has changed: %v", list)
	}
	runtime.KeepAlive(s)
}

// TestLongTargetsDiffer even by the last byte, and from short ones.
func TestLongTargetsDiffer(t *testing.T) {
	long := strings.Repeat("x", 4000)
	seen := map[stamp]string{}
	for _, target := range []string{"", "a", strings.Repeat("x", 256), strings.Repeat("x", 257), long, long[1:] + "y", long + "x"} {
		s := stampOf(&workspace.ScanStat{Type: workspace.TypeSymlink, Target: target})
		if was, ok := seen[s]; ok {
			t.Errorf("targets of %d and %d bytes have one stamp", len(was), len(target))
		}
		seen[s] = target
		if s != stampOf(&workspace.ScanStat{Type: workspace.TypeSymlink, Target: strings.Clone(target)}) {
			t.Errorf("a target of %d bytes has two stamps", len(target))
		}
	}
}

// changesSince lists the differences by path.
func changesSince(t *testing.T, f *FileStates, r *workspace.Reader) map[string]string {
	t.Helper()
	list := map[string]string{}
	if _, err := f.compareFiles(t.Context(), r, Look{}, func(c fileChange) { list[c.path] = c.change }); err != nil {
		t.Fatal(err)
	}
	return list
}

func filesOf(t *testing.T, f *FileStates) (names []string) {
	t.Helper()
	for _, at := range f.dirs {
		d, err := f.readFiles(at)
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.offsets {
			name, _ := d.file(i)
			names = append(names, string(name))
		}
	}
	return names
}

func openReader(t *testing.T, dir string) *workspace.Reader {
	t.Helper()
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { held.Close() })
	r, err := workspace.NewReader(held, workspace.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFileStates changes files in every way. A file rewritten with the same content is unchanged, unless
// its content was too large to keep.
func TestFileStates(t *testing.T) {
	dir := t.TempDir()
	script := func(text string) {
		cmd := exec.Command("bash", "-ec", text)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	script(`mkdir -p a/b .git sub/.git; for f in same rewritten replaced content mode gone a/b/deep moved type; do echo "$f" > $f; done
		ln -s same link; ln -s same relink; echo x > .git/config; echo x > sub/.git/x; head -c 300000 /dev/zero > large; : > empty; mkfifo pipe; echo odd > $'\xff\n'`)
	r := openReader(t, dir)
	f, err := TakeFileStates(t.Context(), r, t.TempDir(), Look{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.KeepContents(t.Context(), r, false); err != nil {
		t.Fatal(err)
	}
	script(`echo rewritten > rewritten; cp replaced t; mv t replaced; touch -r same stamp; echo CONTENT > content; touch -r stamp content; rm stamp; chmod 600 mode; rm gone
		echo more > a/b/deep; mv moved moved2; rm type; ln -s same type; ln -sfn empty relink; head -c 300000 /dev/zero > large; : > empty; echo n > new; echo y > .git/config; echo y > sub/.git/x; rm pipe; mkfifo pipe
		rm $'\xff\n'`)
	want := map[string]string{
		"content": "modified", "mode": "modified", "gone": "deleted", "a/b/deep": "modified", "moved": "deleted", "moved2": "added", "type": "modified",
		"relink": "modified", "large": "modified", "new": "added", "pipe": "modified", "\xff\n": "deleted",
	}
	if diff := cmp.Diff(want, changesSince(t, f, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for p, want := range map[string]bool{"same": true, "rewritten": false, "nothing": true, "gone": false, "new": false, "link": true} {
		st, err := statEntry(t.Context(), r, p)
		if err != nil || f.isFresh(p, st) != want {
			t.Errorf("%s: fresh %v, %v", p, !want, err)
		}
	}
	if text, absent, known := f.contentBefore("content", "modified"); string(text) != "content\n" || absent || !known {
		t.Errorf("content was %q, absent %v, known %v", text, absent, known)
	}
	if _, absent, known := f.contentBefore("new", "added"); !absent || !known {
		t.Error("a new file is not known to be one")
	}
	if _, _, known := f.contentBefore("large", "modified"); known {
		t.Error("a large file is kept")
	}
}

// TestUnknownFileStates: if not everything was examined, nothing counts as new, unless its change time
// shows it.
func TestUnknownFileStates(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := openReader(t, dir)
	f, err := TakeFileStates(t.Context(), r, t.TempDir(), Look{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.dirs, f.cut = map[uint64]dirStates{}, true
	if list := changesSince(t, f, r); len(list) != 0 {
		t.Errorf("what may have been there is listed: %v", list)
	}
	for f.taken = time.Now(); ; {
		if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if st, err := r.StatEntry(t.Context(), "b"); err == nil && st.ChangeTime.After(f.taken) {
			break
		}
	}
	if list := changesSince(t, f, r); len(list) != 1 || list["b"] != "added" {
		t.Errorf("changed: %v", list)
	}
	if _, _, known := (&FileStates{}).contentBefore("a", "added"); known {
		t.Error("nothing is known of nothing")
	}
}

// TestReportIsBounded: a report lists some of many changes and counts the rest. Files near the top that
// a host would run are always listed.
func TestReportIsBounded(t *testing.T) {
	var l changeList
	add := func(c record.Changed, target string) {
		if h, ok := hostExecuted(c, target); ok {
			l.addExecuted(h)
		}
	}
	long := strings.Repeat("d/", 500)
	for i := range 20_000 {
		c := record.Changed{Path: fmt.Sprintf("%s%06d.mk", long, i), Change: "added"}
		l.addChange(c)
		add(c, "")
	}
	add(record.Changed{Path: "Makefile", Change: "modified", HasDiff: true, Insertions: 3}, "")
	add(record.Changed{Path: "z", Change: "added"}, "/etc/passwd")
	l.sortLists()
	if n := l.countChanges(); n.Files != 20_000 || n.Uncounted != 20_000 {
		t.Errorf("%+v", n)
	}
	text := 0
	for _, c := range l.changed {
		text += len(c.Path)
	}
	for _, h := range l.executed {
		text += len(h.Path)
	}
	if text > maxReportedText+maxHostExecutedText || len(l.changed)+l.omitted != 20_000 || len(l.executed)+l.executedOmitted != 20_002 {
		t.Errorf("%d bytes, %d and %d are listed, %d and %d are not", text, len(l.changed), len(l.executed), l.omitted, l.executedOmitted)
	}
	for _, want := range []record.HostExecuted{{Path: "Makefile", By: "make"}, {Path: "z", By: bySymlink, Target: "/etc/passwd", Added: true}} {
		if !slices.Contains(l.executed, want) {
			t.Errorf("%+v is not listed", want)
		}
	}
}
