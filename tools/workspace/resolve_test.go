package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Acceptance A1: spellings.
func TestSpellings(t *testing.T) {
	deep := strings.Repeat("d/", 300)
	cases := []struct {
		name string
		path string
		want Kind
	}{
		{name: "empty", path: "", want: KindInvalid},
		{name: "itself", path: ".", want: KindIsDir},
		{name: "parent", path: "..", want: KindEscape},
		{name: "parent's file", path: "../outside/canary", want: KindEscape},
		{name: "down and up", path: "a/../../outside/canary", want: KindEscape},
		{name: "missing and up", path: "missing/../../outside/canary", want: KindEscape},
		{name: "dots inside", path: "a/./../a//f", want: ""},
		{name: "absolute", path: "/etc/passwd", want: KindEscape},
		{name: "two slashes", path: "//etc/passwd", want: KindEscape},
		{name: "drive", path: `C:\x`, want: KindNotFound},
		{name: "URL", path: "file:///etc/passwd", want: KindNotFound},
		{name: "home", path: "~root/x", want: KindNotFound},
		{name: "NUL", path: "a/f\x00.txt", want: KindInvalid},
		{name: "long name", path: strings.Repeat("x", 256), want: KindInvalid},
		{name: "longest name", path: strings.Repeat("x", 255), want: KindNotFound},
		{name: "long path", path: strings.Repeat("x/", 2500), want: KindInvalid},
		{name: "deep path", path: deep + "f", want: KindNotFound},
		{name: "web address as a name", path: "https:/en.wikipedia.org/wiki/Go", want: KindNotFound},
		{name: "container path", path: "/workspace/a/f", want: ""},
		{name: "container path, slashes", path: "//workspace///a/f", want: ""},
		{name: "container path and up", path: "/workspace/../etc/passwd", want: KindEscape},
		{name: "container path as a prefix", path: "/workspaces/a/f", want: KindEscape},
		{name: "host path", path: "{root}/a/f", want: ""},
		{name: "host path, sibling", path: "{root}-2/a", want: KindEscape},
		{name: "host path and up", path: "{root}/../outside/canary", want: KindEscape},
	}
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.file("a/f", "inside")
		r := l.readerIn(walking, ReaderOptions{HostPath: l.root, ContainerPath: "/workspace"})
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				p := strings.ReplaceAll(c.path, "{root}", l.root)
				got, err := read(r, p)
				if kindOf(err) != c.want {
					t.Errorf("read %q: %v, want kind %q", abbreviatePath(p), err, c.want)
				}
				if c.want == "" && got != "inside" {
					t.Errorf("read %q: %q", p, got)
				}
				l.leaks("read", fmt.Sprint(got, err))
				if err := r.Scope(t.Context(), p); (kindOf(err) == KindEscape) != (c.want == KindEscape) {
					t.Errorf("scope of %q: %v", abbreviatePath(p), err)
				}
			})
		}
	})
	// The control: joined without a check, such a path leads out.
	l := newLayout(t)
	if b, _ := os.ReadFile(filepath.Join(l.root, "a/../../outside/canary")); string(b) != l.canary {
		t.Error("control: the joined path did not reach the canary")
	}
}

// Acceptance A2: symlinks, after the classes of Go's os.Root tests.
func TestLinks(t *testing.T) {
	cases := []struct {
		name    string
		links   [][2]string // name, target
		path    string
		want    Kind
		control bool // a naive reader follows it to the canary
	}{
		{name: "to a file", links: [][2]string{{"link", "a/f"}}, path: "link"},
		{name: "to a directory", links: [][2]string{{"link", "a"}}, path: "link/f"},
		{name: "ending in a slash", links: [][2]string{{"link", "a/"}}, path: "link/f"},
		{name: "file, ending in a slash", links: [][2]string{{"link", "a/f/"}}, path: "link", want: KindNotDir},
		{name: "up and down again inside", links: [][2]string{{"a/link", "../a/f"}}, path: "a/link"},
		{name: "chain", links: [][2]string{{"l1", "l2"}, {"l2", "l3"}, {"l3", "a/f"}}, path: "l1"},
		{name: "chain through directories", links: [][2]string{{"b/l1", "../c/l2"}, {"c/l2", "../a"}}, path: "b/l1/f"},
		{name: "to the workspace itself", links: [][2]string{{"d/d", ".."}}, path: "d/d/a/f"},
		{name: "up past the top", links: [][2]string{{"link", "../outside/canary"}}, path: "link", want: KindEscape, control: true},
		{name: "directory outside", links: [][2]string{{"link", "../outside"}}, path: "link/canary", want: KindEscape, control: true},
		{name: "absolute", links: [][2]string{{"link", "{outside}/canary"}}, path: "link", want: KindEscape, control: true},
		{name: "absolute directory", links: [][2]string{{"link", "{outside}"}}, path: "link/canary", want: KindEscape, control: true},
		{name: "absolute to inside", links: [][2]string{{"link", "{root}/a/f"}}, path: "link", want: KindEscape},
		{name: "out and back", links: [][2]string{{"link", "../ws/a/f"}}, path: "link", want: KindEscape},
		{name: "chain that leaves", links: [][2]string{{"l1", "b/l2"}, {"b/l2", "l3"}, {"b/l3", "../../outside/canary"}}, path: "l1", want: KindEscape, control: true},
		{name: "up after a link", links: [][2]string{{"b/up", "../a"}, {"link", "b/up/../../outside/canary"}}, path: "link", want: KindEscape, control: true},
		{name: "up after a link, inside", links: [][2]string{{"b/c/deep", "../../a/sub"}, {"link", "b/c/deep/../f"}}, path: "link"},
		{name: "itself", links: [][2]string{{"link", "link"}}, path: "link", want: KindInvalid},
		{name: "circle", links: [][2]string{{"l1", "l2"}, {"l2", "l1"}}, path: "l1/x", want: KindInvalid},
		{name: "40 hops", links: chain(40), path: "hop0"},
		{name: "41 hops", links: chain(41), path: "hop0", want: KindInvalid},
		{name: "dangling", links: [][2]string{{"link", "nothing"}}, path: "link", want: KindNotFound},
		{name: "through a file", path: "a/f/x", want: KindNotDir},
	}
	modes(t, func(t *testing.T, walking bool) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				l := newLayout(t)
				l.file("a/f", "inside")
				l.must(os.Mkdir(l.path("a/sub"), 0o755))
				for _, link := range c.links {
					l.link(link[0], strings.NewReplacer("{root}", l.root, "{outside}", l.outside).Replace(link[1]))
				}
				r := l.readerIn(walking, ReaderOptions{})
				got, err := read(r, c.path)
				if kindOf(err) != c.want || c.want == "" && got != "inside" {
					t.Errorf("read %q: %q, %v; want kind %q", c.path, got, err, c.want)
				}
				l.leaks("read", fmt.Sprint(got, err))
				if _, err := r.Stat(t.Context(), c.path); kindOf(err) != c.want {
					t.Errorf("stat %q: %v, want kind %q", c.path, err, c.want)
				}
				if err := r.Scope(t.Context(), c.path); (kindOf(err) == KindEscape) != (c.want == KindEscape) {
					t.Errorf("scope of %q: %v", c.path, err)
				}
				if c.control {
					l.control(c.path)
				}
				to, err := FollowLink(t.Context(), r, c.path, true)
				if err == nil {
					got, err = read(r, to)
				}
				if kindOf(err) != c.want || c.want == "" && got != "inside" {
					t.Errorf("%q is followed to %q, which reads %q, %v", c.path, to, got, err)
				}
				if info, err := r.Lstat(t.Context(), to); c.want == "" && (err != nil || info.Type != TypeFile) {
					t.Errorf("%q is followed to %q, which is a %s, %v", c.path, to, info.Type, err)
				}
			})
		}
	})
}

// chain returns n symlinks in a row, the last to a/f.
func chain(n int) [][2]string {
	links := make([][2]string, n)
	for i := range links {
		links[i] = [2]string{fmt.Sprintf("hop%d", i), fmt.Sprintf("hop%d", i+1)}
	}
	links[n-1][1] = "a/f"
	return links
}

// Acceptance A4: symlinks in /proc.
func TestMagicLinks(t *testing.T) {
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		secret, err := os.Open(filepath.Join(l.outside, "canary"))
		l.must(err)
		defer func() { _ = secret.Close() }()
		fd := fmt.Sprintf("/proc/self/fd/%d", secret.Fd())
		for name, target := range map[string]string{
			"fd": fd, "pidfd": fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), secret.Fd()), "devfd": fmt.Sprintf("/dev/fd/%d", secret.Fd()), "root": "/proc/self/root", "cwd": "/proc/self/cwd",
			"pid1": "/proc/1/root/etc/hostname", "environ": "/proc/self/environ", "stdin": "/dev/stdin",
		} {
			l.link(name, target)
		}
		l.control("fd")
		l.control("devfd")
		l.control("pidfd")
		r := l.readerIn(walking, ReaderOptions{})
		for _, p := range []string{"fd", "devfd", "pidfd", "root/etc/passwd", "root", "cwd", "cwd/x", "pid1", "environ", "stdin"} {
			got, err := read(r, p)
			if kindOf(err) != KindEscape {
				t.Errorf("read %q: %q, %v; want an escape", p, got, err)
			}
			l.leaks("read", got)
		}
	})
	// A workspace that is a directory of /proc contains such symlinks.
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		secret, err := os.Open(filepath.Join(l.outside, "canary"))
		l.must(err)
		defer func() { _ = secret.Close() }()
		l.dir, err = os.Open("/proc/self")
		l.must(err)
		defer func() { _ = l.dir.Close() }()
		l.root = "/proc/self"
		name := fmt.Sprintf("fd/%d", secret.Fd())
		l.control(name)
		r := l.readerIn(walking, ReaderOptions{})
		for _, p := range []string{name, "root/etc/passwd", "cwd/.", "exe"} {
			if got, err := read(r, p); err == nil {
				t.Errorf("read %q through a magic link: %d bytes", p, len(got))
			}
		}
		if _, err := read(r, "status"); err != nil {
			t.Errorf("read a file of /proc itself: %v", err)
		}
	})
}

// Acceptance A18: another mount inside the workspace.
func TestMounts(t *testing.T) {
	needRoot(t)
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.file("mnt/x", "")
		l.file("filemnt", "covered")
		l.bind(l.outside, "mnt")
		l.bind(filepath.Join(l.outside, "canary"), "filemnt")
		l.control("mnt/canary")
		l.control("filemnt")
		before := l.hash()
		r, w := l.readerIn(walking, ReaderOptions{}), l.writerIn(walking)
		for _, p := range []string{"mnt/canary", "filemnt", "mnt/directory/../canary"} {
			got, err := read(r, p)
			if kindOf(err) != KindNotRegular {
				t.Errorf("read %q: %v, want %q", p, err, KindNotRegular)
			}
			l.leaks("read", got)
		}
		list, err := r.List(t.Context(), ".", 3)
		l.must(err)
		l.leaks("list", list)
		for _, e := range list.Entries {
			if e.Type != TypeMount || e.Size != 0 || e.Depth != 1 {
				t.Errorf("listed %+v, want the two mounts alone", e)
			}
		}
		for _, op := range []Op{
			{Kind: OpWrite, Path: "mnt/new"},
			{Kind: OpWrite, Path: "filemnt", Content: []byte("x")},
			{Kind: OpPatch, Path: "filemnt", Old: l.canary[:8], New: "x"},
			{Kind: OpMkdir, Path: "mnt/new/deep"},
			{Kind: OpDelete, Path: "mnt", Recursive: true},
			{Kind: OpDelete, Path: "filemnt"},
			{Kind: OpDelete, Path: "mnt/canary"},
			{Kind: OpRename, Path: "mnt/canary", To: "c"},
			{Kind: OpRename, Path: "mnt", To: "moved"},
		} {
			if c, err := w.Apply(t.Context(), op); kindOf(err) != KindPermission {
				t.Errorf("%s %q: %+v, %v; want %q", op.Kind, op.Path, c, err, KindPermission)
			}
		}
		if l.hash() != before {
			t.Error("something outside has changed")
		}
	})
}

func (l *layout) bind(source, name string) {
	l.t.Helper()
	l.must(unix.Mount(source, l.path(name), "", unix.MS_BIND, ""))
	l.t.Cleanup(func() { _ = unix.Unmount(l.path(name), unix.MNT_DETACH) })
}

// Acceptance A20: the directory is held, not its name.
func TestRootReplaced(t *testing.T) {
	l := newLayout(t)
	l.file("f", "inside")
	r, w := l.reader(ReaderOptions{}), l.writerIn(false)
	l.must(os.Rename(l.root, l.root+".old"))
	l.must(os.Symlink(l.outside, l.root))
	l.control("canary")
	before := l.hash()
	if got, err := read(r, "f"); got != "inside" || err != nil {
		t.Errorf("read after the directory was replaced: %q, %v", got, err)
	}
	if _, err := read(r, "canary"); kindOf(err) != KindNotFound {
		t.Errorf("read of the directory that took its place: %v", err)
	}
	if _, err := w.Apply(t.Context(), Op{Kind: OpWrite, Path: "g", Content: []byte("x")}); err != nil {
		t.Errorf("write after the directory was replaced: %v", err)
	}
	if l.hash() != before {
		t.Error("something outside has changed")
	}
}

// Acceptance A21: a workspace named through a symlink that a session made.
func TestOpenDirRefusesLinks(t *testing.T) {
	l := newLayout(t)
	l.link("sub", l.outside)
	l.file("file", "")
	cases := []struct {
		path string
		want Kind
	}{
		{l.root, ""},
		{l.root + "/", ""},
		{l.root + "/../ws", ""},
		{l.path("sub"), KindEscape},
		{l.path("sub") + "/", KindEscape},
		{l.path("sub/directory"), KindEscape},
		{l.path("file"), KindNotDir},
		{l.path("missing"), KindNotFound},
	}
	for _, c := range cases {
		f, err := OpenDir(c.path)
		if kindOf(err) != c.want {
			t.Errorf("OpenDir(%q): %v, want kind %q", c.path, err, c.want)
		}
		if err == nil {
			_ = f.Close()
		}
	}
	if _, err := os.Stat(l.path("sub/canary")); err != nil {
		t.Errorf("control: os.Stat did not follow the link: %v", err)
	}
	t.Chdir(l.root)
	f, err := OpenDir(".")
	if err != nil {
		t.Fatalf("OpenDir of the current directory: %v", err)
	}
	_ = f.Close()
}

func TestSystemLinks(t *testing.T) {
	for _, name := range []string{"/bin", "/lib", "/var/run"} {
		target, err := os.Readlink(name)
		if err != nil {
			continue
		}
		f, err := OpenDir(name)
		if top := strings.Count(name, "/") == 1; top && err != nil {
			t.Errorf("OpenDir(%s -> %s): %v, want it to pass", name, target, err)
		} else if !top && os.Geteuid() == 0 && kindOf(err) != KindEscape {
			t.Errorf("OpenDir(%s -> %s) as root: %v, want a refusal", name, target, err)
		}
		if err == nil {
			_ = f.Close()
		}
	}
}

// TestOpen: both ways to resolve a path treat flags, symlinks and slashes like the
// kernel, and leave no descriptor open.
func TestOpen(t *testing.T) {
	const noFollow, directory = unix.O_PATH | unix.O_NOFOLLOW, unix.O_PATH | unix.O_DIRECTORY
	deep := strings.Repeat("d/", maxOpenDirs)
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		l.file("dir/x", "")
		l.link("todir", "dir")
		l.link("tofile", "dir/x")
		l.link("out", "../outside")
		l.must(unix.Mkfifo(l.path("fifo"), 0o644))
		l.must(os.MkdirAll(l.path(deep+"d"), 0o755))
		for i := range 6 { // each adds nearly a whole path
			l.link(fmt.Sprint("long", i), fmt.Sprintf("long%d/%s", i+1, strings.Repeat("./", 2000)))
		}
		w := l.writerIn(walking)
		before := openFiles(t)
		for _, tt := range []struct {
			path  string
			flags int
			want  Type
			err   error
		}{
			{"dir/x", unix.O_RDONLY, TypeFile, nil},
			{"todir/x", unix.O_PATH, TypeFile, nil},
			{"todir/x", noFollow, TypeFile, nil},
			{"todir/./x", unix.O_RDONLY | unix.O_NOFOLLOW, TypeFile, nil},
			{"tofile", unix.O_PATH, TypeFile, nil},
			{"tofile", noFollow, TypeSymlink, nil},
			{"tofile", unix.O_RDONLY | unix.O_NOFOLLOW, "", unix.ELOOP},
			{"todir", directory, TypeDir, nil},
			{"todir", noFollow | unix.O_DIRECTORY, "", unix.ENOTDIR},
			{"todir/", noFollow, TypeDir, nil},
			{"todir//", unix.O_RDONLY, TypeDir, nil},
			{"dir/..", directory, TypeDir, nil},
			{"dir/x/", unix.O_PATH, "", unix.ENOTDIR},
			{"dir/x", directory, "", unix.ENOTDIR},
			{"fifo/x", unix.O_RDONLY, "", unix.ENOTDIR},
			{"missing", unix.O_PATH, "", unix.ENOENT},
			{"out", noFollow, TypeSymlink, nil},
			{"out", unix.O_PATH, "", errEscape},
			{"out/canary", noFollow, "", errEscape},
			{deep, directory, TypeDir, nil},
		} {
			fd, err := w.tree.openPath(tt.path, tt.flags)
			if !errors.Is(err, tt.err) || (fd >= 0) != (tt.err == nil) {
				t.Errorf("%s, flags %#x: %d, %v, want %v", tt.path, tt.flags, fd, err, tt.err)
			}
			if fd < 0 {
				continue
			}
			if f, err := statx(fd, "", unix.AT_EMPTY_PATH); err != nil || typeOf(f.Mode) != tt.want {
				t.Errorf("%s, flags %#x: a %s, %v, want a %s", tt.path, tt.flags, typeOf(f.Mode), err, tt.want)
			}
			l.must(unix.Close(fd))
		}
		if walking {
			for _, name := range []string{deep + "d/", "long0"} { // more than one walk may hold
				if fd, err := w.tree.openPath(name, unix.O_PATH); !errors.Is(err, unix.ENAMETOOLONG) {
					t.Errorf("%.10s…: %d, %v", name, fd, err)
				}
			}
		}
		if after := openFiles(t); after != before {
			t.Errorf("%d descriptors are open, before it were %d", after, before)
		}
	})
}

// TestMountWhileItIsOpened: a file that is mounted over after the walk has looked
// at it is not opened.
func TestMountWhileItIsOpened(t *testing.T) {
	needRoot(t)
	l := newLayout(t)
	l.file("f", "")
	w := walk{mount: l.writerIn(true).tree.mount}
	dir, err := unix.Open(l.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	l.must(err)
	defer func() { _ = unix.Close(dir) }()
	found, err := openat(dir, "f", unix.O_PATH|unix.O_NOFOLLOW)
	l.must(err)
	defer func() { _ = unix.Close(found) }()
	l.bind(filepath.Join(l.outside, "canary"), "f")
	before := openFiles(t)
	if fd, err := w.openLast(dir, found, "f", TypeFile, unix.O_RDONLY); !errors.Is(err, ErrMount) || fd >= 0 {
		t.Errorf("it was opened: %d, %v", fd, err)
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors are open, before it were %d", after, before)
	}
}
