package spawn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// TestEnter enters working folders by each way that a kernel may have. None
// leads outside the workspace, and with noLinks none follows a symlink.
func TestEnter(t *testing.T) {
	outside := t.TempDir()
	workspace := filepath.Join(outside, "workspace")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(workspace, "a", "b"), 0o755), os.WriteFile(filepath.Join(workspace, "file"), nil, 0o644),
		os.Symlink("a", filepath.Join(workspace, "in")), os.Symlink("..", filepath.Join(workspace, "up")),
		os.Symlink(outside, filepath.Join(workspace, "out")), os.Symlink("/proc/self/cwd", filepath.Join(workspace, "magic")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(outside) // and back
	helper, err := identity.NewPool(identity.PoolOptions{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := &Spawner{o: Options{Workspace: workspace}, helper: helper}
	if err := s.openWorkspace(); err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(string) error{
		"openat2": func(dir string) error { return s.enter(dir, false) },
		"nolinks": func(dir string) error { return s.enter(dir, true) },
		"root":    s.enterByRoot,
		"names":   s.enterByName,
	}
	const links, noLinks, all = "openat2 root", "nolinks names", "openat2 root nolinks names"
	for _, tt := range []struct {
		dir, by, want string
		text          string // of the error, if it says one
	}{
		{dir: ".", by: all, want: "."},
		{dir: "a", by: all, want: "a"},
		{dir: "a/b", by: all, want: "a/b"},
		{dir: "a/../a/b", by: all, want: "a/b"},
		{dir: "in", by: links, want: "a"},
		{dir: "in/b", by: links, want: "a/b"},
		{dir: "in", by: noLinks},
		{dir: "in/b", by: noLinks},
		{dir: "..", by: all, text: "outside"},
		{dir: "../workspace", by: all, text: "outside"},
		{dir: "a/../..", by: all, text: "outside"},
		{dir: "a/b/../../../workspace/a", by: all, text: "outside"},
		{dir: "up", by: all},
		{dir: "out", by: all},
		{dir: "out/workspace", by: all},
		{dir: "magic", by: all},
		{dir: "none", by: all, text: "does not exist"},
		{dir: "none/b", by: all, text: "does not exist"},
		{dir: "file", by: all, text: "not a directory"},
		{dir: "file/b", by: all, text: "not a directory"},
	} {
		for name, enter := range ways {
			if !strings.Contains(tt.by, name) {
				continue
			}
			t.Chdir(outside)
			s.inDir = ""
			want := outside
			err := enter(tt.dir)
			if tt.want != "" {
				want = filepath.Join(workspace, tt.want)
			}
			if at, _ := os.Getwd(); at != want || (err == nil) != (tt.want != "") {
				t.Errorf("%s of %s: in %s, want %s, error %v", name, tt.dir, at, want, err)
			}
			if err != nil && (!errors.Is(err, ErrDir) || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("%s of %s: error is %v, want one of ErrDir with %q", name, tt.dir, err, tt.text)
			}
		}
	}
	// The workspace is entered again after another folder, or after a failure.
	for _, dir := range []string{"a", "none"} {
		_ = s.enter(dir, false)
		if dir == "none" {
			t.Chdir(outside)
		}
		if err := s.enter("", false); err != nil {
			t.Error(err)
		}
		if at, _ := os.Getwd(); at != workspace {
			t.Errorf("after %s: in %s", dir, at)
		}
	}
}

// TestFind looks programs up as a shell does.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, mode := range map[string]os.FileMode{
		"one/tool": 0o755, "two/tool": 0o755, "one/second": 0o644, "two/second": 0o755, "one/text": 0o644, "here": 0o755,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll("one/folder", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path, want string
		code             int
	}{
		{name: "tool", path: "one:two", want: "one/tool"},
		{name: "tool", path: "two:one", want: "two/tool"},
		{name: "tool", path: "none:two", want: "two/tool"},
		{name: "tool", path: dir + "/one", want: dir + "/one/tool"},
		{name: "second", path: "one:two", want: "two/second"},
		{name: "here", path: "one:", want: "./here"},
		{name: "here", path: "", want: "./here"},
		{name: "here", path: "one", code: 127},
		{name: "folder", path: "one", code: 127},
		{name: "text", path: "one:two", code: 126},
		{name: "", path: "one", code: 127},
		{name: "any/thing", path: "one", want: "any/thing"},
	} {
		got, err := find(tt.name, []string{"PATH=/none", "PATHS=x", "PATH=" + tt.path})
		failure, _ := errors.AsType[*Failure](err)
		if got != tt.want || (failure != nil) != (tt.code != 0) || failure != nil && failure.Code != tt.code {
			t.Errorf("%q in %q: %q, %v, want %q or code %d", tt.name, tt.path, got, err, tt.want, tt.code)
		}
	}
}

// TestExplain: what a start failed with is an exit status and a line.
func TestExplain(t *testing.T) {
	s := &Spawner{}
	there := t.TempDir()
	for _, tt := range []struct {
		program string
		err     error
		want    *Failure // nil for an error of the guest's
	}{
		{"/none", unix.ENOENT, &Failure{Code: 127, Text: `"tool": not found`}},
		{there, unix.ENOENT, &Failure{Code: 126, Text: `"tool": its interpreter or loader is not found`}},
		{there, unix.ENOTDIR, &Failure{Code: 127, Text: `"tool": not found`}},
		{there, unix.EACCES, &Failure{Code: 126, Text: `"tool": permission denied`}},
		{there, unix.E2BIG, &Failure{Code: 126, Text: `"tool": argument list too long`}},
		{there, unix.ENOEXEC, &Failure{Code: 126, Text: `"tool": exec format error: no program, and no script with an interpreter line`}},
		{there, unix.EAGAIN, &Failure{Code: 126, Text: `"tool": can't start another process: the sandbox's limit of processes is reached`, Limit: true}},
		{there, errors.New("strange"), nil},
	} {
		err := s.explain("tool", tt.program, tt.err)
		got, ok := errors.AsType[*Failure](err)
		if err == nil || ok != (tt.want != nil) || ok && *got != *tt.want {
			t.Errorf("%v of %s: %#v, want %+v", tt.err, tt.program, err, tt.want)
		}
	}
	if got := short(strings.Repeat("x", 200)); got != `"`+strings.Repeat("x", 200)+`"` {
		t.Errorf("200 bytes: %s", got)
	}
	if got := short(strings.Repeat("x", 201)); got != `"`+strings.Repeat("x", 200)+`"…` {
		t.Errorf("201 bytes: %s", got)
	}
}

// TestPipes: our sides do not block and the child's do; all are closed on exec.
// Without input the child has what it was given for it.
func TestPipes(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		var p pipes
		if err := p.open(99, stdin); err != nil {
			t.Fatal(err)
		}
		if len(p.files) != 3 || (p.files[0] == 99) == stdin || (p.ours[0] != nil) != stdin {
			t.Fatalf("with input %t: %+v", stdin, p)
		}
		for n, ours := range p.ours {
			if ours == nil {
				continue
			}
			checkPipe(t, n, int(ours.Fd()), int(p.files[n]))
		}
		made := p.made
		p.closeChild()
		p.closeChild() // does nothing: the numbers may be others' by now
		for _, fd := range made {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("with input %t: the child's descriptor %d is open", stdin, fd)
			}
		}
		p.closeOurs()
		if err := p.ours[1].Close(); err == nil {
			t.Error("our side is open")
		}
	}
}

// checkPipe checks the pipe for the child's descriptor n.
func checkPipe(t *testing.T, n, ours, child int) {
	t.Helper()
	for fd, blocks := range map[int]bool{ours: false, child: true} {
		status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || (status&unix.O_NONBLOCK == 0) != blocks {
			t.Errorf("%d: flags %o, %v; it blocks must be %t", n, status, err, blocks)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags != unix.FD_CLOEXEC {
			t.Errorf("%d: flags of a descriptor %o, %v", n, flags, err)
		}
	}
	from, to := ours, child
	if n == 0 {
		from, to = child, ours
	}
	got := make([]byte, 1)
	if _, err := unix.Write(to, []byte("x")); err != nil {
		t.Error(err)
	}
	if _, err := unix.Read(from, got); err != nil || got[0] != 'x' {
		t.Errorf("%d: %q comes, %v", n, got, err)
	}
}

// TestOOMScore: the score of a moment, and the own one after it.
func TestOOMScore(t *testing.T) {
	score := func() string {
		text, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before := score()
	o := openOOMScore()
	if o.file == nil {
		t.Skip("this kernel does not let it")
	}
	defer o.file.Close()
	if score() != before {
		t.Errorf("opening it makes it %s", score())
	}
	o.raise()
	if score() != string(highestScore) {
		t.Errorf("raised to %s", score())
	}
	o.restore()
	if score() != before {
		t.Errorf("restored to %s, was %s", score(), before)
	}
	oomScore{}.raise()
	oomScore{}.restore()
}
