package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// orphan is the session of ownUntilKilled.
const orphan = "ses_orphan"

// ownUntilKilled makes a sandbox with a running command, says so, and waits to
// be killed. dir is "kind:runtime:guest:state:workspace".
func ownUntilKilled(dir string) error {
	f := strings.Split(dir, ":")
	backend, err := New(Options{Kind: Kind(f[0]), RuntimePath: f[1], GuestPath: f[2], StateDir: f[3]})
	if err != nil {
		return err
	}
	held, err := os.Open(f[4])
	if err != nil {
		return err
	}
	session := filepath.Join(f[3], "sessions", orphan)
	if err := os.MkdirAll(session, 0o700); err != nil {
		return err
	}
	spec := sandbox.Spec{
		Session: orphan, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Dir: session,
		Workspace: sandbox.Workspace{Path: f[4], Dir: held},
	}
	if layers := filepath.Join(f[3], "layers"); exists(layers) {
		spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
	}
	if root := filepath.Join(f[3], "image"); exists(root) {
		spec.Image, spec.Root = images.Reference{Scheme: images.SchemeRootFS, Value: root}, sandbox.RootEphemeral
	}
	sb, err := backend.Create(context.Background(), spec)
	if err != nil {
		return err
	}
	work := "trap '' TERM; rm -rf directory; echo begun >begun; while :; do mkdir -p a/b; echo x >a/b/f; mv a c; rm -rf c; done"
	if spec.Workspace.Mode != sandbox.ModeOverlay {
		work = "trap '' TERM; exec sleep 4711"
	}
	if spec.Root == sandbox.RootEphemeral {
		work = "scar"
	}
	_, err = sb.Start(context.Background(), sandbox.Command{Argv: []string{"/bin/sh", "-c", work}})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "pid", containerOf(sb).process.pid)
	<-sb.Done()
	return fmt.Errorf("the sandbox ended: %w", sb.Err())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// A Caisson is killed in the middle of changes. They are kept, and a fresh
// sandbox continues with them.
func TestKilledOwnerOfAnOverlay(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		b.workspace = filepath.Join(filepath.Dir(b.workspace), "other") // as startOwner makes it
		must(t, os.MkdirAll(filepath.Join(b.workspace, "directory"), 0o755))
		worktest.Unchanged(t, b.workspace)
		layers := filepath.Join(b.state, "layers")
		worktest.MakeLayers(t, layers, b.workspace)
		container, kill := b.startOwner(t)
		for !exists(filepath.Join(layers, "upper", "begun")) {
			time.Sleep(10 * time.Millisecond) // another process's file
		}
		spec := b.spec(t, "ses_next")
		spec.Workspace.Mode, spec.Workspace.Layers = sandbox.ModeOverlay, layers
		if _, err := b.backend.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrState) {
			t.Errorf("a second sandbox on the layers of a live one: %v", err)
		}
		kill()
		if !container.waitFor(time.Minute) {
			t.Fatal("the container outlives its owner")
		}
		_, err := b.backend.Sweep(t.Context())
		must(t, err)
		// The kernel's directory, which an ordinary user can't look into.
		work := filepath.Join(layers, "work", "work")
		must(t, os.Chmod(work, 0o700))
		t.Cleanup(func() { _ = os.Chmod(work, 0o700) }) // made anew by the next one
		b.nothingLeft(t, orphan)
		sb := b.start(t, spec)
		if got := output(t, sb, "cat begun; test -e directory || echo gone; rm -rf a c; ls"); got != "begun\ngone\nbegun\n" {
			t.Errorf("the next sandbox sees %q", got)
		}
	})
}

// A Caisson is killed after changes to the image's files. The next sweep
// removes them, and the image is unchanged.
func TestKilledOwnerOfARoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: an ordinary user has no writable root")
	}
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, 0)
		b.workspace = filepath.Join(filepath.Dir(b.workspace), "other") // as startOwner makes it
		root := filepath.Join(b.state, "image")
		must(t, os.Rename(shellRoot(t), root))
		must(t, sandboxtest.WriteOpenTree(root))
		before, err := host.Directory(t.Context(), root)
		must(t, err)
		container, kill := b.startOwner(t)
		for !exists(filepath.Join(b.workspace, "begun")) {
			time.Sleep(10 * time.Millisecond) // another process's file
		}
		layer := filepath.Join(b.state, "sessions", orphan, "root/upper")
		if written := exists(filepath.Join(layer, "opt/open/50")); written != (k == Runc) { // gVisor keeps it to itself
			t.Errorf("control: the layer has what was written: %v", written)
		}
		kill()
		if !container.waitFor(time.Minute) {
			t.Fatal("the container outlives its owner")
		}
		_, err = b.backend.Sweep(t.Context())
		must(t, err)
		b.nothingLeft(t, orphan)
		after, err := host.Directory(t.Context(), root)
		must(t, err)
		if before.Digest != after.Digest {
			t.Error("the image was changed")
		}
	})
}

// TestKilledOwner kills a Caisson in the middle of a command. The container
// ends by itself. The next sweep removes the rest, but nothing of a live
// session.
func TestKilledOwner(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		living := b.start(t, b.spec(t, "ses_living"))
		container, kill := b.startOwner(t)

		if left, err := b.backend.Sweep(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("sweep while the owner lives: %v, %v", left, err)
		}
		kill()
		if !container.waitFor(time.Minute) {
			t.Fatal("the container outlives its owner")
		}
		left, err := b.backend.Sweep(t.Context())
		must(t, err)
		kinds := map[string]bool{}
		for _, l := range left {
			kinds[l.Kind] = true
			if l.Session != orphan || !strings.Contains(l.Owner, "pid ") {
				t.Errorf("leftover %+v", l)
			}
		}
		if !kinds["container"] || !kinds["directory"] {
			t.Errorf("sweep found %+v, want a container and a directory at least", left)
		}
		b.nothingLeft(t, orphan)
		if again, err := b.backend.Sweep(t.Context()); err != nil || len(again) != 0 {
			t.Errorf("second sweep: %v, %v", again, err)
		}
		if got := output(t, living, "echo still here"); got != "still here\n" {
			t.Errorf("the living session says %q", got)
		}
	})
}

// startOwner starts another Caisson with a sandbox. It returns the container's
// process, and a function that kills the owner and waits for it.
func (b *bed) startOwner(t *testing.T) (container *hostProcess, kill func()) {
	t.Helper()
	o := b.backend.options
	work := filepath.Join(filepath.Dir(b.workspace), "other")
	must(t, os.MkdirAll(work, 0o755))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{ownerHelper + "=" + strings.Join([]string{string(o.Kind), o.RuntimePath, o.GuestPath, o.StateDir, work}, ":"), "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var pid int
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "pid %d", &pid); err != nil || scanErr != nil {
		t.Fatalf("owner says %q, %v", line, err)
	}
	container, err = openProcess(pid)
	must(t, err)
	t.Cleanup(container.close)
	return container, func() {
		must(t, cmd.Process.Kill())
		if err := cmd.Wait(); err == nil {
			t.Error("the killed owner succeeded")
		}
	}
}

// A sweep removes nothing that isn't the session's, whatever its cleanup list
// names.
func TestSweepChecksNames(t *testing.T) {
	b, err := New(Options{Kind: Runc, RuntimePath: "/absent", GuestPath: "/absent", StateDir: t.TempDir(), Logger: zaptest.NewLogger(t)})
	must(t, err)
	for _, e := range undoCases {
		if was, err := (driver{b}).RemoveEntry(t.Context(), "ses_1", e); was || err == nil {
			t.Errorf("%+v: %v, %v", e, was, err)
		}
	}
}

var undoCases = []ownership.Entry{
	{Kind: ownership.KindContainer, Name: "caisson-ses_2"},
	{Kind: ownership.KindContainer, Name: "web"},
	{Kind: ownership.KindCgroup, Name: "sys/fs/cgroup/memory"},
	{Kind: ownership.KindCgroup, Name: "sys/fs/cgroup/memory/caisson-ses_2"},
	{Kind: ownership.KindVolume, Name: "caisson-ses_1-work"},
}
