package enter

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Word {
		os.Exit(Run(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// user enters, with the capabilities to mount and to write to the layers.
const user = 10001

// stage has a mount point, a workspace and its layers, for a process to enter.
type stage struct {
	t                     *testing.T
	at, workspace, layers string
	files                 []*os.File // the workspace and the layers, as they were opened
	capabilities          []uintptr
}

func newStage(t *testing.T) *stage {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a mount namespace")
	}
	dir := t.TempDir()
	s := &stage{t: t, at: filepath.Join(dir, "at"), workspace: filepath.Join(dir, "workspace"), layers: filepath.Join(dir, "layers")}
	s.capabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{s.at, s.workspace, s.layers, s.layers + "/upper", s.layers + "/work"} {
		if err := errors.Join(os.Mkdir(name, 0o755), os.Chown(name, user, user)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(s.workspace+"/file", []byte("lower"), 0o644), os.Chown(s.workspace+"/file", user, user)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{s.workspace, s.layers} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		s.files = append(s.files, f)
	}
	return s
}

// run enters with these arguments. It returns the process's output, the message
// on the socket with its descriptor or nil, and the process's error.
func (s *stage) run(args ...string) (out, answer string, root *os.File, err error) {
	s.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	ours := os.NewFile(uintptr(fds[0]), "socket")
	defer ours.Close()
	c := exec.Command("/proc/self/exe", append([]string{Word}, args...)...)
	c.ExtraFiles = append([]*os.File{theirs}, s.files...)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS, AmbientCaps: s.capabilities,
		Credential: &syscall.Credential{Uid: user, Gid: user},
	}
	text, err := c.CombinedOutput()
	_ = theirs.Close()
	conn, err2 := net.FileConn(ours)
	if err2 != nil {
		s.t.Fatal(err2)
	}
	defer conn.Close()
	data, rights := make([]byte, 8<<10), make([]byte, 100)
	n, m, _, _, err2 := conn.(*net.UnixConn).ReadMsgUnix(data, rights)
	if err2 != nil {
		n, m = 0, 0
	}
	if messages, err := unix.ParseSocketControlMessage(rights[:m]); err == nil && len(messages) == 1 {
		if got, err := unix.ParseUnixRights(&messages[0]); err == nil && len(got) == 1 {
			root = os.NewFile(uintptr(got[0]), "root")
			s.t.Cleanup(func() { _ = root.Close() })
		}
	}
	return string(text), string(data[:n]), root, err
}

// TestRun checks that the program sees the overlay, which the socket gets too,
// and has no capabilities and no inherited descriptors.
func TestRun(t *testing.T) {
	s := newStage(t)
	const script = `cat $1/file; echo upper >$1/file; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status | cut -f2 | sort -u; for fd in 3 4 5 6 7; do test -e /proc/$$/fd/$fd && echo $fd; done; exit 0`
	out, answer, root, err := s.run(s.at, s.workspace, s.layers, End, "/bin/sh", "-c", script, "sh", s.at)
	if want := fmt.Sprintf("lower%016x\n", 0); err != nil || out != want || answer != "\x00" {
		t.Errorf("%v, it says %q, want %q; the answer is %q", err, out, want, answer)
	}
	if text, err := os.ReadFile(s.workspace + "/file"); err != nil || string(text) != "lower" {
		t.Errorf("the workspace has %q, %v", text, err)
	}
	if text, err := os.ReadFile(s.layers + "/upper/file"); err != nil || string(text) != "upper\n" {
		t.Errorf("the layer has %q, %v", text, err)
	}
	if entries, err := os.ReadDir(s.at); err != nil || len(entries) != 0 {
		t.Errorf("outside of the namespace the mount point has %v, %v", entries, err)
	}
	if root == nil {
		t.Fatal("no root came")
	}
	if entries, err := root.Readdirnames(0); err != nil || len(entries) != 1 || entries[0] != "file" {
		t.Errorf("the root has %v, %v", entries, err)
	}
}

// TestRunFails checks that failures are reported on the socket and on standard
// error, and nothing is executed.
func TestRunFails(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(s *stage)
		args   func(s *stage) []string // those of a program that writes if nil
		want   string
		after  bool // the root was handed over
	}{
		"may not mount":   {change: func(s *stage) { s.capabilities = nil }, want: "keep mounts in a namespace"},
		"may not write":   {change: func(s *stage) { s.capabilities = s.capabilities[:1] }, want: "make overlay"},
		"no program":      {args: func(s *stage) []string { return []string{s.at, s.workspace, s.layers, End} }, want: "arguments are missing"},
		"no end":          {args: func(s *stage) []string { return []string{s.at, s.workspace, s.layers} }, want: "arguments are missing"},
		"half an overlay": {args: func(s *stage) []string { return []string{s.at, s.workspace, End, "/bin/echo"} }, want: "arguments are missing"},
		"another frozen layer": {args: func(s *stage) []string {
			s.files = append(s.files, s.files[0])
			return []string{s.at, s.workspace, s.layers, Frozen + s.at, End, "/none"}
		}, want: "not the directory"},
		"no such program":   {args: func(s *stage) []string { return []string{s.at, s.workspace, s.layers, End, "/none"} }, want: "no such file", after: true},
		"no mount point":    {change: func(s *stage) { s.at += "/none" }, want: "attach mount"},
		"no workspace":      {change: func(s *stage) { s.workspace += "/none" }, want: "no such file"},
		"no layers":         {change: func(s *stage) { s.layers += "/none" }, want: "no such file"},
		"another workspace": {change: func(s *stage) { s.workspace = s.at }, want: "not the directory"},
		"other layers":      {change: func(s *stage) { s.layers = s.workspace }, want: "not the directory"},

		"no upper layer":    {change: func(s *stage) { s.remove("upper") }, want: "open layer upper"},
		"no work directory": {change: func(s *stage) { s.remove("work") }, want: "open layer work"},
		"upper is a link": {change: func(s *stage) {
			s.remove("upper")
			if err := os.Symlink(s.workspace, s.layers+"/upper"); err != nil {
				t.Fatal(err)
			}
		}, want: "open layer upper"},
		"layers of another file system": {change: func(s *stage) {
			s.layers = "/proc/self"
			f, err := os.Open("/proc")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			s.files[1] = f
		}, want: "not the directory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if tt.change != nil {
				tt.change(s)
			}
			args := []string{s.at, s.workspace, s.layers, End, "/bin/echo", "executed"}
			if tt.args != nil {
				args = tt.args(s)
			}
			out, answer, root, err := s.run(args...)
			failed, ok := errors.AsType[*exec.ExitError](err)
			if !ok || failed.ExitCode() != 1 || !strings.HasPrefix(out, "caisson-guest:") || !strings.Contains(out, tt.want) {
				t.Errorf("%v, it says %q, want %q", err, out, tt.want)
			}
			if (root != nil) != tt.after || !tt.after && !strings.Contains(answer, tt.want) {
				t.Errorf("the answer is %q, with a root %t", answer, root != nil)
			}
		})
	}
}

func (s *stage) remove(name string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.layers, name)); err != nil {
		s.t.Fatal(err)
	}
}
