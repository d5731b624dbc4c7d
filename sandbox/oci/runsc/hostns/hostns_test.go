package hostns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childHelper makes this binary try, after its parent or itself has confined it,
// what a confined process may not do. Its value is the word for [confineChild].
const childHelper = "HOSTNS_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(childHelper); how != "" {
		if err := confineChild(how); err != nil {
			fmt.Println("confine:", err)
			os.Exit(1)
		}
		tryAll(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// confineChild confines the process unless its parent did.
func confineChild(how string) error {
	switch how {
	case "confine":
		return Confine(Tree{Path: os.Args[1], Writable: true}, Tree{Path: os.Args[2]})
	case "hide":
		return Hide()
	}
	return nil
}

// tryAll prints a line for each attempt, from several threads at once.
func tryAll(writable, readable, other, address string) {
	parent := os.Getppid()
	attempts := []struct {
		name string
		try  func() error
	}{
		{"write in the writable tree", func() error { return os.WriteFile(filepath.Join(writable, "new"), nil, 0o600) }},
		{"rename in the writable tree", func() error {
			return os.Rename(filepath.Join(writable, "a", "file"), filepath.Join(writable, "b", "file"))
		}},
		{"read in the readable tree", func() error { _, err := os.ReadFile(filepath.Join(readable, "file")); return err }},
		{"write in the readable tree", func() error { return os.WriteFile(filepath.Join(readable, "new"), nil, 0o600) }},
		{"read elsewhere", func() error { _, err := os.ReadFile(filepath.Join(other, "file")); return err }},
		{"read elsewhere by a link", func() error { _, err := os.ReadFile(filepath.Join(writable, "link")); return err }},
		{"link from elsewhere", func() error { return os.Link(filepath.Join(other, "file"), filepath.Join(writable, "linked")) }},
		{"connect", func() error {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err
		}},
		{"execute", func() error { return exec.Command("/bin/true").Run() }},
		{"signal the parent", func() error { return unix.Kill(parent, unix.SIGCONT) }},
		{"read own environment", func() error { _, err := os.ReadFile("/proc/self/environ"); return err }},
	}
	var all sync.WaitGroup
	lines := make([]string, len(attempts))
	for i, a := range attempts {
		all.Go(func() { lines[i] = fmt.Sprintf("%s: %t", a.name, a.try() == nil) })
	}
	all.Wait()
	fmt.Println(strings.Join(lines, "\n"))
}

// runChild returns what the child managed to do.
func runChild(t *testing.T, how string, start func(cmd *exec.Cmd, writable, readable string) error) string {
	t.Helper()
	writable, readable, other := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{filepath.Join(writable, "a"), filepath.Join(writable, "b")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{filepath.Join(writable, "a"), readable, other} {
		if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(other, "file"), filepath.Join(writable, "link")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cmd := exec.Command("/proc/self/exe", writable, readable, other, listener.Addr().String())
	cmd.Env = []string{childHelper + "=" + how}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := start(cmd, writable, readable); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return out.String()
}

func needLandlock(t *testing.T) {
	t.Helper()
	if ABI() < 6 {
		t.Skipf("needs Landlock with scopes (Linux 6.12), this kernel has ABI %d", ABI())
	}
}

// confined are the attempts with their results, apart from signals and the
// process's own files.
const confined = `write in the writable tree: true
rename in the writable tree: true
read in the readable tree: true
write in the readable tree: false
read elsewhere: false
read elsewhere by a link: false
link from elsewhere: false
connect: false
execute: false
`

// The control: nothing is refused to a process that is not confined.
func TestNotConfined(t *testing.T) {
	got := runChild(t, "not", func(cmd *exec.Cmd, _, _ string) error { return cmd.Start() })
	if strings.Contains(got, "false") {
		t.Errorf("refused without confinement:\n%s", got)
	}
}

func TestConfine(t *testing.T) {
	needLandlock(t)
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0); errno == unix.ENOTSUP {
		t.Skip("needs a build without cgo, which knows all threads")
	}
	got := runChild(t, "confine", func(cmd *exec.Cmd, _, _ string) error { return cmd.Start() })
	if got != confined+"signal the parent: true\nread own environment: false\n" {
		t.Errorf("a confined process could:\n%s", got)
	}
}

func TestStart(t *testing.T) {
	needLandlock(t)
	got := runChild(t, "started", func(cmd *exec.Cmd, writable, readable string) error {
		return Start(cmd, Tree{Path: writable, Writable: true}, Tree{Path: readable}, Tree{Path: "/proc"}, Tree{Path: os.DevNull, Writable: true}, Tree{Path: filepath.Join(readable, "missing")})
	})
	if got != confined+"signal the parent: false\nread own environment: true\n" {
		t.Errorf("a process started confined could:\n%s", got)
	}
	if _, err := os.ReadDir("/"); err != nil {
		t.Errorf("the starter is confined too: %v", err)
	}
}

// An ordinary user can't read the files of an undumpable process of its own.
func TestHide(t *testing.T) {
	for how, want := range map[string]bool{"not": true, "hide": false} {
		got := runChild(t, how, func(cmd *exec.Cmd, _, _ string) error {
			if os.Geteuid() == 0 { // root may read all
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: overflowID, Gid: overflowID}}
			}
			return cmd.Start()
		})
		if line := "read own environment: " + strconv.FormatBool(want); !strings.Contains(got, line) {
			t.Errorf("%s: not %q:\n%s", how, line, got)
		}
	}
}

func TestIDMap(t *testing.T) {
	var none IDMap
	if host, err := none.ToHost(7); host != 7 || err != nil || none.ToInside(7) != 7 || !none.Maps(7) {
		t.Errorf("without ranges, 7 is %d on the disk (%v) and %d inside", host, err, none.ToInside(7))
	}
	m := IDMap{{Inside: 10001, Host: 1000, Size: 1}, {Inside: 0, Host: 1000, Size: 1}, {Inside: 4_000_000_000, Host: 4_000_000_000, Size: 294_967_295}}
	for host, inside := range map[uint32]uint32{1000: 10001, 0: overflowID, 1001: overflowID, 999: overflowID, 4_000_000_001: 4_000_000_001, 1<<32 - 2: 1<<32 - 2, 1<<32 - 1: overflowID} {
		if got := m.ToInside(host); got != inside || m.Maps(host) != (inside != overflowID) {
			t.Errorf("%d on the disk is %d inside, not %d", host, got, inside)
		}
	}
	for inside, want := range map[uint32]uint32{10001: 1000, 0: 1000, 4_000_000_000: 4_000_000_000} {
		if got, err := m.ToHost(inside); got != want || err != nil {
			t.Errorf("%d inside is %d on the disk (%v), not %d", inside, got, err, want)
		}
	}
	for _, inside := range []uint32{1, 1000, 10000, 10002, overflowID, 1<<32 - 1} {
		if got, err := m.ToHost(inside); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d inside is %d on the disk (%v)", inside, got, err)
		}
	}
}
