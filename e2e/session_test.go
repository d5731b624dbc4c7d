package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// deadline bounds one run of caisson that is expected to end by itself.
const deadline = 5 * time.Minute

// hostPath is the PATH of every run, as on a plain system.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// machine has a separate home, state folder and workspace, so that tests don't
// see one another's sessions.
type machine struct {
	home      string
	workspace string
	env       []string
	user      *syscall.Credential // nil is the user who runs the tests
	patience  time.Duration       // for one run; zero is 10 minutes
	program   string              // path of caisson; "" means the one in binaries
}

// newMachine makes a home and an empty workspace. Everything in them is
// removed with the test.
func newMachine(t testing.TB) *machine {
	t.Helper()
	root := t.TempDir()
	m := &machine{home: filepath.Join(root, "home"), workspace: filepath.Join(root, "workspace")}
	for _, dir := range []string{m.home, m.workspace} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Another user must be able to reach them.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			break
		}
	}
	m.env = []string{
		"PATH=" + hostPath,
		"HOME=" + m.home,
		"LANG=C.UTF-8",
		"CI=1",
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		m.env = append(m.env, "DOCKER_HOST="+host)
	}
	return m
}

// stateDir is where the machine's sessions keep their records.
func (m *machine) stateDir() string { return filepath.Join(m.home, ".local", "state", "caisson") }

// become gives the home to another user, who starts all further runs.
func (m *machine) become(t testing.TB, uid, gid uint32, groups ...uint32) {
	t.Helper()
	if int(uid) == os.Getuid() {
		return
	}
	if err := os.Chown(m.home, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	m.user = &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}
}

// write puts a file into the workspace, and read returns one.
func (m *machine) write(t testing.TB, name, content string) {
	t.Helper()
	writeFile(t, filepath.Join(m.workspace, name), content, 0o644)
}

func (m *machine) read(t testing.TB, name string) string {
	t.Helper()
	return string(readFile(t, filepath.Join(m.workspace, name)))
}

// writeFile writes a file, and makes the directories above it that are missing.
func writeFile[T string | []byte](t testing.TB, path string, content T, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// running is a started caisson.
type running struct {
	process *exec.Cmd
	cancel  context.CancelFunc
	stdout  *follower
	stderr  *follower
	ended   chan struct{} // closed when it has
	err     error         // of its end
}

// start starts caisson with arguments. The test ends it if nothing else does.
func (m *machine) start(t testing.TB, args ...string) *running {
	t.Helper()
	patience := m.patience
	if patience == 0 {
		patience = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(t.Context()), patience, errors.New("caisson does not end"))
	r := &running{cancel: cancel, stdout: new(follower), stderr: new(follower), ended: make(chan struct{})}
	program := m.program
	if program == "" {
		program = filepath.Join(binaries(t), "caisson")
	}
	r.process = exec.CommandContext(ctx, program, args...)
	r.process.Dir = m.home
	r.process.Env = m.env
	r.process.Stdout = r.stdout
	r.process.Stderr = r.stderr
	r.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: m.user}
	if err := r.process.Start(); err != nil {
		cancel()
		t.Fatalf("start caisson: %v", err)
	}
	go func() {
		defer close(r.ended)
		r.err = r.process.Wait()
	}()
	t.Cleanup(func() {
		r.cancel()
		<-r.ended
	})
	return r
}

// wait waits at most d for the end.
func (r *running) wait(t testing.TB, d time.Duration) outcome {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(d):
		t.Fatalf("caisson did not end within %s\n%s", d, r.stderr)
	}
	if exit := (*exec.ExitError)(nil); r.err != nil && !errors.As(r.err, &exit) {
		t.Fatalf("wait for caisson: %v", r.err)
	}
	out := outcome{
		status: r.process.ProcessState.ExitCode(),
		stdout: r.stdout.String(),
		stderr: r.stderr.String(),
	}
	if status, ok := r.process.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		out.signal = status.Signal()
	}
	return out
}

// run runs caisson to its end.
func (m *machine) run(t *testing.T, args ...string) outcome {
	t.Helper()
	return m.start(t, args...).wait(t, deadline)
}

// runTask runs one task with records on standard output, and reads them.
func (m *machine) runTask(t *testing.T, args ...string) outcome {
	t.Helper()
	out := m.run(t, taskArgs(m, args...)...)
	out.records = readRecords(t, out.stdout)
	return out
}

// taskArgs are the arguments of `caisson run` on the machine's workspace.
func taskArgs(m *machine, args ...string) []string {
	return append([]string{"run", "--workspace", m.workspace, "--policy", "ci", "--json"}, args...)
}

// outcome is the result of a run of caisson.
type outcome struct {
	status         int            // -1 if a signal ended it
	signal         syscall.Signal // 0 if none did
	stdout, stderr string
	records        records
}

// want fails the test unless the exit status is as expected.
func (o outcome) want(t testing.TB, status int) {
	t.Helper()
	if o.status != status {
		t.Fatalf("exit status %d (signal %d), want %d\nstderr:\n%s\nlast records:\n%s", o.status, o.signal, status, o.stderr, tail(o.stdout, 6))
	}
}

// tail returns the last lines of a text, each cut to 600 characters.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var b strings.Builder
	for _, line := range all[max(0, len(all)-lines):] {
		fmt.Fprintf(&b, "  %.600s\n", line)
	}
	return b.String()
}

// follower is a writer whose text can be read while others write.
type follower struct {
	mu   sync.Mutex
	text bytes.Buffer
}

var _ io.Writer = (*follower)(nil)

// Write implements io.Writer.
func (f *follower) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

// String is what was written so far.
func (f *follower) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

// await waits until standard output holds a text.
func (r *running) await(t *testing.T, text string) {
	t.Helper()
	r.until(t, fmt.Sprintf("%q on standard output", text), func() bool { return strings.Contains(r.stdout.String(), text) })
}

// signal sends a signal, and kill waits until SIGKILL has ended it.
func (r *running) signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := r.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func (r *running) kill(t testing.TB) {
	t.Helper()
	r.signal(t, os.Kill)
	<-r.ended
}

// awaitFile waits until a command has made a file of the workspace.
func (m *machine) awaitFile(t testing.TB, r *running, name string) {
	t.Helper()
	r.until(t, "the command makes "+name, func() bool {
		_, err := os.Stat(filepath.Join(m.workspace, name))
		return err == nil
	})
}

// until waits for a condition. It fails if the run ends first.
func (r *running) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	r.untilWithin(t, what, deadline, ok)
}

// untilWithin is until with another deadline.
func (r *running) untilWithin(t testing.TB, what string, d time.Duration, ok func() bool) {
	t.Helper()
	eventually(t, what, d, func() bool {
		if ok() {
			return true
		}
		select {
		case <-r.ended:
			t.Fatalf("caisson ended without: %s\nstderr:\n%s\nlast records:\n%s", what, r.stderr, tail(r.stdout.String(), 4))
		default:
		}
		return false
	})
}

// eventually polls a condition that nothing announces.
func eventually(t testing.TB, what string, d time.Duration, ok func() bool) {
	t.Helper()
	timeout := time.After(d)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within %s: %s", d, what)
		}
	}
}

// parse reads JSON that a program printed or wrote.
func parse[T any, S string | []byte](t testing.TB, text S) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %.2000s", err, text)
	}
	return v
}

// mustJSON is for script and configuration files.
func mustJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
