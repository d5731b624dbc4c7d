package privateengine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

type Engine struct {
	dir        string
	args       []string
	containerd *daemon
	dockerd    *daemon
}

// daemon is a process that ends with the test, however that ends. A locked
// thread waits for it, because Pdeathsig depends on the thread that forked.
type daemon struct {
	*os.Process
	ended chan struct{}
}

// New starts an engine with additional arguments for dockerd. It skips the test
// without root or if a program is missing, or fails it if REQUIRE_BACKENDS
// names docker.
func New(t testing.TB, args ...string) *Engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: an engine of its own")
	}
	search := searchPath()
	for _, program := range []string{"dockerd", "containerd"} {
		if _, err := findProgram(search, program); err != nil {
			skipOrFail(t, fmt.Sprintf("needs %s: %v", program, err))
		}
	}
	dir, err := os.MkdirTemp("", "caisson-engine-")
	must(t, err)
	must(t, os.Chmod(dir, 0o711)) // for root of containers with other IDs
	e := &Engine{dir: dir, args: args}
	before := hostNetwork(t)
	t.Cleanup(func() {
		e.stop(t)
		if after := hostNetwork(t); after != before {
			t.Errorf("the host's network was changed:\n%s", difference(before, after))
		}
	})
	config := filepath.Join(dir, "containerd.toml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "version = 2\nroot = %q\nstate = %q\ndisabled_plugins = %s\n[grpc]\naddress = %q\n",
		dir+"/ctd-root", dir+"/ctd-state", kubernetes, dir+"/ctd.sock"), 0o600))
	e.containerd = e.startProgram(t, "containerd", &syscall.SysProcAttr{}, "--config", config)
	e.Start(t)
	return e
}

// kubernetes are parts of containerd 1 and 2 that only Kubernetes needs.
const kubernetes = `["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]`

// binVariable names a directory with another engine: dockerd, containerd,
// containerd-shim-runc-v2 and optionally runc.
const binVariable = "ENGINE_BIN"

func searchPath() string {
	if dir := os.Getenv(binVariable); dir != "" {
		return dir + string(filepath.ListSeparator) + os.Getenv("PATH")
	}
	return os.Getenv("PATH")
}

func findProgram(search, program string) (string, error) {
	for _, dir := range filepath.SplitList(search) {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil && filepath.IsAbs(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w in %s", exec.ErrNotFound, search)
}

// skipOrFail skips the test, or fails it if REQUIRE_BACKENDS names docker.
func skipOrFail(t testing.TB, reason string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("REQUIRE_BACKENDS"), ","), "docker") {
		t.Fatalf("%s, and REQUIRE_BACKENDS asks for docker", reason)
	}
	t.Skip(reason)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Host returns its address, for DOCKER_HOST and docker.Options.
func (e *Engine) Host() string { return "unix://" + e.Socket() }

// Socket returns its socket's path.
func (e *Engine) Socket() string { return e.dir + "/d.sock" }

// Dir returns a path that is in the command line of each of its processes.
func (e *Engine) Dir() string { return e.dir }

// Start starts the engine again after [Engine.Kill] or [Engine.Stop], and waits
// until it answers.
func (e *Engine) Start(t testing.TB) {
	t.Helper()
	e.dockerd = e.startProgram(t, "dockerd", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, append([]string{
		"--containerd", e.dir + "/ctd.sock", "--containerd-namespace", "caisson-test", "--containerd-plugins-namespace", "caisson-test-plugins",
		"--data-root", e.dir + "/data", "--exec-root", e.dir + "/exec", "--pidfile", e.dir + "/pid", "-H", e.Host(),
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false", "--userland-proxy=false",
	}, e.args...)...)
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("it does not answer"))
	defer cancel()
	for e.pingOnce(ctx) != nil {
		select {
		case <-e.dockerd.ended:
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
			continue
		}
		log, _ := os.ReadFile(filepath.Join(e.dir, "dockerd.log"))
		t.Fatalf("the private engine does not answer:\n%.4000s", log[max(0, len(log)-4000):])
	}
}

func (e *Engine) pingOnce(ctx context.Context) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.Socket())
	}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}

const stopTime = time.Minute

// Kill ends the engine with SIGKILL. Its containers' shims live on.
func (e *Engine) Kill(t testing.TB) {
	t.Helper()
	must(t, e.dockerd.Kill())
	e.awaitEnd(t)
}

// Stop ends the engine like a restart.
func (e *Engine) Stop(t testing.TB) {
	t.Helper()
	must(t, e.dockerd.Signal(syscall.SIGTERM))
	e.awaitEnd(t)
}

func (e *Engine) awaitEnd(t testing.TB) {
	t.Helper()
	select {
	case <-e.dockerd.ended:
		e.dockerd = nil
	case <-time.After(stopTime):
		t.Fatalf("the private engine does not end within %v", stopTime)
	}
}

// Freeze stops the engine: it accepts connections and answers nothing. When
// Freeze returns, every thread is stopped, which the signal alone does not
// promise.
func (e *Engine) Freeze(t testing.TB) {
	t.Helper()
	must(t, e.dockerd.Signal(syscall.SIGSTOP))
	for deadline := time.Now().Add(stopTime); ; time.Sleep(time.Millisecond) {
		// The kernel reports a stop when the last thread has stopped. WNOWAIT
		// keeps the report for a second Freeze.
		var info unix.Siginfo
		must(t, unix.Waitid(unix.P_PID, e.dockerd.Pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil))
		if info.Signo == int32(unix.SIGCHLD) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the private engine does not stop within %v", stopTime)
		}
	}
}

// Thaw lets a frozen engine continue.
func (e *Engine) Thaw(t testing.TB) {
	t.Helper()
	must(t, e.dockerd.Signal(syscall.SIGCONT))
}

// KillShims kills the processes that hold the engine's containers and returns
// their number. The containers' own first processes live on.
func (e *Engine) KillShims(t testing.TB) int {
	t.Helper()
	return killNaming("cmdline", e.dir+"/", "containerd-shim")
}

// killNaming kills the processes whose file in /proc, such as cmdline, has all of the words,
// and returns their number.
func killNaming(file string, words ...string) (killed int) {
	files, _ := filepath.Glob("/proc/[0-9]*/" + file)
	for _, f := range files {
		text, err := os.ReadFile(f)
		lacks := func(word string) bool { return !strings.Contains(string(text), word) }
		if err != nil || slices.ContainsFunc(words, lacks) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

func (e *Engine) startProgram(t testing.TB, program string, attr *syscall.SysProcAttr, args ...string) *daemon {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, program+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	defer log.Close()
	search := searchPath()
	path, err := findProgram(search, program)
	must(t, err)
	cmd := exec.Command(path, args...) // ended by the cleanup, not by the test's context
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), "PATH="+search)
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	d, err := startDaemon(cmd)
	if errors.Is(err, syscall.EPERM) {
		skipOrFail(t, fmt.Sprintf("needs to make a network namespace: %v", err))
	}
	must(t, err)
	return d
}

func startDaemon(cmd *exec.Cmd) (*daemon, error) {
	d, started := &daemon{ended: make(chan struct{})}, make(chan error)
	go func() {
		defer close(d.ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		d.Process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed, mostly
		}
	}()
	return d, <-started
}

func (e *Engine) stop(t testing.TB) {
	t.Helper()
	for _, d := range []*daemon{e.dockerd, e.containerd} {
		if d == nil {
			continue
		}
		_ = d.Signal(syscall.SIGCONT) // it may have ended
		_ = d.Signal(syscall.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(20 * time.Second):
			_ = d.Kill() // as above
			<-d.ended
		}
	}
	killNaming("cmdline", e.dir+"/") // shims whose engine was killed
	// First processes of containers whose engine was killed while it started them. Only their
	// environment names the engine.
	killNaming("environ", "_LIBCONTAINER_STATEDIR="+e.dir+"/")
	const cleanUp = `grep -o " $0/[^ ]*" /proc/self/mountinfo | sort -r | xargs -r umount -l; rm -rf "$0"`
	if out, err := exec.Command("sh", "-c", cleanUp, e.dir).CombinedOutput(); err != nil { // it must be done
		t.Errorf("clean up the private engine: %v %s", err, out)
	}
}
