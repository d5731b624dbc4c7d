//go:build linux

package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeBackend makes sandboxes in memory whose commands are functions. Changes
// of files are really made, in the workspace's own folder.
type fakeBackend struct {
	// create runs first in Create; nil does nothing.
	create func(ctx context.Context, number int) error
	// starting runs first in Start; nil does nothing.
	starting func(ctx context.Context, cmd sandbox.Command) error
	// made is told of each sandbox that was made; nil is nobody.
	made func(*fakeBox)
	// applying runs around each change, which is done by calling do; nil does it.
	applying func(b *fakeBox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error)
	// lacks are protections that the attestation says are lost, left the
	// processes that could not be killed after a script.
	lacks []string
	left  map[string]int
	// destroy is what Destroy fails with.
	destroy error
	// scripts says what a script does; one that is not there exits with 127.
	scripts map[string]script

	mu    sync.Mutex
	boxes []*fakeBox
}

// script is one command: it writes to cmd.Stdout and ends as it returns.
type script func(ctx context.Context, b *fakeBox, cmd sandbox.Command) sandbox.ExitStatus

func (f *fakeBackend) Name() string { return "fake" }

func (f *fakeBackend) Check(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Backend: "fake", Local: true}, nil
}

func (f *fakeBackend) Sweep(context.Context) ([]sandbox.Orphan, error) { return nil, nil }
func (f *fakeBackend) List(context.Context) ([]sandbox.Listing, error) { return nil, nil }

func (f *fakeBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	f.mu.Lock()
	number := len(f.boxes)
	f.mu.Unlock()
	if f.create != nil {
		if err := f.create(ctx, number); err != nil {
			return nil, err
		}
	}
	b := &fakeBox{backend: f, number: number, spec: spec, done: make(chan struct{}), dir: spec.Workspace.Dir}
	if spec.Workspace.Mode == sandbox.ModeOverlay {
		if err := b.mount(); err != nil {
			return nil, err
		}
	}
	b.writer = workspace.NewWriter(b.dir, workspace.WriterOptions{
		HostPath: spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir,
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes = append(f.boxes, b)
	if f.made != nil {
		f.made(b)
	}
	return b, nil
}

// requireGone fails the test where a sandbox is left.
func (f *fakeBackend) requireGone(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.boxes {
		if b.State() != sandbox.StateStopped {
			t.Errorf("sandbox %d is left", b.number)
		}
	}
}

// fakeBox is one sandbox of a fakeBackend.
type fakeBox struct {
	backend *fakeBackend
	number  int
	spec    sandbox.Spec
	writer  *workspace.Writer
	// dir is the workspace as commands see it; merged is where an overlay of it
	// is mounted, "" in bind mode.
	dir    *os.File
	merged string

	mu   sync.Mutex
	done chan struct{}
	err  error
	ran  []string
}

func (b *fakeBox) ID() string { return fmt.Sprintf("fake-%d", b.number) }

func (b *fakeBox) State() sandbox.State {
	select {
	case <-b.done:
		return sandbox.StateStopped
	default:
		return sandbox.StateRunning
	}
}

func (b *fakeBox) Attestation() sandbox.Attestation {
	return sandbox.Attestation{
		Backend: "fake", Container: b.ID(), Network: "none", User: "10001:10001", Capabilities: []string{},
		GuestCapabilities: []string{}, Namespaces: []string{"pid"}, Workspace: b.spec.Workspace.Path, WorkspaceMode: string(b.spec.Workspace.Mode),
		Lost: b.backend.lacks,
	}
}

// mount mounts a real overlay, which root can.
func (b *fakeBox) mount() (err error) {
	w := b.spec.Workspace
	b.merged = filepath.Join(b.spec.Dir, fmt.Sprintf("merged-%d", b.number))
	if err := os.Mkdir(b.merged, 0o755); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", w.Path, filepath.Join(w.Layers, "upper"), filepath.Join(w.Layers, "work"))
	if err := unix.Mount("overlay", b.merged, "overlay", 0, options); err != nil {
		return fmt.Errorf("%w: mount overlay: %w", sandbox.ErrUnsupported, err)
	}
	b.dir, err = os.Open(b.merged)
	return err
}

// Ping answers as long as the box runs.
func (b *fakeBox) Ping(context.Context) error { return b.Err() }

// View is nil where the workspace is mounted as it is.
func (b *fakeBox) View() workspace.View {
	if b.merged == "" {
		return nil
	}
	if b.State() == sandbox.StateStopped {
		return lostView{}
	}
	r, err := workspace.NewReader(b.dir, workspace.ReaderOptions{HostPath: b.spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir})
	if err != nil {
		return lostView{}
	}
	return r
}

// lostView is what a sandbox that ended shows.
type lostView struct{ workspace.View }

func (lostView) ReadFile(context.Context, string, int64, int64) (workspace.File, error) {
	return workspace.File{}, fmt.Errorf("read: %w", sandbox.ErrLost)
}

func (lostView) Scope(context.Context, string) error { return fmt.Errorf("scope: %w", sandbox.ErrLost) }

func (b *fakeBox) Done() <-chan struct{} { return b.done }

func (b *fakeBox) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// die ends the sandbox; err is why, nil for Destroy.
func (b *fakeBox) die(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
	default:
		b.err = err
		if b.merged != "" {
			if err := errors.Join(b.dir.Close(), unix.Unmount(b.merged, 0), os.Remove(b.merged)); err != nil {
				panic(err)
			}
		}
		close(b.done)
	}
}

func (b *fakeBox) Destroy(context.Context) error {
	b.die(nil)
	return b.backend.destroy
}

func (b *fakeBox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if b.State() == sandbox.StateStopped {
		return workspace.Change{}, fmt.Errorf("apply: %w", sandbox.ErrLost)
	}
	do := func() (workspace.Change, error) { return b.writer.Apply(ctx, op) }
	if b.backend.applying != nil {
		return b.backend.applying(b, op, do)
	}
	return do()
}

func (b *fakeBox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if b.State() == sandbox.StateStopped {
		return nil, &sandbox.StateError{Action: "start", State: sandbox.StateStopped}
	}
	if f := b.backend.starting; f != nil {
		if err := f(ctx, cmd); err != nil {
			return nil, err
		}
	}
	p := &fakeProcess{box: b, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(ctx, cmd)
	}()
	return p, nil
}

type fakeProcess struct {
	box  *fakeBox
	done chan struct{}
	exit sandbox.Exit
	err  error
}

func (p *fakeProcess) run(ctx context.Context, cmd sandbox.Command) {
	if cmd.Argv[0] == "bash" && len(cmd.Argv) == 3 {
		return // there is a bash
	}
	text := cmd.Argv[len(cmd.Argv)-1]
	p.box.mu.Lock()
	p.box.ran = append(p.box.ran, text)
	p.box.mu.Unlock()
	run, ok := p.box.backend.scripts[text]
	if !ok {
		p.exit.Status.Code = 127
		return
	}
	out := &counter{w: cmd.Stdout}
	cmd.Stdout = out
	p.exit.Status = run(ctx, p.box, cmd)
	p.exit.Stdout = sandbox.Stream{Total: out.n, Live: out.n}
	p.exit.Status.Cancelled = ctx.Err() != nil
	p.exit.Kill.Left = p.box.backend.left[text]
	if p.box.State() == sandbox.StateStopped {
		p.err = fmt.Errorf("wait: %w", sandbox.ErrLost)
	}
}

func (p *fakeProcess) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, p.err
}

type counter struct {
	w interface{ Write([]byte) (int, error) }
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

// says writes text and exits with 0.
func says(text string) script {
	return func(_ context.Context, _ *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte(text))
		return sandbox.ExitStatus{}
	}
}

// dies ends its sandbox, of its limits or as a crash does.
func dies(exceeded bool) script {
	return func(_ context.Context, b *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("before the end\n"))
		err := sandbox.ErrLost
		if exceeded {
			err = errors.Join(err, &limits.ExceededError{Kind: limits.KindMemory, Limit: 2 << 30, Used: 2 << 30})
		}
		b.die(err)
		return sandbox.ExitStatus{Code: -1}
	}
}

// hangs writes something and ends when it is cancelled, or with its sandbox.
func hangs(started chan<- struct{}) script {
	return func(ctx context.Context, b *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("so far\n"))
		close(started)
		select {
		case <-ctx.Done():
		case <-b.done:
		}
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}
}
