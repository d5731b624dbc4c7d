package oci

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// runtimeClient calls an OCI runtime's command line: version, run (see
// [launch]), state, delete. It is safe for concurrent use.
type runtimeClient struct {
	path  string
	root  string // --root
	cache string // directory for the version, see [lifecycle.RecallFact]
	flags func(runtimeFlags) []string
	log   *zap.Logger

	mu    sync.Mutex
	known runtimeVersion
	stamp time.Time // modification time of the binary when known was read
}

type runtimeVersion struct{ name, number string }

const callTime = 20 * time.Second

// queryVersion runs the runtime once, and again if its file has changed. It
// also uses an earlier process's result, unless the file is a script, which may
// now run another runtime.
func (r *runtimeClient) queryVersion(ctx context.Context) (runtimeVersion, error) {
	info, err := os.Stat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return runtimeVersion{}, fmt.Errorf("runtime %s: %w: install it, or name its path in the configuration", r.path, sandbox.ErrNotFound)
	case err != nil:
		return runtimeVersion{}, fmt.Errorf("runtime %s: %w: %w", r.path, sandbox.ErrUnavailable, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known.name != "" && r.stamp.Equal(info.ModTime()) {
		return r.known, nil
	}
	line, keep := lifecycle.RecallFact(r.cache, "version", r.path)
	v, err := parseVersion(line)
	if err != nil || isScript(r.path) {
		if line, err = r.callRuntime(ctx, "", "--version"); err != nil {
			return runtimeVersion{}, err
		}
		if v, err = parseVersion(line); err != nil {
			return runtimeVersion{}, fmt.Errorf("runtime %s: %w: %w", r.path, sandbox.ErrUnavailable, err)
		}
		keep(v.name + " version " + v.number)
	}
	r.known, r.stamp = v, info.ModTime()
	return v, nil
}

func parseVersion(out string) (runtimeVersion, error) {
	line, _, _ := strings.Cut(out, "\n")
	words := strings.Fields(line)
	if len(words) < 3 || words[1] != "version" {
		return runtimeVersion{}, fmt.Errorf("%q is no version of an OCI runtime", line)
	}
	return runtimeVersion{words[0], words[2]}, nil
}

// deleteContainer removes the runtime's state of a container and kills the
// container if it still runs. For an unknown one it returns false and no error.
// If the runtime can't read its own files because they are damaged, they are
// removed; removing the cgroup then kills what may still run.
func (r *runtimeClient) deleteContainer(ctx context.Context, id string) (removed bool, err error) {
	if len(r.listFiles(id)) == 0 {
		return false, nil
	}
	if r.killOwn(id) {
		return r.removeFiles(ctx, id)
	}
	if _, err := r.callRuntime(ctx, r.root, "delete", "--force", id); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if ctx.Err() != nil || !ok || !exit.Exited() {
			return false, fmt.Errorf("delete container %s: %w", id, err)
		}
		r.log.Warn("the runtime can't delete a container; its files are removed", zap.String("container", id), zap.Error(err))
	}
	_, err = r.removeFiles(ctx, id) // an early failure leaves a lock or an empty directory
	return true, err
}

// killOwn checks whether other processes have the PIDs in runsc's state by now,
// because the container job was started again. `runsc delete` would kill those.
// If so, it kills only what is still the sandbox's, and returns true. runc
// compares start times itself.
func (r *runtimeClient) killOwn(id string) bool {
	state, ok := r.readRunscState(id)
	if !ok {
		return false
	}
	var own []*hostProcess
	foreign := false
	for _, pid := range []int{state.Sandbox.PID, state.Gofer} {
		p, err := openProcess(pid)
		if err != nil {
			continue // it has ended
		}
		defer p.close()
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		switch {
		case err != nil || len(line) == 0: // it has ended
		case strings.HasSuffix(string(line), "\x00"+id+"\x00"):
			own = append(own, p)
		default:
			foreign = true
		}
	}
	if !foreign {
		return false
	}
	for _, p := range own {
		p.sendKill()
		p.waitFor(settleTime)
	}
	return true
}

// runscState is what Caisson needs of runsc's state of a container.
type runscState struct {
	Gofer   int `json:"goferPid"`
	Sandbox struct {
		PID int `json:"pid"`
	} `json:"sandbox"`
}

// readRunscState reads runsc's state of a container. It returns false if that is
// missing or damaged.
func (r *runtimeClient) readRunscState(id string) (s runscState, ok bool) {
	data, err := os.ReadFile(filepath.Join(r.root, fmt.Sprintf("%s_sandbox:%[1]s.state", id)))
	if err != nil || json.Unmarshal(data, &s) != nil {
		return runscState{}, false
	}
	return s, true
}

func (r *runtimeClient) removeFiles(_ context.Context, id string) (removed bool, err error) {
	var errs []error
	files := r.listFiles(id)
	for _, name := range files {
		errs = append(errs, os.RemoveAll(filepath.Join(r.root, name)))
	}
	return len(files) > 0, errors.Join(errs...)
}

// keepsFilesOnly reports whether the runtime is known to be runc or runsc. Of
// their containers only files and cgroups are left once the first process, or
// the sandbox, has ended. `runc delete` then removes both and runs hooks, which
// we have none of (libcontainer, state_linux.go, as of runc 1.0 to 1.4). `runsc
// delete` removes the files and waits for the gofer, which is in the cgroups,
// to end (runsc/container/container.go, Destroy). Removing both ourselves saves
// starting a process: 5 ms of processor time with runc, 20 with runsc.
func (r *runtimeClient) keepsFilesOnly() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known.name == "runc" || r.known.name == "runsc"
}

// listFiles returns a container's files in the runtime's directory: runc keeps
// a directory with the container's name, runsc a state, a lock and a socket.
func (r *runtimeClient) listFiles(id string) []string {
	entries, err := os.ReadDir(r.root)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); n == id || strings.HasPrefix(n, id+"_sandbox:") || n == "runsc-"+id+".sock" {
			names = append(names, n)
		}
	}
	return names
}

func (r *runtimeClient) callRuntime(ctx context.Context, root string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTime, fmt.Errorf("%s did not answer within %s", filepath.Base(r.path), callTime))
	defer cancel()
	if root != "" {
		args = append([]string{"--root", root}, args...)
	}
	cmd := r.newCommand(ctx, args)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if errors.Is(err, fs.ErrPermission) {
			err = cmp.Or(programs.CheckExec(r.path), err)
		}
		err = fmt.Errorf("%s %s: %w: %w", filepath.Base(r.path), args[len(args)-1], sandbox.ErrUnavailable, err)
		if text := lifecycle.OneLine(stderr.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return "", err
	}
	return stdout.String(), nil
}

// newCommand returns a call of the runtime in its own session, out of reach of
// a terminal's signals, and without our environment.
func (r *runtimeClient) newCommand(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.path, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

type tail struct {
	file *os.File
	done chan struct{}
	mu   sync.Mutex
	kept []byte
}

const (
	// maxTail is enough for gVisor's log of a start and all goroutines of a Go
	// panic.
	maxTail = 256 << 10
	// maxHead is enough for the message and first goroutine of a Go panic.
	maxHead = 8 << 10
)

func readTail(f *os.File) *tail {
	t := &tail{file: f, done: make(chan struct{})}
	go t.readAll()
	return t
}

func (t *tail) readAll() {
	defer close(t.done)
	buf := make([]byte, 4<<10)
	for {
		n, err := t.file.Read(buf)
		t.mu.Lock()
		t.kept = append(t.kept, buf[:n]...)
		if over := len(t.kept) - maxTail; over > 0 { // with the rest of the line that this cuts
			t.kept = t.kept[over:]
			t.kept = t.kept[bytes.IndexByte(t.kept, '\n')+1:]
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *tail) waitEnd(most time.Duration) {
	select {
	case <-t.done:
	case <-time.After(most):
	}
}

// split returns the lines of gVisor's own log, and the first bytes of the
// others.
func (t *tail) split() (log, others []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(t.kept) {
		if bytes.HasPrefix(line, []byte(`{"msg":`)) {
			log = append(log, line...)
		} else {
			others = append(others, line...)
		}
	}
	return log, others[:min(len(others), maxHead)]
}

func (t *tail) close() {
	_ = t.file.Close() // it was only read
	<-t.done
}

// logMessages returns the errors in a runtime's log, which has a JSON object
// per line.
func logMessages(data []byte) string {
	var found []string
	for line := range bytes.Lines(data) {
		var m struct{ Level, Msg string }
		if json.Unmarshal(line, &m) == nil && (m.Level == "error" || m.Level == "fatal") {
			found = append(found, m.Msg)
		}
	}
	return strings.Join(found, "; ")
}
