//go:build linux

package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// privateEngine is an engine of a test's own, which it may stop, kill and
// restart. It runs in a network namespace of its own: an engine without a
// bridge removes docker0 where it finds one (moby issue 26989).
type privateEngine struct {
	dir        string
	args       []string
	containerd *daemon
	dockerd    *daemon
}

// daemon is a process that ends with the test, however that ends: a thread
// waits for it, because Pdeathsig is about the thread that forked.
type daemon struct {
	*os.Process
	ended chan struct{}
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
			cmd.Wait()
		}
	}()
	return d, <-started
}

func newPrivateEngine(t *testing.T, args ...string) *privateEngine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: an engine of its own")
	}
	for _, program := range []string{"dockerd", "containerd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	dir, err := os.MkdirTemp("", "caisson-engine-") //nolint:usetesting // t.TempDir is too long for a socket
	must(t, err)
	e := &privateEngine{dir: dir, args: args}
	bridge, bridgeErr := net.InterfaceByName("docker0")
	t.Cleanup(func() {
		e.stop(t)
		if out, err := exec.Command("sh", "-c", `grep -o " $0/[^ ]*" /proc/self/mountinfo | sort -r | xargs -r umount -l; rm -rf "$0"`, dir).CombinedOutput(); err != nil {
			t.Errorf("clean up the private engine: %v %s", err, out)
		}
		if after, err := net.InterfaceByName("docker0"); (err == nil) != (bridgeErr == nil) || err == nil && after.Index != bridge.Index {
			t.Errorf("the machine's docker0 was %v and is %v", bridge, after)
		}
	})
	config := filepath.Join(dir, "containerd.toml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		dir+"/ctd-root", dir+"/ctd-state", dir+"/ctd.sock"), 0o600))
	e.containerd = e.run(t, "containerd", &syscall.SysProcAttr{}, "--config", config)
	e.start(t)
	return e
}

func (e *privateEngine) run(t *testing.T, program string, attr *syscall.SysProcAttr, args ...string) *daemon {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, program+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	d, err := startDaemon(cmd)
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("needs to make a network namespace: %v", err)
	}
	must(t, err)
	return d
}

// start starts the engine and waits until it answers.
func (e *privateEngine) start(t *testing.T) {
	t.Helper()
	e.dockerd = e.run(t, "dockerd", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, append([]string{
		"--containerd", e.dir + "/ctd.sock", "--containerd-namespace", "caisson-test", "--containerd-plugins-namespace", "caisson-test-plugins",
		"--data-root", e.dir + "/data", "--exec-root", e.dir + "/exec", "--pidfile", e.dir + "/pid", "-H", "unix://" + e.dir + "/d.sock",
		"--bridge=none", "--iptables=false", "--ip-masq=false", "--ip-forward=false",
	}, e.args...)...)
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errDeadline)
	defer cancel()
	for {
		r, err := dial(ctx, endpoint{host: e.host()}, defaultDeadlines())
		if err == nil {
			r.engine.Close()
			return
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(filepath.Join(e.dir, "dockerd.log"))
			t.Fatalf("the private engine does not answer: %v\n%s", err, log)
		}
	}
}

func (e *privateEngine) host() string { return "unix://" + e.dir + "/d.sock" }

// kill ends the engine without a chance to clean up.
func (e *privateEngine) kill(t *testing.T) {
	t.Helper()
	must(t, e.dockerd.Kill())
	<-e.dockerd.ended
	e.dockerd = nil
}

func (e *privateEngine) stop(t *testing.T) {
	t.Helper()
	for _, d := range []*daemon{e.dockerd, e.containerd} {
		if d == nil {
			continue
		}
		d.Signal(syscall.SIGCONT)
		d.Signal(syscall.SIGTERM)
		<-d.ended
	}
}

// privateBed is a bed whose backend uses a private engine.
func privateBed(t *testing.T, e *privateEngine, o Options) *bed {
	t.Helper()
	base := t.TempDir()
	b := &bed{state: filepath.Join(base, "state"), workspace: filepath.Join(base, "workspace")}
	must(t, os.MkdirAll(b.state, 0o700))
	must(t, os.Mkdir(b.workspace, 0o755))
	o.Host = e.host()
	b.backend = b.open(t, o)
	return b
}
