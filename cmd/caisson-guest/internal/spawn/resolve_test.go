package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// TestEnter enters working directories in each way that a kernel may have. None
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
	s := entering(t, workspace, 0)
	busy := entering(t, workspace, unix.EAGAIN)
	if err := busy.enterDirectory("a", false); !errors.Is(err, ErrDir) || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a directory that is never resolved: %v", err)
	}
	absent, refused := entering(t, workspace, unix.ENOSYS), entering(t, workspace, unix.EPERM)
	ways := map[string]struct {
		s     *Spawner
		enter func(string) error
	}{
		"openat2": {s, func(dir string) error { return s.enterDirectory(dir, false) }},
		"nolinks": {s, func(dir string) error { return s.enterDirectory(dir, true) }},
		"absent":  {absent, func(dir string) error { return absent.enterDirectory(dir, false) }},
		"refused": {refused, func(dir string) error { return refused.enterDirectory(dir, true) }},
		"root":    {s, s.enterByRoot},
		"names":   {s, s.enterByName},
	}
	const links, noLinks = "openat2 absent root", "nolinks refused names"
	const all = links + " " + noLinks
	for _, tt := range []struct {
		dir, by, want string
		text          string // the end of the error, if every way has the same
	}{
		{dir: ".", by: all, want: "."},
		{dir: "a", by: all, want: "a"},
		{dir: "a/b", by: all, want: "a/b"},
		{dir: "a/../a/b", by: all, want: "a/b"},
		{dir: "in", by: links, want: "a"},
		{dir: "in/b", by: links, want: "a/b"},
		{dir: "in", by: "nolinks", text: "goes through a symlink"},
		{dir: "in", by: noLinks},
		{dir: "in/b", by: noLinks},
		{dir: "..", by: all, text: "leads outside the workspace"},
		{dir: "../workspace", by: all, text: "leads outside the workspace"},
		{dir: "a/../..", by: all, text: "leads outside the workspace"},
		{dir: "a/b/../../../workspace/a", by: all, text: "leads outside the workspace"},
		{dir: "up", by: all},
		{dir: "out", by: all},
		{dir: "out/workspace", by: all},
		{dir: "magic", by: all},
		{dir: "none", by: all, text: "does not exist"},
		{dir: "none/b", by: all, text: "does not exist"},
		{dir: "file", by: all, text: "not a directory"},
		{dir: "file/b", by: all, text: "not a directory"},
	} {
		for name, way := range ways {
			if !strings.Contains(tt.by, name) {
				continue
			}
			t.Chdir(outside)
			way.s.inDir = ""
			want, in := outside, ""
			if tt.want != "" {
				want, in = filepath.Join(workspace, tt.want), tt.dir
			}
			before := filtertest.Descriptors(t)
			err := way.enter(tt.dir)
			if now := filtertest.Descriptors(t); now > before {
				t.Errorf("%s of %s: %d descriptors are open, %d before", name, tt.dir, now, before)
			}
			if at, _ := os.Getwd(); at != want || way.s.inDir != in || (err == nil) != (tt.want != "") {
				t.Errorf("%s of %s: in %s (%q), want %s, error %v", name, tt.dir, at, way.s.inDir, want, err)
			}
			if err != nil && (!errors.Is(err, ErrDir) || tt.text != "" && err.Error() != fmt.Sprintf("%v %q: %s", ErrDir, tt.dir, tt.text)) {
				t.Errorf("%s of %s: error is %v, want one of ErrDir with %q", name, tt.dir, err, tt.text)
			}
		}
	}
	// The workspace is entered again after another directory or a failure.
	for _, dir := range []string{"a", "none"} {
		_ = s.enterDirectory(dir, false)
		if dir == "none" {
			t.Chdir(outside)
		}
		if err := s.enterDirectory("", false); err != nil {
			t.Error(err)
		}
		if at, _ := os.Getwd(); at != workspace {
			t.Errorf("after %s: in %s", dir, at)
		}
	}
}

// entering returns a Spawner that enters directories of the workspace, without
// its thread. openat2 fails with errno, unless that is 0.
func entering(t *testing.T, workspace string, errno unix.Errno) *Spawner {
	t.Helper()
	helper, err := identity.NewPool(identity.Commands{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if errno != 0 {
		helper.Do(func() {
			err = errors.Join(identity.NoNewPrivileges(), identity.SetFilter(filtertest.Refuse(errno, unix.SYS_OPENAT2)))
		})
	}
	s := &Spawner{o: Options{Workspace: workspace}, helper: helper}
	if err := errors.Join(err, s.openWorkspace()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.root.Close(), unix.Close(s.dir) })
	return s
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
	if err := os.MkdirAll("one/directory", 0o755); err != nil {
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
		{name: "directory", path: "one", code: 127},
		{name: "text", path: "one:two", code: 126},
		{name: "", path: "one", code: 127},
		{name: "any/thing", path: "one", want: "any/thing"},
	} {
		got, err := findProgram(tt.name, []string{"PATH=/none", "PATHS=x", "PATH=" + tt.path})
		failure, _ := errors.AsType[*Failure](err)
		if got != tt.want || (failure != nil) != (tt.code != 0) || failure != nil && failure.Code != tt.code {
			t.Errorf("%q in %q: %q, %v, want %q or code %d", tt.name, tt.path, got, err, tt.want, tt.code)
		}
	}
}

// TestExplain checks the exit status and line for each failure of a start.
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
		err := s.explainError(Request{Argv: []string{"tool"}}, tt.program, tt.err)
		got, ok := errors.AsType[*Failure](err)
		if err == nil || ok != (tt.want != nil) || ok && *got != *tt.want {
			t.Errorf("%v of %s: %#v, want %+v", tt.err, tt.program, err, tt.want)
		}
	}
	if got := quoteShort(strings.Repeat("x", 200)); got != `"`+strings.Repeat("x", 200)+`"` {
		t.Errorf("200 bytes: %s", got)
	}
	if got := quoteShort(strings.Repeat("x", 201)); got != `"`+strings.Repeat("x", 200)+`"…` {
		t.Errorf("201 bytes: %s", got)
	}
}

// TestPipes checks that our sides don't block and the child's do, and all are
// closed on exec. Without input the child has the given descriptor.
func TestPipes(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		var p pipes
		if err := p.openPipes(99, stdin); err != nil {
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
		for _, fd := range made {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("with input %t: the child's descriptor %d is open", stdin, fd)
			}
			if err := unix.Dup3(2, fd, unix.O_CLOEXEC); err != nil {
				t.Error(err)
			}
		}
		p.closeChild() // does nothing: the numbers are others' by now
		for _, fd := range made {
			if err := unix.Close(fd); err != nil {
				t.Errorf("with input %t: descriptor %d, which is another's: %v", stdin, fd, err)
			}
		}
		p.closeOurs()
		if err := p.ours[1].Close(); err == nil {
			t.Error("our side is open")
		}
	}
}

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

// TestOOMScore checks the raised score, and the own one afterwards.
func TestOOMScore(t *testing.T) {
	score := func() string {
		text, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before := score()
	o := openOOMScore(ownOOMScore)
	if o.file == nil {
		t.Skip("this kernel does not let it")
	}
	defer o.file.Close()
	if score() != before {
		t.Errorf("opening it makes it %s", score())
	}
	o.raiseScore()
	if score() != string(highestScore) {
		t.Errorf("raised to %s", score())
	}
	o.restoreScore()
	if score() != before {
		t.Errorf("restored to %s, was %s", score(), before)
	}
	oomScore{}.raiseScore()
	oomScore{}.restoreScore()
}

// TestOOMScoreFile checks that the score is written to the file's beginning.
// Any other file is closed.
func TestOOMScoreFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "score")
	if err := os.WriteFile(file, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := filtertest.Descriptors(t)
	o := openOOMScore(file)
	for want, set := range map[string]func(){"1000": o.raiseScore, "7000": o.restoreScore} {
		set()
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("the file has %q, %v, want %q", got, err, want)
		}
	}
	if err := o.file.Close(); err != nil {
		t.Error(err)
	}
	for _, none := range []string{file + "/none", "/dev/null", "/dev/full"} {
		if o := openOOMScore(none); o.file != nil {
			t.Errorf("%s is a score", none)
		}
	}
	if now := filtertest.Descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

// TestPipesFail checks that pipes are closed if one can't be made.
func TestPipesFail(t *testing.T) {
	before := filtertest.Descriptors(t)
	done := make(chan error)
	identity.Dedicate(func() {
		if err := errors.Join(identity.NoNewPrivileges(), identity.SetFilter(filtertest.Refuse(unix.EPERM, unix.SYS_FCNTL))); err != nil {
			t.Error(err)
		}
		var p pipes
		done <- p.openPipes(99, true)
	})
	if err := <-done; !errors.Is(err, unix.EPERM) {
		t.Errorf("a pipe that blocks: %v", err)
	}
	if now := filtertest.Descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}
