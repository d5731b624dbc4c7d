package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// runtimeLike starts a shell with arguments as if it started a container. It is
// at path and runs does.
func runtimeLike(t *testing.T, path, does, id string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, "-c", does, "--detach", id)
	_, err := cmd.StdinPipe() // what reads it waits
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // mostly gone
		_ = cmd.Wait()         // as above
	})
	// Start returns when execve has closed the descriptors, shortly before the
	// kernel shows the new arguments.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		must(t, err)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		must(t, err)
		if ended := strings.Contains(string(stat), ") Z "); ended || strings.HasSuffix(string(line), "\x00"+id+"\x00") {
			return cmd
		}
		if time.Now().After(deadline) {
			t.Fatalf("its command line is %q", line)
		}
	}
}

func copyShell(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	must(t, copyProgram("/bin/sh", path))
	path, err := filepath.EvalSymlinks(path)
	must(t, err)
	return path
}

func TestWaitForRun(t *testing.T) {
	const id = cgroupPrefix + "ses_wait"
	long := time.Hour

	t.Run("it ends by itself", func(t *testing.T) {
		r := &runtimeClient{path: copyShell(t)}
		cmd := runtimeLike(t, r.path, "sleep 0.2; exit 7", id)
		must(t, r.waitForRun(t.Context(), id, long))
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("it ended with %v: it was not waited for", err)
		}
	})
	t.Run("it hangs", func(t *testing.T) {
		r := &runtimeClient{path: copyShell(t)}
		cmds := []*exec.Cmd{}
		for range 3 {
			cmds = append(cmds, runtimeLike(t, r.path, "read x; :", id))
		}
		must(t, r.waitForRun(t.Context(), id, 10*time.Millisecond))
		for _, cmd := range cmds {
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
				t.Errorf("it ended with %v: it was not killed", err)
			}
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		r := &runtimeClient{path: copyShell(t)}
		cmd := runtimeLike(t, r.path, "read x; :", id)
		cause := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := r.waitForRun(ctx, id, long); !errors.Is(err, cause) {
			t.Errorf("error %v", err)
		}
		if !r.isStarting(cmd.Process.Pid, id) {
			t.Error("it was killed")
		}
	})
	t.Run("others", func(t *testing.T) {
		r := &runtimeClient{path: copyShell(t)}
		for name, cmd := range map[string]*exec.Cmd{
			"another program":   runtimeLike(t, "/bin/sh", "read x; :", id),
			"another container": runtimeLike(t, r.path, "read x; :", id+"2"),
		} {
			if r.isStarting(cmd.Process.Pid, id) {
				t.Errorf("%s is taken for the runtime", name)
			}
		}
		// The control.
		if cmd := runtimeLike(t, r.path, "read x; :", id); !r.isStarting(cmd.Process.Pid, id) {
			t.Error("the runtime is not seen")
		}
	})
	t.Run("it has just executed its program", func(t *testing.T) {
		r := &runtimeClient{path: copyShell(t)}
		for range 50 {
			cmd := exec.CommandContext(t.Context(), r.path, "-c", "read x; :", "--detach", id)
			stdin, err := cmd.StdinPipe()
			must(t, err)
			must(t, cmd.Start()) // returns when execve has closed the descriptors
			if !r.isStarting(cmd.Process.Pid, id) {
				t.Error("the runtime is not found while its command line is empty")
			}
			must(t, stdin.Close())
			_ = cmd.Wait() // read finds no line
		}
	})
	t.Run("a script", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "wrapper")
		must(t, sandboxtest.WriteProgram(path, []byte("#!/bin/sh\nsleep 0.2; exit 7\n")))
		r := &runtimeClient{path: path}
		cmd := runtimeLike(t, path, "", id)
		must(t, r.waitForRun(t.Context(), id, long))
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("it ended with %v: it was not waited for", err)
		}
	})
}
