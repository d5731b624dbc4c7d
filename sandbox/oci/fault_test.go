package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// faultTime is long because gVisor waits for its own parts on a loaded machine.
const faultTime = 30 * time.Second

func runtimeCall(t *testing.T, c *container, args ...string) {
	t.Helper()
	r := c.backend.runtime
	if _, err := r.callRuntime(t.Context(), r.root, args...); err != nil {
		t.Error(err)
	}
}

func killNaming(t *testing.T, words ...string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	killed := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(data), words[0]) || !strings.Contains(string(data), words[1]) {
			continue
		}
		p, err := openProcess(int(parseNumber(filepath.Base(filepath.Dir(f)))))
		must(t, err)
		p.sendKill()
		p.close()
		killed++
	}
	if killed == 0 {
		t.Errorf("no process has %q", words)
	}
}

// The runtime can no longer delete its container. We can, and the name is free
// again.
func TestDamagedRuntimeState(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		for range 2 {
			spec := b.spec(t, "ses_damage")
			sb, err := b.backend.Create(t.Context(), spec)
			must(t, err)
			damaged := 0
			must(t, filepath.WalkDir(b.backend.runtime.root, func(p string, d os.DirEntry, err error) error {
				if err == nil && (strings.HasSuffix(p, ".state") || d.Name() == "state.json") {
					damaged++
					return os.WriteFile(p, []byte(`{"half":`), 0o600)
				}
				return err
			}))
			if damaged == 0 {
				t.Fatal("the runtime keeps no state where it was expected")
			}
			must(t, sb.Destroy(context.Background()))
			b.nothingLeft(t, spec.Session)
		}
	})
}

// lost runs a command that writes a line each time it is run, calls do, and
// requires a typed loss.
func lost(t *testing.T, b *bed, sb sandbox.Sandbox, timeout time.Duration, do func()) {
	t.Helper()
	started := make(chan struct{})
	p, err := sb.Start(t.Context(), sandbox.Command{
		Argv: []string{"/bin/sh", "-c", "echo ran >>times; echo running; exec sleep 1000"}, Grace: 100 * time.Millisecond,
		Timeout: timeout, Stdout: onWrite(func() { close(started) }),
	})
	must(t, err)
	<-started
	do()
	if exit, err := p.Wait(); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("the command's end: %v, %v, want ErrLost", exit.Status, err)
	}
	select {
	case <-sb.Done():
	case <-time.After(faultTime):
		t.Fatal("the loss is not noticed")
	}
	if !errors.Is(sb.Err(), sandbox.ErrLost) {
		t.Errorf("the sandbox's end: %v", sb.Err())
	}
	t.Logf("lost: %v", sb.Err())
	ran, err := os.ReadFile(filepath.Join(b.workspace, "times"))
	if must(t, err); string(ran) != "ran\n" {
		t.Errorf("the command was run: %q", ran)
	}
}

type onWrite func()

func (f onWrite) Write(p []byte) (int, error) { f(); return len(p), nil }

// After an accident while a command runs, the sandbox can be destroyed, nothing
// is left, and the session's ID can be used again.
func TestFaultsMidCommand(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		name string
		kind Kind
		root bool
		do   func(t *testing.T, c *container)
	}{
		{"frozen by the operator", Runc, true, func(t *testing.T, c *container) { runtimeCall(t, c, "pause", c.id) }},
		{"cgroup frozen", Runc, true, func(t *testing.T, c *container) { freeze(t, c) }},
		{"cgroup frozen", GVisor, true, func(t *testing.T, c *container) { freeze(t, c) }},
		{"stopped", Runc, false, func(t *testing.T, c *container) {
			must(t, stopProcess(c.process.pid))
		}},
		{"gofer killed", GVisor, false, func(t *testing.T, c *container) { killNaming(t, c.id, "runsc-gofer") }},
		{"killed by the runtime", GVisor, false, func(t *testing.T, c *container) { runtimeCall(t, c, "kill", c.id, "KILL") }},
		{"killed and deleted by the runtime", Runc, false, func(t *testing.T, c *container) { runtimeCall(t, c, "delete", "--force", c.id) }},
		{"everything killed", GVisor, false, func(t *testing.T, c *container) { killNaming(t, c.id, "runsc") }},
		{"bundle removed, then killed", Runc, false, func(t *testing.T, c *container) {
			must(t, os.RemoveAll(c.bundle.dir))
			c.process.sendKill()
		}},
		{"bundle removed, then killed", GVisor, false, func(t *testing.T, c *container) {
			must(t, os.RemoveAll(c.bundle.dir))
			c.process.sendKill()
		}},
		{"runtime's directory removed, then killed", Runc, false, func(t *testing.T, c *container) {
			must(t, os.RemoveAll(c.backend.runtime.root))
			c.process.sendKill()
		}},
		{"runtime's directory removed, then killed", GVisor, false, func(t *testing.T, c *container) {
			must(t, os.RemoveAll(c.backend.runtime.root))
			c.process.sendKill()
		}},
	} {
		t.Run(string(tt.kind)+" "+tt.name, func(t *testing.T) {
			if tt.root && os.Geteuid() != 0 {
				t.Skip("needs root: an ordinary user has no cgroups")
			}
			t.Parallel() // they wait nearly all the time
			session := fmt.Sprintf("ses_fault%d", i)
			b := newBed(t, tt.kind, os.Geteuid())
			timeout := time.Hour
			if !strings.Contains(tt.name, "killed") { // its silence is waited for
				timeout = 10 * time.Second
				b.backend.lifecycle.AnswerTime = 20 * time.Second // its hello on a machine under load too
			}
			sb, err := b.backend.Create(t.Context(), b.spec(t, session))
			must(t, err)
			lost(t, b, sb, timeout, func() { tt.do(t, containerOf(sb)) })
			must(t, sb.Destroy(t.Context()))
			b.nothingLeft(t, session)
			again := b.start(t, b.spec(t, session))
			if got := output(t, again, "echo again"); got != "again\n" {
				t.Errorf("the id's next sandbox says %q", got)
			}
		})
	}
}

func freeze(t *testing.T, c *container) {
	t.Helper()
	for _, dir := range c.plan.cgroup.dirs {
		for name, value := range map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1"} {
			file := filepath.Join(dir, name)
			if _, err := os.Stat(file); err == nil {
				must(t, os.WriteFile(file, []byte(value), 0))
				return
			}
		}
	}
	t.Skip("needs a freezer: this kernel has none for the sandbox's cgroup")
}

// TestInitKilled kills a runtime's processes at random moments of a start.
// Create must fail with a typed error and leave nothing.
func TestInitKilled(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		killed := 0
		for i := range 12 {
			ctx, stop := context.WithCancel(t.Context())
			spec, hunted := b.spec(t, "ses_init"), make(chan int)
			go func() { hunted <- hunt(ctx, cgroupPrefix+spec.Session, time.Duration(i)*3*time.Millisecond) }()
			sb, err := b.backend.Create(t.Context(), spec)
			stop()
			killed += <-hunted
			switch {
			case err == nil:
				must(t, sb.Destroy(context.Background()))
			case !errors.Is(err, sandbox.ErrUnavailable) && !errors.Is(err, sandbox.ErrLost):
				t.Errorf("create: %v, want ErrUnavailable or ErrLost", err)
			}
			b.nothingLeft(t, spec.Session)
		}
		if killed == 0 {
			t.Error("control: no process was ever hit")
		}
	})
}

// hunt waits until a process names the container, then a little longer, and
// kills one that does.
func hunt(ctx context.Context, name string, later time.Duration) int {
	for ctx.Err() == nil {
		processes, err := processesNaming(name)
		if err != nil || len(processes) == 0 {
			pauseBriefly()
			continue
		}
		time.Sleep(later)
		processes, err = processesNaming(name)
		if err != nil || len(processes) == 0 {
			return 0
		}
		var pid int
		if _, err := fmt.Sscanf(processes[len(processes)-1], "process /proc/%d/cmdline", &pid); err != nil {
			return 0
		}
		if unix.Kill(pid, unix.SIGKILL) == nil {
			return 1
		}
	}
	return 0
}

// An ID that a crashed Caisson left is refused, with an error that says so,
// until a sweep frees it.
func TestStaleID(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		_, kill := b.startOwner(t)
		kill()
		if _, err := b.backend.Create(t.Context(), b.spec(t, orphan)); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("create over a dead session's: %v, want ErrInvalid", err)
		}
		list, err := b.backend.List(t.Context())
		must(t, err)
		if len(list) != 1 || list[0].Session != orphan || list[0].Owner.State != "dead" {
			t.Errorf("list: %+v", list)
		}
		_, err = b.backend.Sweep(t.Context())
		must(t, err)
		b.nothingLeft(t, orphan)
		sb := b.start(t, b.spec(t, orphan))
		list, err = b.backend.List(t.Context())
		must(t, err)
		if len(list) != 1 || list[0].State != sandbox.ListedRunning || list[0].Owner.State != "alive" || list[0].Image != "host" ||
			list[0].Workspace != b.workspace || list[0].Container != sb.ID() {
			t.Errorf("list: %+v", list)
		}
		if os.Geteuid() == 0 && list[0].MemoryBytes <= 0 {
			t.Error("its memory is not told")
		}
	})
}
