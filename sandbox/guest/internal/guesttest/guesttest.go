// Package guesttest starts the real guest for tests. It builds the binary once
// per test process and runs it as PID 1 of new namespaces, over pipes.
package guesttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest/plan"
)

// Options describes the container around the guest. The zero value means no
// limits and an empty workspace.
type Options struct {
	// Workspace is the host directory; "" makes one.
	Workspace string
	// Cgroups are directories of cgroup v1 or v2 to put the container into.
	Cgroups []string
	Binds   []plan.Bind
	// Stage makes the stage's own binary a program of the container,
	// /.caisson/stage.
	Stage bool
}

// Guest is a running guest, which the test ends.
type Guest struct {
	Conn io.ReadWriteCloser
	// PID is the guest's on the host.
	PID int
	// Workspace is the host directory behind /workspace.
	Workspace string
	Stderr    *Log
	exited    chan struct{}
	state     *os.ProcessState
}

// Start starts a guest. It skips the test if it can't make namespaces.
func Start(t testing.TB, o Options) *Guest {
	t.Helper()
	Require(t)
	if o.Workspace == "" {
		o.Workspace = Workspace(t)
	}
	guest, stage := builtBinaries(t)
	if o.Stage {
		o.Binds = append(o.Binds, plan.Bind{Source: stage, Path: ".caisson/stage", File: true, ReadOnly: true})
	}
	text, err := json.Marshal(plan.Plan{Root: t.TempDir(), Guest: guest, Workspace: o.Workspace, Binds: o.Binds})
	if err != nil {
		t.Fatal(err)
	}
	gate, open := newPipe(t)
	in, hostOut := newPipe(t)
	hostIn, out := newPipe(t)
	g := &Guest{
		Conn: &duplex{Reader: hostIn, WriteCloser: hostOut, in: hostIn}, Workspace: o.Workspace,
		Stderr: &Log{}, exited: make(chan struct{}),
	}
	cmd := exec.Command(stage, string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, g.Stderr
	cmd.ExtraFiles = []*os.File{gate}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the guest: %v", err)
	}
	for _, f := range []*os.File{gate, in, out} {
		_ = f.Close()
	}
	g.PID = cmd.Process.Pid
	go func() {
		_ = cmd.Wait()
		g.state = cmd.ProcessState
		close(g.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = g.Conn.Close()
		<-g.exited
		if strings.Contains(g.Stderr.String(), "DATA RACE") {
			t.Error("the guest has a data race")
		}
		if t.Failed() {
			t.Logf("the guest said: %s", g.Stderr)
		}
	})
	for _, dir := range o.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(g.PID)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	_ = open.Close()
	return g
}

// Exited waits for the guest's end.
func (g *Guest) Exited() *os.ProcessState {
	<-g.exited
	return g.state
}

// Kill kills the guest with SIGKILL.
func (g *Guest) Kill() { _ = syscall.Kill(g.PID, syscall.SIGKILL) }

// Processes lists the container's processes except the guest, as state and
// program name, including zombies that were not reaped yet.
func (g *Guest) Processes(t testing.TB) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Readlink("/proc/" + strconv.Itoa(g.PID) + "/ns/pid")
	if err != nil {
		return nil
	}
	var out []string
	for _, dir := range dirs {
		ns, err := os.Readlink(dir + "/ns/pid")
		if err != nil || ns != want || dir == "/proc/"+strconv.Itoa(g.PID) {
			continue
		}
		status, _ := os.ReadFile(dir + "/status")
		name, _, _ := strings.Cut(strings.TrimPrefix(string(status), "Name:\t"), "\n")
		_, state, _ := strings.Cut(string(status), "State:\t")
		out = append(out, state[:min(1, len(state))]+" "+name)
	}
	slices.Sort(out)
	return out
}

// Race reports whether the guest is built with the race detector (the variable
// CAISSON_GUEST_RACE), which makes it larger and needs a C compiler.
func Race() bool { return os.Getenv("CAISSON_GUEST_RACE") != "" }

// Living is Processes without zombies.
func (g *Guest) Living(t testing.TB) []string {
	t.Helper()
	return slices.DeleteFunc(g.Processes(t), func(p string) bool { return strings.HasPrefix(p, "Z") })
}

// Require skips the test if the guest can't be run.
func Require(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: the guest runs as PID 1 of new namespaces")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs go: the guest is built for the test")
	}
}

// Workspace makes a directory that commands own.
func Workspace(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "workspace")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, sandbox.CommandUID, sandbox.CommandGID); err != nil {
		t.Fatal(err)
	}
	return dir
}

// built is the directory of the two binaries of all tests of a process.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func buildBinaries() (dir string, err error) {
	dir, err = os.MkdirTemp("", "guesttest")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // commands execute the guest
		return dir, err
	}
	for name, pkg := range map[string]string{
		"caisson-guest": "github.com/caisson-run/caisson/cmd/caisson-guest",
		"stage":         "github.com/caisson-run/caisson/sandbox/guest/internal/guesttest/stage",
	} {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if Race() {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-race")
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w\n%s", pkg, err, text)
		}
	}
	return dir, nil
}

func builtBinaries(t testing.TB) (guest, stage string) {
	t.Helper()
	built.once.Do(func() { built.dir, built.err = buildBinaries() })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "caisson-guest"), filepath.Join(built.dir, "stage")
}

// Clean removes the binaries. Call it at the end of TestMain.
func Clean() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

func newPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

type duplex struct {
	io.Reader
	io.WriteCloser
	in io.Closer
}

func (d *duplex) Close() error {
	_ = d.in.Close()
	return d.WriteCloser.Close()
}

// Log keeps what is written to it. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
