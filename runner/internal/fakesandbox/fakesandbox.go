// Package fakesandbox provides a sandbox backend whose commands are Go functions, for tests.
package fakesandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Backend makes sandboxes in memory whose commands are functions. Changes of files are really
// made, in the workspace. Its fields may be changed while no call reads them. Nil functions do
// nothing.
type Backend struct {
	// OnCreate runs first in Create, OnStart first in Start, and OnCreated after a sandbox is
	// made.
	OnCreate  func(ctx context.Context, number int) error
	OnStart   func(ctx context.Context, cmd sandbox.Command) error
	OnCreated func(*Sandbox)
	// OnApply runs instead of a change of files. It calls do to make the change.
	OnApply func(b *Sandbox, op workspace.Op, do func() (workspace.Change, error)) (workspace.Change, error)
	// OnCollect runs instead of a collection. It calls do to collect.
	OnCollect func(b *Sandbox, do func() error) error
	// Lost lists the lost protections that sandboxes attest, and Identities is the number of
	// identities that they attest; zero means all.
	Lost       []string
	Identities int
	// Unkillable maps a script to the number of its processes that survive it.
	Unkillable map[string]int
	// Shortages maps a script to what it lacks.
	Shortages  map[string]sandbox.Shortage
	DestroyErr error
	// Scripts maps a command's last argument to its script. Other runs all other commands; if
	// it is nil, they exit with 127.
	Scripts map[string]Script
	Other   Script

	mu sync.Mutex
	// Sandboxes are all sandboxes made so far, in order.
	Sandboxes []*Sandbox
}

// Script is one command. It writes to cmd.Stdout, and ends when it returns.
type Script func(ctx context.Context, b *Sandbox, cmd sandbox.Command) sandbox.ExitStatus

// Name returns "fake".
func (f *Backend) Name() string { return "fake" }

// Check reports a local backend.
func (f *Backend) Check(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Backend: "fake", Local: true}, nil
}

// Sweep removes nothing.
func (f *Backend) Sweep(context.Context) ([]sandbox.Orphan, error) { return nil, nil }

// List returns nothing.
func (f *Backend) List(context.Context) ([]sandbox.Listing, error) { return nil, nil }

// Create makes a sandbox.
func (f *Backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	f.mu.Lock()
	number := len(f.Sandboxes)
	f.mu.Unlock()
	if f.OnCreate != nil {
		if err := f.OnCreate(ctx, number); err != nil {
			return nil, err
		}
	}
	b := &Sandbox{backend: f, Number: number, Spec: spec, done: make(chan struct{}), Dir: spec.Workspace.Dir}
	switch spec.Workspace.Mode {
	case sandbox.ModeOverlay:
		if err := b.mountOverlay(); err != nil {
			return nil, err
		}
	case sandbox.ModeCopy:
		if err := b.sendCopy(ctx); err != nil {
			return nil, err
		}
	}
	b.Writer = workspace.NewWriter(b.Dir, workspace.WriterOptions{
		HostPath: spec.Workspace.Path, ContainerPath: spec.Workspace.MountPoint(),
	})
	if err := b.startService(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Sandboxes = append(f.Sandboxes, b)
	if f.OnCreated != nil {
		f.OnCreated(b)
	}
	return b, nil
}

// startService starts the script of the spec's service, without a health check.
func (b *Sandbox) startService(ctx context.Context) error {
	spec := b.Spec.Service
	if spec == nil {
		return nil
	}
	life := context.WithoutCancel(ctx)
	if spec.Watch != nil {
		var err error
		if life, err = spec.Watch(ctx, b.Attestation()); err != nil {
			return err
		}
	}
	s := &serviceProcess{output: limits.Tail{Size: 1 << 20}}
	p, err := b.Start(life, sandbox.Command{Argv: spec.Args, Stdout: &s.output})
	if err != nil {
		return err
	}
	s.process = p.(*process)
	b.service = s
	return nil
}

type serviceProcess struct {
	*process
	output limits.Tail
}

// Done is closed when the service has ended.
func (s *serviceProcess) Done() <-chan struct{} { return s.done }

// Output returns what the service wrote.
func (s *serviceProcess) Output() string { return s.output.String() }

// RequireGone fails the test if a sandbox still runs.
func (f *Backend) RequireGone(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.Sandboxes {
		if b.State() != sandbox.StateStopped {
			t.Errorf("sandbox %d is left", b.Number)
		}
	}
}

// Sandbox is one sandbox of a Backend.
type Sandbox struct {
	backend *Backend
	// Number counts from 0. Spec is the argument of Create.
	Number int
	Spec   sandbox.Spec
	// Writer makes the changes of files.
	Writer *workspace.Writer
	// Dir is the workspace as commands see it. merged is where an overlay is mounted, or "".
	Dir    *os.File
	merged string
	copy   *overlay.Copy // in copy mode

	service *serviceProcess // or nil

	mu   sync.Mutex
	done chan struct{}
	err  error
	// Ran lists the started commands.
	Ran []string
}

// ID returns the name of the sandbox.
func (b *Sandbox) ID() string { return fmt.Sprintf("fake-%d", b.Number) }

// State reports whether the sandbox runs.
func (b *Sandbox) State() sandbox.State {
	select {
	case <-b.done:
		return sandbox.StateStopped
	default:
		return sandbox.StateRunning
	}
}

// Attestation returns made-up facts, with the lost protections of the backend.
func (b *Sandbox) Attestation() sandbox.Attestation {
	a := sandbox.Attestation{
		Backend: "fake", Container: b.ID(), Network: "none", User: "10001:10001", Capabilities: []string{},
		GuestCapabilities: []string{}, Isolation: sandbox.IsolationNamespaces, Namespaces: []string{"pid"}, Workspace: b.Spec.Workspace.Path, WorkspaceTarget: b.Spec.Workspace.MountPoint(), WorkspaceMode: string(b.Spec.Workspace.Mode),
		Identities: cmp.Or(b.backend.Identities, sandbox.MaxIdentity+1), Lost: b.backend.Lost,
	}
	if b.service != nil {
		a.Service = &sandbox.AttestedService{Program: b.Spec.Service.Args[0]}
	}
	return a
}

// mountOverlay mounts a real overlay, which needs root.
func (b *Sandbox) mountOverlay() (err error) {
	w := b.Spec.Workspace
	b.merged = filepath.Join(b.Spec.Dir, fmt.Sprintf("merged-%d", b.Number))
	if err := os.Mkdir(b.merged, 0o755); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", strings.Join(append(slices.Clone(w.Lowers), w.Path), ":"), filepath.Join(w.Layers, "upper"), filepath.Join(w.Layers, "work"))
	if err := unix.Mount("overlay", b.merged, "overlay", 0, options); err != nil {
		return fmt.Errorf("%w: mount overlay: %w", sandbox.ErrUnsupported, err)
	}
	b.Dir, err = os.Open(b.merged)
	return err
}

// Ping fails when the sandbox has been lost.
func (b *Sandbox) Ping(context.Context) error { return b.Err() }

// View returns a view of the overlay or the copy, or nil in bind mode.
func (b *Sandbox) View() workspace.View {
	if !b.Spec.Workspace.Mode.KeepsChanges() {
		return nil
	}
	if b.State() == sandbox.StateStopped {
		return lostView{}
	}
	r, err := workspace.NewReader(b.Dir, workspace.ReaderOptions{HostPath: b.Spec.Workspace.Path, ContainerPath: b.Spec.Workspace.MountPoint()})
	if err != nil {
		return lostView{}
	}
	return r
}

// lostView is the view of a sandbox that has ended. Tests call no other methods.
type lostView struct{ workspace.View }

func (lostView) ReadFile(context.Context, string, int64, int64) (workspace.File, error) {
	return workspace.File{}, fmt.Errorf("read: %w", sandbox.ErrLost)
}

func (lostView) Scope(context.Context, string) error { return fmt.Errorf("scope: %w", sandbox.ErrLost) }

// Service returns the service, which a script runs.
func (b *Sandbox) Service() sandbox.ServiceProcess {
	if b.service == nil {
		return nil
	}
	return b.service
}

// Done is closed when the sandbox ends.
func (b *Sandbox) Done() <-chan struct{} { return b.done }

// Err returns the error that End was called with.
func (b *Sandbox) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// End ends the sandbox with an error, or nil if it is destroyed.
func (b *Sandbox) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
	default:
		b.err = err
		if b.copy != nil {
			if err := errors.Join(b.Dir.Close(), os.RemoveAll(b.Dir.Name())); err != nil {
				panic(err)
			}
		}
		if b.merged != "" {
			if err := errors.Join(b.Dir.Close(), unix.Unmount(b.merged, 0), os.Remove(b.merged)); err != nil {
				panic(err)
			}
		}
		close(b.done)
	}
}

// Destroy ends the sandbox.
func (b *Sandbox) Destroy(context.Context) error {
	b.End(nil)
	return b.backend.DestroyErr
}

// Apply makes a change of files.
func (b *Sandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if b.State() == sandbox.StateStopped {
		return workspace.Change{}, fmt.Errorf("apply: %w", sandbox.ErrLost)
	}
	do := func() (workspace.Change, error) { return b.Writer.Apply(ctx, op) }
	if b.backend.OnApply != nil {
		return b.backend.OnApply(b, op, do)
	}
	return do()
}

// Start starts a script.
func (b *Sandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if b.State() == sandbox.StateStopped {
		return nil, &sandbox.StateError{Action: "start", State: sandbox.StateStopped}
	}
	if f := b.backend.OnStart; f != nil {
		if err := f(ctx, cmd); err != nil {
			return nil, err
		}
	}
	p := &process{sandbox: b, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.runScript(ctx, cmd)
	}()
	return p, nil
}

type process struct {
	sandbox *Sandbox
	done    chan struct{}
	exit    sandbox.Exit
	err     error
}

func (p *process) runScript(ctx context.Context, cmd sandbox.Command) {
	if cmd.Argv[0] == "bash" && len(cmd.Argv) == 3 {
		return // the search for bash succeeds
	}
	text := cmd.Argv[len(cmd.Argv)-1]
	p.sandbox.mu.Lock()
	p.sandbox.Ran = append(p.sandbox.Ran, text)
	p.sandbox.mu.Unlock()
	run, ok := p.sandbox.backend.Scripts[text]
	if !ok {
		run = p.sandbox.backend.Other
	}
	if run == nil {
		p.exit.Status.Code = 127
		return
	}
	out := &counter{w: cmd.Stdout}
	cmd.Stdout = out
	p.exit.Status = run(ctx, p.sandbox, cmd)
	p.exit.Stdout = sandbox.Stream{Total: out.n, Live: out.n}
	p.exit.Status.Cancelled = ctx.Err() != nil
	p.exit.Shortage = p.sandbox.backend.Shortages[text]
	p.exit.Kill.Left = p.sandbox.backend.Unkillable[text]
	if p.sandbox.State() == sandbox.StateStopped {
		p.err = fmt.Errorf("wait: %w", sandbox.ErrLost)
	}
}

func (p *process) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, p.err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

// WriteText returns a script that writes text and exits with 0.
func WriteText(text string) Script {
	return func(_ context.Context, _ *Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte(text))
		return sandbox.ExitStatus{}
	}
}

// EndSandbox returns a script that ends its sandbox, by a limit if exceeded is set, otherwise like
// a crash.
func EndSandbox(exceeded bool) Script {
	return func(_ context.Context, b *Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("before the end\n"))
		err := sandbox.ErrLost
		if exceeded {
			err = errors.Join(err, &limits.ExceededError{Kind: limits.KindMemory, Limit: 2 << 30, Used: 2 << 30})
		}
		b.End(err)
		return sandbox.ExitStatus{Code: -1}
	}
}

// WaitForEnd returns a script that writes something, closes started, and ends when it is cancelled
// or its sandbox ends.
func WaitForEnd(started chan<- struct{}) Script {
	return func(ctx context.Context, b *Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("so far\n"))
		close(started)
		select {
		case <-ctx.Done():
		case <-b.done:
		}
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}
}
