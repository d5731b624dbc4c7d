package changes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/workspace"
)

// reference is a session's basis for comparison, taken by the simplest possible walk.
type reference struct {
	files map[string]referenceFile
	whole bool
	taken int64
}

type referenceFile struct {
	size         int64
	mode         uint32
	mtime, ctime int64
	inode        uint64
	target       string
	content      string
}

// takeReference reads a whole directory.
func takeReference(t *testing.T, root string) *reference {
	t.Helper()
	ref := &reference{files: map[string]referenceFile{}, whole: true}
	var read func(rel string)
	read = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(root, rel))
		if err = errors.Join(err, unix.Faccessat(unix.AT_FDCWD, filepath.Join(root, rel), unix.X_OK, unix.AT_EACCESS)); err != nil {
			ref.whole = false
			return
		}
		for _, e := range entries {
			p, abs := path.Join(rel, e.Name()), filepath.Join(root, rel, e.Name())
			if e.Name() == ".git" {
				continue
			}
			if e.IsDir() {
				read(p)
				continue
			}
			var st unix.Stat_t
			if err := unix.Lstat(abs, &st); err != nil {
				t.Fatal(err)
			}
			f := referenceFile{size: st.Size, mode: st.Mode, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), inode: st.Ino}
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFLNK:
				f.target, err = os.Readlink(abs)
			case unix.S_IFREG:
				var content []byte
				content, err = os.ReadFile(abs)
				f.content = string(content)
			}
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				t.Fatal(err)
			}
			ref.files[p] = f
			ref.taken = max(ref.taken, f.ctime)
		}
	}
	read(".")
	return ref
}

func (ref *reference) equals(other *reference) bool {
	return ref.whole == other.whole && maps.Equal(ref.files, other.files)
}

// compare returns the differences between two walks of r's directory.
func (ref *reference) compare(t *testing.T, r *workspace.Reader, now *reference, images *Preimages) Differences {
	t.Helper()
	var list changeList
	note := func(p, change string, f referenceFile) {
		c := record.Changed{Path: p, Change: change, Size: f.size}
		target := ""
		if change != "deleted" && f.mode&unix.S_IFMT == unix.S_IFLNK && leadsOut(t.Context(), r, p, f.target) {
			target = f.target
		}
		list.addChange(c)
		if h, ok := hostExecuted(c, target); ok {
			list.addExecuted(h)
		}
	}
	for p, f := range now.files {
		was, ok := ref.files[p]
		switch {
		case ok && was == f:
		case ok && was.mode == f.mode && f.mode&unix.S_IFMT == unix.S_IFREG && was.content == f.content && was.size == f.size:
		case ok:
			note(p, "modified", f)
		case ref.whole || f.ctime > ref.taken:
			note(p, "added", f)
		}
	}
	for p := range ref.files {
		if _, ok := now.files[p]; ok {
			continue
		}
		if st, err := statEntry(t.Context(), r, p); now.whole || err == nil && st == nil {
			note(p, "deleted", referenceFile{})
		}
	}
	list.sortLists()
	d := Differences{Incomplete: !ref.whole || !now.whole}
	var patch strings.Builder
	for i := range list.changed {
		c := &list.changed[i]
		text, added, removed, ok := images.diffFile(t.Context(), r, *c, func(p, _ string) ([]byte, bool, bool) {
			was, ok := ref.files[p]
			if !ok {
				return nil, true, ref.whole
			}
			return []byte(was.content), false, was.mode&unix.S_IFMT == unix.S_IFREG
		})
		if ok {
			c.HasDiff, c.Insertions, c.Deletions, c.Size = true, added, removed, 0
			patch.WriteString(text)
		}
	}
	d.Patch = patch.String()
	d.setList(&list)
	return d
}

// sessionTree is a directory that a random session changes.
type sessionTree struct {
	rand *rand.Rand
	root string
}

// list returns the paths of all directories, or of all other entries.
func (s *sessionTree) list(dirs bool) (out []string) {
	_ = filepath.WalkDir(s.root, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() == dirs && (dirs || e.Type().IsRegular() || e.Type()&fs.ModeSymlink != 0) {
			out = append(out, p)
		}
		return nil
	})
	return out
}

// pick returns one of the entries; ok is false if there is none.
func (s *sessionTree) pick(dirs bool) (p string, ok bool) {
	all := s.list(dirs)
	if len(all) == 0 {
		return "", false
	}
	return all[s.rand.IntN(len(all))], true
}

var treeNames = []string{"a", "b", "c", "Makefile", "package.json", ".hg", ".GIT", ".git", "\xff\xfe", "new\nline", "d d", ".envrc"}

// name returns a path in some directory; it may exist.
func (s *sessionTree) name() string {
	dir, _ := s.pick(true)
	return filepath.Join(dir, treeNames[s.rand.IntN(len(treeNames))])
}

func (s *sessionTree) text() []byte {
	return fmt.Appendf(nil, "%d\n%d\n", s.rand.IntN(3), s.rand.IntN(3))
}

// grow adds files and directories. Symlinks out of the tree have targets that can't be created, since
// writing to a file follows them.
func (s *sessionTree) grow(n int) {
	for range n {
		switch s.rand.IntN(6) {
		case 0, 1:
			_ = os.Mkdir(s.name(), 0o755)
		case 2:
			_ = os.Symlink([]string{"a", "../b", "/nonexistent/out", "c/d"}[s.rand.IntN(4)], s.name())
		default:
			_ = os.WriteFile(s.name(), s.text(), []fs.FileMode{0o644, 0o600, 0o755}[s.rand.IntN(3)])
		}
	}
}

// attacks are ways to change a tree. Each changes a comparison's lists in some sessions.
var attacks = []struct {
	name   string
	change func(s *sessionTree, p, other, dir string)
}{
	{"same content", func(_ *sessionTree, p, _, _ string) {
		if text, err := os.ReadFile(p); err == nil {
			_ = os.WriteFile(p, text, 0o644)
		}
	}},
	{"same size and time", func(_ *sessionTree, p, _, _ string) {
		info, err := os.Lstat(p)
		if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
			return
		}
		_ = os.WriteFile(p, []byte(strings.Repeat("z", int(info.Size()))), 0o644)
		_ = os.Chtimes(p, info.ModTime(), info.ModTime())
	}},
	{"mode", func(_ *sessionTree, p, _, _ string) { _ = unix.Chmod(p, 0o4711) }},
	{"time", func(_ *sessionTree, p, _, _ string) { _ = os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)) }},
	{"rename over", func(_ *sessionTree, p, other, _ string) { _ = os.Rename(other, p) }},
	{"exchange", func(_ *sessionTree, p, other, _ string) {
		_ = unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
	}},
	{"hard link", func(s *sessionTree, p, _, _ string) { _ = os.Link(p, s.name()) }},
	{"new in its place", func(_ *sessionTree, p, _, _ string) {
		text, err := os.ReadFile(p)
		if err == nil && os.Remove(p) == nil {
			_ = os.WriteFile(p, append(text, 'x'), 0o644)
		}
	}},
	{"move directory", func(s *sessionTree, _, _, dir string) { _ = os.Rename(dir, s.name()) }},
	{"swap directories", func(s *sessionTree, _, _, dir string) {
		other, _ := s.pick(true)
		_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
	}},
	{"symlink", func(_ *sessionTree, p, _, _ string) {
		_ = os.Remove(p)
		_ = os.Symlink("/nonexistent/other", p)
	}},
	{"file becomes directory", func(s *sessionTree, p, _, _ string) {
		if os.Remove(p) == nil && os.Mkdir(p, 0o755) == nil {
			_ = os.WriteFile(filepath.Join(p, "in"), s.text(), 0o644)
		}
	}},
	{"directory becomes file", func(s *sessionTree, _, _, dir string) {
		if dir != s.root && os.RemoveAll(dir) == nil {
			_ = os.WriteFile(dir, s.text(), 0o644)
		}
	}},
	{"delete", func(_ *sessionTree, p, _, _ string) { _ = os.Remove(p) }},
	{"add", func(s *sessionTree, _, _, _ string) { s.grow(3) }},
	{"close directory", func(s *sessionTree, _, _, dir string) {
		if dir != s.root && os.Geteuid() != 0 {
			_ = os.Chmod(dir, fs.FileMode(s.rand.IntN(8))<<6)
		}
	}},
	{"open directory", func(_ *sessionTree, _, _, dir string) { _ = os.Chmod(dir, 0o755) }},
}

// TestComparisonsEqualTheReference changes random trees, and compares the results with a walk that
// keeps everything in a map. As root it also runs as another user, to whom directories can be
// closed.
func TestComparisonsEqualTheReference(t *testing.T) {
	piece := pieceBytes
	t.Cleanup(func() { pieceBytes = piece })
	base, err := os.MkdirTemp("", "changes-") //nolint:usetesting // closed directories in it are opened before its removal
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("chmod", "-R", "u+rwx", base).Run()
		_ = os.RemoveAll(base)
	})
	type session struct {
		*sessionTree
		r   *workspace.Reader
		ref *reference
		f   *FileStates
	}
	var sessions []session
	for seed := range uint64(200) {
		s := &sessionTree{rand: rand.New(rand.NewPCG(seed, 0)), root: filepath.Join(base, fmt.Sprint(seed))}
		if err := os.Mkdir(s.root, 0o755); err != nil {
			t.Fatal(err)
		}
		s.grow(5 + s.rand.IntN(60))
		if dir, ok := s.pick(true); ok && seed%4 == 0 && os.Geteuid() != 0 && dir != s.root {
			_ = os.Chmod(dir, 0)
		}
		sessions = append(sessions, session{sessionTree: s})
	}
	time.Sleep(10 * time.Millisecond) // so that a later change has another time
	for i := range sessions {
		s := &sessions[i]
		pieceBytes = []int{1, 40, piece}[i%3]
		s.r, s.ref = openReader(t, s.root), takeReference(t, s.root)
		if s.f, err = TakeFileStates(t.Context(), s.r, base, Look{}); err != nil {
			t.Fatal(err)
		}
		if err := s.f.KeepContents(t.Context(), s.r, false); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(10 * time.Millisecond)
	found, incomplete := map[string]int{}, 0
	for i, s := range sessions {
		for range s.rand.IntN(4) {
			a := attacks[s.rand.IntN(len(attacks))]
			p, _ := s.pick(false)
			other, _ := s.pick(false)
			dir, _ := s.pick(true)
			before := takeReference(t, s.root)
			if a.change(s.sessionTree, p, other, dir); !before.equals(takeReference(t, s.root)) {
				found[a.name]++
			}
		}
		images := NewPreimages(base)
		now := takeReference(t, s.root)
		want := s.ref.compare(t, s.r, now, images)
		if want.Incomplete {
			incomplete++
		}
		got, err := s.f.Compare(t.Context(), s.r, images, Look{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("session %d (-reference +got):\n%s", i, diff)
		}
		for p, is := range now.files {
			st, err := statEntry(t.Context(), s.r, p)
			if err != nil {
				t.Fatal(err)
			}
			if was, ok := s.ref.files[p]; s.f.isFresh(p, st) != (ok && was == is) {
				t.Errorf("session %d: %q is fresh: %v", i, p, s.f.isFresh(p, st))
			}
		}
		if err := s.f.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("changes that the reference finds: %v; %d sessions are incomplete", found, incomplete)
	for _, a := range attacks {
		if found[a.name] == 0 && a.name != "close directory" && a.name != "open directory" {
			t.Errorf("control: the reference never finds %q", a.name)
		}
	}
	if os.Geteuid() != 0 {
		if incomplete == 0 {
			t.Error("control: no directory was closed")
		}
		return
	}
	runAsUser(t)
}

// runAsUser runs the test in a process of another user.
func runAsUser(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "changes-") //nolint:usetesting // another user must reach it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "test")
	text, err := os.ReadFile("/proc/self/exe")
	if err = errors.Join(err, os.WriteFile(program, text, 0o755), os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o755), os.Chown(filepath.Join(dir, "tmp"), 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR="+filepath.Join(dir, "tmp"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as another user: %v\n%s", err, out)
	}
}

// TestManyFilesInOneDirectory changes three of 16,384 files, whose names take several pieces.
func TestManyFilesInOneDirectory(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const files = 1 << 14
	for i := range files {
		if err := unix.Mknod(filepath.Join(dir, fmt.Sprint(i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	r := openReader(t, root)
	f, err := TakeFileStates(t.Context(), r, t.TempDir(), Look{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(filesOf(t, f)) != files+1 {
		t.Error("not all files are known")
	}
	if list := changesSince(t, f, r); len(list) != 0 {
		t.Errorf("nothing has changed: %v", list)
	}
	err = errors.Join(os.Remove(filepath.Join(dir, "7")), os.Chmod(filepath.Join(dir, "9999"), 0o600), os.WriteFile(filepath.Join(dir, "x"), nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"d/7": "deleted", "d/9999": "modified", "d/x": "added"}
	if diff := cmp.Diff(want, changesSince(t, f, r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFilesBeyondTheBounds checks that a workspace with too many files is incomplete, and that none of
// them counts as new.
func TestFilesBeyondTheBounds(t *testing.T) {
	bytes, dirs := maxStateBytes, maxStateDirs
	t.Cleanup(func() { maxStateBytes, maxStateDirs = bytes, dirs })
	root := t.TempDir()
	for i := range 10 {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	r := openReader(t, root)
	for _, set := range []func(){func() {}, func() { maxStateDirs = 3 }, func() { maxStateBytes = 100 }} {
		maxStateBytes, maxStateDirs = bytes, dirs
		set()
		f, err := TakeFileStates(t.Context(), r, t.TempDir(), Look{})
		if err != nil {
			t.Fatal(err)
		}
		bounded := maxStateBytes != bytes || maxStateDirs != dirs
		d, err := f.Compare(t.Context(), r, nil, Look{})
		if err != nil || d.Count.Files != 0 || d.Incomplete != bounded || (len(filesOf(t, f)) < 10) != bounded {
			t.Errorf("%d of 10 files are known: %+v, %v", len(filesOf(t, f)), d, err)
		}
		f.Close()
	}
}
