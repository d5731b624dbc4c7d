package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// content describes what a path holds, read without the API.
func (l *layout) content(name string) string {
	fi, err := os.Lstat(l.path(name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "absent"
	case err != nil:
		return err.Error()
	case fi.Mode()&os.ModeSymlink != 0:
		target, _ := os.Readlink(l.path(name))
		return "-> " + target
	case fi.IsDir():
		return "directory"
	}
	b, _ := os.ReadFile(l.path(name))
	return string(b)
}

func TestApply(t *testing.T) {
	big := strings.Repeat("x", MaxWriteBytes+1)
	cases := []struct {
		name string
		op   Op
		want Change
		kind Kind
		// after maps paths to their content afterwards.
		after map[string]string
	}{
		{
			name: "create", op: Op{Kind: OpWrite, Path: "new/deep/f", Content: []byte("x")},
			want: Change{Path: "new/deep/f", Created: true, Bytes: 1}, after: map[string]string{"new/deep/f": "x"},
		},
		{
			name: "create by absolute path", op: Op{Kind: OpWrite, Path: "/workspace/g", Content: []byte("x")},
			want: Change{Path: "g", Created: true, Bytes: 1}, after: map[string]string{"g": "x"},
		},
		{
			name: "overwrite", op: Op{Kind: OpWrite, Path: "dir/../f", Content: []byte("new")},
			want: Change{Path: "f", Bytes: 3, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": "new"},
		},
		{
			name: "overwrite by nothing", op: Op{Kind: OpWrite, Path: "f"},
			want: Change{Path: "f", Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": ""},
		},
		{
			name: "overwrite an empty file", op: Op{Kind: OpWrite, Path: "empty", Content: []byte("x")},
			want: Change{Path: "empty", Bytes: 1, Before: []byte{}, HasBefore: true}, after: map[string]string{"empty": "x"},
		},
		{
			name: "append", op: Op{Kind: OpAppend, Path: "f", Content: []byte("more\n")},
			want: Change{Path: "f", Bytes: 13, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": "old old\nmore\n"},
		},
		{
			name: "append to what is missing", op: Op{Kind: OpAppend, Path: "new/g", Content: []byte("x")},
			want: Change{Path: "new/g", Created: true, Bytes: 1}, after: map[string]string{"new/g": "x"},
		},
		{name: "append to a link", op: Op{Kind: OpAppend, Path: "dir/tof", Content: []byte("x")}, kind: KindNotRegular, after: map[string]string{"f": "old old\n", "dir/tof": "-> ../f"}},
		{name: "patch a link", op: Op{Kind: OpPatch, Path: "dir/tof", Old: "\n", New: "x"}, kind: KindNotRegular, after: map[string]string{"f": "old old\n", "dir/tof": "-> ../f"}},
		{name: "append to what has changed", op: Op{Kind: OpAppend, Path: "f", Content: []byte("x"), IfSHA256: digest("")}, kind: KindConflict, after: map[string]string{"f": "old old\n"}},
		{name: "append to what is too large", op: Op{Kind: OpAppend, Path: "huge", Content: []byte("x")}, kind: KindTooLarge},
		{name: "append too much", op: Op{Kind: OpAppend, Path: "f", Content: []byte(big[:MaxWriteBytes])}, kind: KindTooLarge, after: map[string]string{"f": "old old\n"}},
		{name: "append to a directory", op: Op{Kind: OpAppend, Path: "dir"}, kind: KindIsDir},
		{name: "append outside", op: Op{Kind: OpAppend, Path: "../outside/canary", Content: []byte("x")}, kind: KindEscape},

		{name: "write a directory", op: Op{Kind: OpWrite, Path: "dir"}, kind: KindIsDir},
		{name: "write with a slash", op: Op{Kind: OpWrite, Path: "new/"}, kind: KindIsDir, after: map[string]string{"new": "absent"}},
		{name: "write the workspace", op: Op{Kind: OpWrite, Path: "."}, kind: KindIsDir},
		{name: "write below a file", op: Op{Kind: OpWrite, Path: "f/x"}, kind: KindNotDir},
		{name: "write too much", op: Op{Kind: OpWrite, Path: "g", Content: []byte(big)}, kind: KindTooLarge, after: map[string]string{"g": "absent"}},
		{name: "write outside", op: Op{Kind: OpWrite, Path: "../outside/new"}, kind: KindEscape},
		{name: "write a link", op: Op{Kind: OpWrite, Path: "dir/tof", Content: []byte("new")}, kind: KindNotRegular, after: map[string]string{"f": "old old\n", "dir/tof": "-> ../f"}},
		{
			name: "write below a link", op: Op{Kind: OpWrite, Path: "todir/g", Content: []byte("new")},
			want: Change{Path: "todir/g", Created: true, Bytes: 3}, after: map[string]string{"dir/g": "new"},
		},
		{name: "write a link to a directory", op: Op{Kind: OpWrite, Path: "todir"}, kind: KindNotRegular},
		{name: "write a dangling link", op: Op{Kind: OpWrite, Path: "dangling"}, kind: KindNotRegular, after: map[string]string{"dangling": "-> nothing", "nothing": "absent"}},
		{name: "write a circle", op: Op{Kind: OpWrite, Path: "circle"}, kind: KindNotRegular},
		{
			name: "write what was shown", op: Op{Kind: OpWrite, Path: "f", Content: []byte("new"), IfSHA256: digest("old old\n")},
			want: Change{Path: "f", Bytes: 3, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": "new"},
		},
		{name: "write what has changed", op: Op{Kind: OpWrite, Path: "f", IfSHA256: digest("other")}, kind: KindConflict, after: map[string]string{"f": "old old\n"}},
		{name: "write what is gone", op: Op{Kind: OpWrite, Path: "g", IfSHA256: digest("other")}, kind: KindConflict, after: map[string]string{"g": "absent"}},
		{name: "write what is too large to be compared", op: Op{Kind: OpWrite, Path: "huge", IfSHA256: digest("x")}, kind: KindTooLarge},
		{
			name: "write what is too large to keep", op: Op{Kind: OpWrite, Path: "huge", Content: []byte("x")},
			want: Change{Path: "huge", Bytes: 1}, after: map[string]string{"huge": "x"},
		},
		{
			name: "write what was absent", op: Op{Kind: OpWrite, Path: "g", IfSHA256: "absent"},
			want: Change{Path: "g", Created: true}, after: map[string]string{"g": ""},
		},
		{name: "write what has appeared", op: Op{Kind: OpWrite, Path: "f", IfSHA256: "absent"}, kind: KindConflict, after: map[string]string{"f": "old old\n"}},

		{
			name: "patch", op: Op{Kind: OpPatch, Path: "f", Old: "\n", New: "!\n"},
			want: Change{Path: "f", Bytes: 9, Replacements: 1, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": "old old!\n"},
		},
		{
			name: "patch everywhere", op: Op{Kind: OpPatch, Path: "f", Old: "old", New: "", ReplaceAll: true},
			want: Change{Path: "f", Bytes: 2, Replacements: 2, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": " \n"},
		},
		{name: "patch two matches", op: Op{Kind: OpPatch, Path: "f", Old: "old", New: "x"}, kind: KindNoMatch, after: map[string]string{"f": "old old\n"}},
		{name: "patch no match", op: Op{Kind: OpPatch, Path: "f", Old: "none", New: "x"}, kind: KindNoMatch},
		{name: "patch with nothing", op: Op{Kind: OpPatch, Path: "f", New: "x"}, kind: KindInvalid},
		{name: "patch what is missing", op: Op{Kind: OpPatch, Path: "g", Old: "a", New: "b"}, kind: KindNotFound},
		{name: "patch what has changed", op: Op{Kind: OpPatch, Path: "f", Old: "\n", New: "x", IfSHA256: digest("")}, kind: KindConflict},
		{name: "patch a directory", op: Op{Kind: OpPatch, Path: "dir", Old: "a", New: "b"}, kind: KindIsDir},
		{name: "patch what is too large", op: Op{Kind: OpPatch, Path: "huge", Old: "a", New: "b"}, kind: KindTooLarge},

		{
			name: "delete", op: Op{Kind: OpDelete, Path: "f"},
			want: Change{Path: "f", Removed: 1, Before: []byte("old old\n"), HasBefore: true}, after: map[string]string{"f": "absent"},
		},
		{name: "delete what is missing", op: Op{Kind: OpDelete, Path: "g"}, kind: KindNotFound},
		{name: "delete a directory", op: Op{Kind: OpDelete, Path: "dir"}, kind: KindIsDir, after: map[string]string{"dir": "directory"}},
		{
			name: "delete a directory and all in it", op: Op{Kind: OpDelete, Path: "dir/", Recursive: true},
			want: Change{Path: "dir", Removed: 4}, after: map[string]string{"dir": "absent", "f": "old old\n"},
		},
		{
			name: "delete a link", op: Op{Kind: OpDelete, Path: "todir", Recursive: true},
			want: Change{Path: "todir", Removed: 1}, after: map[string]string{"todir": "absent", "dir": "directory", "dir/x": ""},
		},
		{
			name: "delete a link to outside", op: Op{Kind: OpDelete, Path: "out"},
			want: Change{Path: "out", Removed: 1}, after: map[string]string{"out": "absent"},
		},
		{name: "delete the workspace", op: Op{Kind: OpDelete, Path: ".", Recursive: true}, kind: KindInvalid},
		{name: "delete the workspace by its path", op: Op{Kind: OpDelete, Path: "/workspace/", Recursive: true}, kind: KindInvalid},
		{name: "delete what has changed", op: Op{Kind: OpDelete, Path: "f", IfSHA256: digest("")}, kind: KindConflict, after: map[string]string{"f": "old old\n"}},
		{name: "delete what was absent", op: Op{Kind: OpDelete, Path: "empty", IfSHA256: "absent"}, kind: KindConflict, after: map[string]string{"empty": ""}},
		{name: "delete a link that was a file", op: Op{Kind: OpDelete, Path: "out", IfSHA256: digest("")}, kind: KindConflict, after: map[string]string{"out": "-> ../outside"}},
		{name: "delete what is too large to be compared", op: Op{Kind: OpDelete, Path: "huge", IfSHA256: digest("x")}, kind: KindTooLarge},
		{
			name: "delete what is too large to keep", op: Op{Kind: OpDelete, Path: "huge"},
			want: Change{Path: "huge", Removed: 1}, after: map[string]string{"huge": "absent"},
		},

		{name: "mkdir", op: Op{Kind: OpMkdir, Path: "a/b/c/"}, want: Change{Path: "a/b/c", Created: true}, after: map[string]string{"a/b/c": "directory"}},
		{name: "mkdir again", op: Op{Kind: OpMkdir, Path: "dir/sub"}, want: Change{Path: "dir/sub"}},
		{name: "mkdir on a file", op: Op{Kind: OpMkdir, Path: "f"}, kind: KindNotDir},
		{name: "mkdir on a dangling link", op: Op{Kind: OpMkdir, Path: "dangling/x"}, kind: KindNotFound, after: map[string]string{"nothing": "absent"}},

		{
			name: "rename", op: Op{Kind: OpRename, Path: "f", To: "new/g"},
			want: Change{Path: "f", To: "new/g", Bytes: 8}, after: map[string]string{"f": "absent", "new/g": "old old\n"},
		},
		{
			name: "rename what was shown", op: Op{Kind: OpRename, Path: "f", To: "g", IfSHA256: digest("old old\n")},
			want: Change{Path: "f", To: "g", Bytes: 8}, after: map[string]string{"f": "absent", "g": "old old\n"},
		},
		{name: "rename what has changed", op: Op{Kind: OpRename, Path: "f", To: "g", IfSHA256: digest("")}, kind: KindConflict, after: map[string]string{"g": "absent"}},
		{name: "rename what is too large to be compared", op: Op{Kind: OpRename, Path: "huge", To: "g", IfSHA256: digest("x")}, kind: KindTooLarge},
		{name: "rename a directory", op: Op{Kind: OpRename, Path: "dir", To: "d2"}, want: Change{Path: "dir", To: "d2"}, after: map[string]string{"d2/x": ""}},
		{name: "rename a link", op: Op{Kind: OpRename, Path: "out", To: "o2"}, want: Change{Path: "out", To: "o2"}, after: map[string]string{"o2": "-> ../outside"}},
		{name: "rename onto a file", op: Op{Kind: OpRename, Path: "f", To: "empty"}, kind: KindExists, after: map[string]string{"empty": "", "f": "old old\n"}},
		{name: "rename onto a link", op: Op{Kind: OpRename, Path: "f", To: "out"}, kind: KindExists, after: map[string]string{"out": "-> ../outside"}},
		{name: "rename into itself", op: Op{Kind: OpRename, Path: "dir", To: "dir/sub/d"}, kind: KindInvalid},
		{name: "rename to outside", op: Op{Kind: OpRename, Path: "f", To: "../outside/f"}, kind: KindEscape, after: map[string]string{"f": "old old\n"}},
		{name: "rename to outside by a link", op: Op{Kind: OpRename, Path: "f", To: "out/f"}, kind: KindEscape, after: map[string]string{"f": "old old\n"}},
		{name: "rename from outside", op: Op{Kind: OpRename, Path: "out/canary", To: "c"}, kind: KindEscape},
		{name: "rename what is missing", op: Op{Kind: OpRename, Path: "g", To: "h/i"}, kind: KindNotFound, after: map[string]string{"h": "absent"}},
		{name: "chmod", op: Op{Kind: OpChmod, Path: "dir", Mode: 0o1511}, want: Change{Path: "dir", Mode: 0o755}},
		{name: "chmod that adds", op: Op{Kind: OpChmod, Path: "dir/sub", Mode: 0o020, Add: true}, want: Change{Path: "dir/sub", Mode: 0o755}},
		{name: "chmod of the workspace", op: Op{Kind: OpChmod, Path: ".", Mode: 0, Add: true}, want: Change{Path: ".", Mode: 0o755}},
		{name: "chmod of a file", op: Op{Kind: OpChmod, Path: "f", Mode: 0o777}, kind: KindNotDir},
		{name: "chmod of a link", op: Op{Kind: OpChmod, Path: "out", Mode: 0o777}, kind: KindNotDir},
		{name: "chmod by a link", op: Op{Kind: OpChmod, Path: "out/canary", Mode: 0o777}, kind: KindEscape},
		{name: "chmod to what is no mode", op: Op{Kind: OpChmod, Path: "dir", Mode: 0o10000}, kind: KindInvalid},
		{name: "no such change", op: Op{Kind: "chown", Path: "f"}, kind: KindInvalid},
	}
	modes(t, func(t *testing.T, walking bool) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				l := newLayout(t)
				l.file("f", "old old\n")
				l.file("empty", "")
				l.file("dir/x", "")
				l.must(os.Mkdir(l.path("dir/sub"), 0o755))
				l.link("dir/tof", "../f")
				l.link("todir", "dir")
				l.link("dangling", "nothing")
				l.link("circle", "circle")
				l.link("out", "../outside")
				l.file("huge", "")
				l.must(os.Truncate(l.path("huge"), MaxWriteBytes+1))
				before := l.hash()
				got, err := l.writerIn(walking).Apply(t.Context(), c.op)
				if kindOf(err) != c.kind {
					t.Fatalf("%+v: %v, want kind %q", c.op.Kind, err, c.kind)
				}
				c.want.Kind = c.op.Kind
				if err == nil {
					if d := cmp.Diff(c.want, got); d != "" {
						t.Errorf("change (-want +got):\n%s", d)
					}
				}
				for p, want := range c.after {
					if got := l.content(p); got != want {
						t.Errorf("%s is %q afterwards, want %q", p, got, want)
					}
				}
				l.noTemp()
				if l.hash() != before {
					t.Error("something outside has changed")
				}
			})
		}
	})
}

// noTemp fails the test if a temporary file is left.
func (l *layout) noTemp() {
	l.t.Helper()
	l.must(filepath.WalkDir(l.root, func(p string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), ".caisson-") {
			l.t.Errorf("left behind: %s", p)
		}
		return err
	}))
}

// Acceptance A5: writes through symlinks that lead out, dangling or not.
func TestWriteThroughEscapingLinks(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		for _, target := range []string{"../outside/new", "{outside}/new", "../outside/canary", "../outside/directory"} {
			l := newLayout(t)
			l.file("f", "x")
			target = strings.Replace(target, "{outside}", l.outside, 1)
			l.link("out", target)
			before := l.hash()
			w := l.writerIn(walking)
			for _, op := range []Op{
				{Kind: OpWrite, Path: "out", Content: []byte("x")},
				{Kind: OpWrite, Path: "out/x", Content: []byte("x")},
				{Kind: OpAppend, Path: "out", Content: []byte("x")},
				{Kind: OpAppend, Path: "out/x", Content: []byte("x")},
				{Kind: OpPatch, Path: "out", Old: "a", New: "b"},
				{Kind: OpMkdir, Path: "out/x"},
				{Kind: OpMkdir, Path: "out"},
				{Kind: OpRename, Path: "f", To: "out/g"},
				{Kind: OpRename, Path: "f", To: "out"},
				{Kind: OpDelete, Path: "out/canary"},
				{Kind: OpDelete, Path: "out/.", Recursive: true}, // the symlink itself
			} {
				_, err := w.Apply(t.Context(), op)
				if last := op.Kind == OpDelete && op.Recursive; (err == nil) != last {
					t.Errorf("link to %s: %s %q: %v", target, op.Kind, op.Path, err)
				}
			}
			if l.hash() != before {
				t.Errorf("link to %s: something outside has changed", target)
			}
		}
	})
	// The control: a plain write follows the dangling symlink.
	l := newLayout(t)
	l.link("out", "../outside/new")
	before := l.hash()
	l.must(os.WriteFile(l.path("out"), []byte("x"), 0o600))
	if l.hash() == before {
		t.Error("control: the naive write did not follow the link")
	}
}

// Acceptance A12: another hard link keeps its content.
func TestHardLinks(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.must(os.Link(filepath.Join(l.outside, "canary"), l.path("hl")))
		before := l.hash()
		w := l.writerIn(walking)
		for _, op := range []Op{
			{Kind: OpPatch, Path: "hl", Old: l.canary, New: "patched"},
			{Kind: OpWrite, Path: "hl", Content: []byte("written")},
			{Kind: OpDelete, Path: "hl"},
		} {
			if _, err := w.Apply(t.Context(), op); err != nil {
				t.Errorf("%s: %v", op.Kind, err)
			}
		}
		if l.hash() != before {
			t.Error("the other hard link has changed")
		}
	})
	l := newLayout(t)
	l.must(os.Link(filepath.Join(l.outside, "canary"), l.path("hl")))
	before := l.hash()
	l.must(os.WriteFile(l.path("hl"), []byte("x"), 0o600))
	if l.hash() == before {
		t.Error("control: the naive write did not change the other hard link")
	}
}

// Acceptance A19: modes.
func TestModes(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	l := newLayout(t)
	w := l.writerIn(false)
	for name, mode := range map[string]os.FileMode{"x": 0o755, "private": 0o600, "shared": 0o666} {
		l.file(name, "x")
		l.must(os.Chmod(l.path(name), mode))
	}
	l.file("setuid", "x")
	l.must(os.Chmod(l.path("setuid"), os.ModeSetuid|os.ModeSetgid|os.ModeSticky|0o755))
	l.must(os.Mkdir(l.path("group"), 0o755))
	l.must(os.Chmod(l.path("group"), os.ModeSetgid|0o775))
	for _, name := range []string{"x", "private", "shared", "setuid", "new/dir/f", "group/sub/f"} {
		if _, err := w.Apply(t.Context(), Op{Kind: OpWrite, Path: name, Content: []byte("y")}); err != nil {
			t.Errorf("write %s: %v", name, err)
		}
	}
	for name, want := range map[string]os.FileMode{
		"x": 0o755, "private": 0o600, "shared": 0o666, "setuid": 0o755, "new": os.ModeDir | 0o755, "new/dir": os.ModeDir | 0o755,
		"new/dir/f": 0o644, "group/sub": os.ModeDir | os.ModeSetgid | 0o755, "group/sub/f": 0o644,
	} {
		fi, err := os.Stat(l.path(name))
		l.must(err)
		if fi.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, fi.Mode(), want)
		}
	}
}

// onThread runs f on a thread with other effective IDs, like the guest: by system
// calls that act on that thread alone.
func onThread(uid, gid int, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0))
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if e1|e2|e3 == 0 {
			f()
			done <- nil
			return
		}
		done <- fmt.Errorf("switch ids: %w, %w, %w", e1, e2, e3)
	}()
	return <-done
}

func TestWriterActsAsItsThread(t *testing.T) {
	needRoot(t)
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.must(os.Chown(l.root, 1000, 1000))
		l.file("mine", "x")
		l.must(os.Chown(l.path("mine"), 1000, 1000))
		l.file("root/file", "x")
		l.file("shared", "x")
		w := l.writerIn(walking)
		apply := func(op Op, want Kind) {
			t.Helper()
			var err error
			l.must(onThread(1000, 1000, func() { _, err = w.Apply(context.Background(), op) }))
			if kindOf(err) != want {
				t.Errorf("%s %s: %v, want kind %q", op.Kind, op.Path, err, want)
			}
		}
		apply(Op{Kind: OpWrite, Path: "new/f", Content: []byte("x")}, "")
		apply(Op{Kind: OpPatch, Path: "mine", Old: "x", New: "y"}, "")
		apply(Op{Kind: OpWrite, Path: "root/new"}, KindPermission)
		apply(Op{Kind: OpWrite, Path: "root/file"}, KindPermission)
		apply(Op{Kind: OpPatch, Path: "root/file", Old: "x", New: "y"}, KindPermission)
		apply(Op{Kind: OpDelete, Path: "root/file"}, KindPermission)
		apply(Op{Kind: OpDelete, Path: "root", Recursive: true}, KindPermission)
		apply(Op{Kind: OpRename, Path: "root/file", To: "f"}, KindPermission)
		apply(Op{Kind: OpChmod, Path: "root", Mode: 0o777}, KindPermission)
		// The directory is theirs, the file is not: a rename alone would succeed.
		apply(Op{Kind: OpWrite, Path: "shared", Content: []byte("y")}, KindPermission)
		for _, name := range []string{"new", "new/f", "mine"} {
			var st unix.Stat_t
			l.must(unix.Lstat(l.path(name), &st))
			if st.Uid != 1000 || st.Gid != 1000 {
				t.Errorf("%s belongs to %d:%d, want 1000:1000", name, st.Uid, st.Gid)
			}
		}
		l.noTemp()
	})
}

func TestFullDisk(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.must(unix.Mount("tmpfs", l.root, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(l.root, unix.MNT_DETACH) })
	dir, err := OpenDir(l.root)
	l.must(err)
	defer func() { _ = dir.Close() }()
	l.dir = dir
	l.file("f", "old")
	w := l.writerIn(false)
	if _, err := w.Apply(t.Context(), Op{Kind: OpWrite, Path: "f", Content: make([]byte, 1<<20)}); kindOf(err) != KindNoSpace {
		t.Errorf("write beyond the disk: %v, want %q", err, KindNoSpace)
	}
	if got := l.content("f"); got != "old" {
		t.Errorf("the file holds %q afterwards", got)
	}
	l.noTemp()
	l.must(dir.Close())
}

func TestReadOnly(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.file("f", "old")
	l.bind(l.root, ".")
	l.must(unix.Mount("", l.root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	dir, err := OpenDir(l.root)
	l.must(err)
	defer func() { _ = dir.Close() }()
	l.dir = dir
	w := l.writerIn(false)
	for _, op := range []Op{
		{Kind: OpWrite, Path: "f"},
		{Kind: OpWrite, Path: "g"},
		{Kind: OpPatch, Path: "f", Old: "o", New: "x"},
		{Kind: OpDelete, Path: "f"},
		{Kind: OpMkdir, Path: "d"},
		{Kind: OpRename, Path: "f", To: "g"},
	} {
		if _, err := w.Apply(t.Context(), op); kindOf(err) != KindPermission {
			t.Errorf("%s on a read-only mount: %v, want %q", op.Kind, err, KindPermission)
		}
	}
}

func TestDeleteIsBounded(t *testing.T) {
	l := newLayout(t)
	for i := range 50 {
		l.file(fmt.Sprintf("d/%d/f", i), "")
	}
	w := l.writerIn(false)
	w.maxRemove = 60
	c, err := w.Apply(t.Context(), Op{Kind: OpDelete, Path: "d", Recursive: true})
	if kindOf(err) != KindTooLarge || c.Removed == 0 || c.Removed > 60 {
		t.Errorf("delete beyond the bound: %d removed, %v", c.Removed, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if c, err := w.Apply(ctx, Op{Kind: OpDelete, Path: "d", Recursive: true}); err == nil || c.Removed != 0 {
		t.Errorf("cancelled delete: %+v, %v", c, err)
	}
}

func TestBrokenFolder(t *testing.T) {
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	w := NewWriter(f, WriterOptions{})
	if _, err := w.Apply(t.Context(), Op{Kind: OpWrite, Path: "x"}); kindOf(err) != KindIO {
		t.Errorf("write below what is no directory: %v", err)
	}
	if _, err := NewReader(f, ReaderOptions{}); err == nil {
		t.Error("NewReader took what is no directory")
	}
	_ = f.Close()
	if _, err := NewReader(f, ReaderOptions{}); err == nil {
		t.Error("NewReader took a closed file")
	}
}

// TestDeleteEntersNoMount: a mount in the workspace is not deleted, even if it
// appears after the path was resolved.
func TestDeleteEntersNoMount(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.must(os.MkdirAll(l.path("tree/mnt"), 0o755))
	w := l.writerIn(false)
	p, err := w.findEntry("tree/mnt", false)
	l.must(err)
	defer p.close()
	l.bind(l.outside, "tree/mnt")
	before, open := l.hash(), openFiles(t)
	c := Change{Path: "tree/mnt"}
	if err := w.removeTree(t.Context(), p, &c); !errors.Is(err, ErrMount) || c.Removed != 0 || l.hash() != before {
		t.Errorf("%d entries are deleted, %v", c.Removed, err)
	}
	if got := openFiles(t); got != open {
		t.Errorf("%d descriptors are open, before it were %d", got, open)
	}
}

// TestDeleteWhileItsTreeChanges: a recursive delete goes back up only into the
// directory that it came from, and fails if a directory is no longer empty.
func TestDeleteWhileItsTreeChanges(t *testing.T) {
	l := newLayout(t)
	l.file("other/x", "")
	w := l.writerIn(false)
	before := openFiles(t)
	enter := func(then func(*removal) error) error {
		l.must(os.MkdirAll(l.path("tree/sub/deep"), 0o755))
		p, err := w.findEntry("tree", false)
		l.must(err)
		defer p.close()
		r := removal{parent: p.dir, path: "tree", open: w.tree.openOnMount, most: w.maxRemove}
		r.dir, err = r.reopenParent()
		l.must(err)
		defer func() { _ = unix.Close(r.dir) }()
		for _, name := range []string{"tree", "sub", "deep"} {
			l.must(r.enterDirectory(name))
		}
		return then(&r)
	}
	err := enter(func(r *removal) error {
		l.file("tree/sub/deep/x", "")
		return r.leaveDirectory()
	})
	if !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("a directory that is not empty: %v", err)
	}
	l.must(os.Remove(l.path("tree/sub/deep/x")))
	err = enter(func(r *removal) error {
		l.must(os.Rename(l.path("tree/sub/deep"), l.path("other/deep")))
		return r.removeNext(t.Context())
	})
	if kindOf(err) != KindConflict || l.content("other/deep") != "directory" {
		t.Errorf("the delete goes on in another directory: %v, it is %s", err, l.content("other/deep"))
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors are open, before it were %d", after, before)
	}
}
