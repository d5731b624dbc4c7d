package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// ownUntilKilled starts a container on dir/workspace with its state in
// dir/state, runs a long command, says so and waits.
func ownUntilKilled(dir string) error {
	state, session := filepath.Join(dir, "state"), os.Getenv(ownerHelper+"_SESSION")
	b, err := New(Options{GuestPath: os.Getenv(ownerHelper + "_GUEST"), StateDir: state, Getenv: os.Getenv})
	if err != nil {
		return err
	}
	held, err := os.Open(filepath.Join(dir, "workspace"))
	if err != nil {
		return err
	}
	own := filepath.Join(state, "sessions", session)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := b.Create(ctx, sandbox.Spec{
		Session: session, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Dir: own,
		Workspace: sandbox.Workspace{Path: held.Name(), Dir: held},
	})
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	if _, err := s.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", "echo hi >made-by-the-command; echo started; sleep 1000"}, Stdout: write}); err != nil {
		return err
	}
	if _, err := bufio.NewReader(read).ReadString('\n'); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready", s.ID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// killedOwner kills a Caisson during a command and returns its container's ID.
func killedOwner(t *testing.T, b *bed, session string) string {
	t.Helper()
	owner := startOwner(t, b, session)
	must(t, owner.Process.Kill())
	owner.Wait()
	return owner.container
}

type ownerProcess struct {
	*exec.Cmd
	container string
}

// startOwner starts another Caisson with a session on the bed's workspace.
func startOwner(t *testing.T, b *bed, session string) ownerProcess {
	t.Helper()
	p, err := tryOwner(t, b, session, nil)
	must(t, err)
	return p
}

func tryOwner(t *testing.T, b *bed, session string, as *syscall.SysProcAttr) (ownerProcess, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testBinary(t, filepath.Dir(b.state)))
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(b.state), ownerHelper+"="+filepath.Dir(b.state), ownerHelper+"_SESSION="+session, ownerHelper+"_GUEST="+guestPath(t))
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, as
	_, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err == nil && !ok {
		err = errors.New("it is not ready")
	}
	if err != nil {
		return ownerProcess{}, fmt.Errorf("the owner said %q: %w", line, err)
	}
	return ownerProcess{cmd, id}, nil
}

// testBinary copies this program to a place where another user can execute it.
func testBinary(t *testing.T, dir string) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	data, err := os.ReadFile(exe)
	must(t, err)
	path := filepath.Join(dir, "owner")
	must(t, sandboxtest.WriteProgram(path, data))
	return path
}

// gone waits until the engine doesn't know a container, and fails if that takes
// too long.
func (b *bed) gone(t *testing.T, id string, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), within, errors.New("the container is still there"))
	defer cancel()
	r, _, err := b.backend.connect(ctx)
	must(t, err)
	for {
		if _, err := r.engine.ContainerInspect(ctx, id); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				t.Fatal(cause)
			}
			return
		}
	}
}

func TestOwnerKilled(t *testing.T) {
	b := newBed(t, os.Geteuid())
	sibling, siblings := b.start(t)
	// Its own workspace, so that it shares nothing with the sibling.
	dead := newBed(t, os.Geteuid())
	session := newSession()
	id := killedOwner(t, dead, session)
	dead.gone(t, id, time.Minute)
	if _, err := os.Lstat(filepath.Join(dead.workspace, ".git")); err != nil {
		t.Errorf("control: nothing is left to sweep: %v", err)
	}
	left, err := dead.backend.Sweep(t.Context())
	must(t, err)
	kinds := map[string]int{}
	for _, l := range left {
		if l.Session != session {
			t.Errorf("swept %+v of another session", l)
		}
		// Staging mounts are left if the owner was killed before it removed
		// them.
		if l.Kind != "mount" && l.Name != "mounts" {
			kinds[l.Kind]++
		}
	}
	if kinds["directory"] != 2 || kinds["placeholder"] != 1 {
		t.Errorf("swept %+v, want the directories of the nonce and the home, and .git", left)
	}
	if _, err := os.Lstat(filepath.Join(dead.workspace, ".git")); err == nil {
		t.Error("the placeholder is left")
	}
	dead.nothingLeft(t, session)
	if _, err := b.backend.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if out, _ := worktest.Shell(t, sibling, "echo alive"); out != "alive\n" {
		t.Errorf("the living sibling %s said %q", siblings, out)
	}
}

// A paused container's guest can't notice that its owner died. The next Caisson
// removes it.
func TestSweepRemovesTheContainerOfADeadOwner(t *testing.T) {
	b := newBed(t, os.Geteuid())
	session := newSession()
	owner := startOwner(t, b, session)
	if out, err := exec.CommandContext(t.Context(), "docker", "pause", owner.container).CombinedOutput(); err != nil {
		t.Skipf("needs the docker command: %v %s", err, out)
	}
	if left, err := b.backend.Sweep(t.Context()); len(left) > 0 || err != nil {
		t.Errorf("swept %v of a living owner (%v)", left, err)
	}
	must(t, owner.Process.Kill())
	owner.Wait()
	left, err := b.backend.Sweep(t.Context())
	must(t, err)
	if len(left) == 0 || left[0].Kind != "container" || left[0].Session != session {
		t.Errorf("swept %+v, want the container first", left)
	}
	b.nothingLeft(t, session)
}
