package main

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
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeBackend runs commands as ordinary processes in the workspace, for tests whose
// commands are trusted.
type fakeBackend struct {
	name string
	// env is the variable with the error of Check and Create, or "".
	env       string
	leftovers []sandbox.Orphan
	listed    []sandbox.Listing
	// waiting is what each start says that it waits for.
	waiting string
	// network is what a command reaches, lost what the sandbox lacks, and runtime the
	// runtime's name and version.
	network, lost, runtime string
	distant                bool
	// isolation is the one to have. If confined is set, it is why there are no
	// namespaces.
	isolation sandbox.Isolation
	confined  string
	// refuses is the error of each Create, or "".
	refuses string
	// journal is a directory that a sweep removes, or "".
	journal string
	// mounts is a pattern of dead processes' mounts that a sweep removes.
	mounts string
	// started is called for each command. It may be nil.
	started func(argv []string)
}

func (f *fakeBackend) Name() string { return f.name }

func (f *fakeBackend) Check(context.Context) (sandbox.Info, error) {
	info := sandbox.Info{Backend: f.name, Runtime: "fake", RuntimeVersion: "1", Local: !f.distant}
	if f.runtime != "" {
		info.Runtime, info.RuntimeVersion, _ = strings.Cut(f.runtime, " ")
	}
	var err error
	info.Isolation, err = f.chooseIsolation()
	if info.Isolation == sandbox.IsolationProcess && f.isolation == "" {
		info.NoNamespaces = f.confined
	}
	return info, errors.Join(err, f.unavailable())
}

func (f *fakeBackend) chooseIsolation() (sandbox.Isolation, error) {
	switch {
	case f.name == "gvisor" && (f.isolation == sandbox.IsolationProcess || f.isolation == "" && f.confined != ""):
		return sandbox.IsolationProcess, nil
	case f.name != "docker" && f.confined != "":
		return "", fmt.Errorf("%w: %w: %s", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, f.confined)
	}
	return sandbox.IsolationNamespaces, nil
}

func (f *fakeBackend) unavailable() error {
	if text := os.Getenv(f.env); text != "" {
		return errors.Join(sandbox.ErrUnavailable, errors.New(text))
	}
	return nil
}

// Sweep removes the journal.
func (f *fakeBackend) Sweep(context.Context) ([]sandbox.Orphan, error) {
	mounts, err := filepath.Glob(f.mounts)
	for _, path := range mounts {
		if failed := unix.Unmount(path, unix.MNT_DETACH); !errors.Is(failed, unix.EINVAL) { // not mounted yet
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return nil, err
	}
	if f.journal != "" {
		return f.leftovers, os.RemoveAll(f.journal)
	}
	return f.leftovers, nil
}
func (f *fakeBackend) List(context.Context) ([]sandbox.Listing, error) { return f.listed, nil }

func (f *fakeBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := f.unavailable(); err != nil {
		return nil, err
	}
	if f.refuses != "" {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrUnavailable, f.refuses)
	}
	if f.waiting != "" && spec.Notify != nil {
		spec.Notify(f.waiting)
	}
	s := &fakeSandbox{backend: f, spec: spec, done: make(chan struct{}), dir: spec.Workspace.Dir, path: spec.Workspace.Path}
	var err error
	switch spec.Workspace.Mode {
	case sandbox.ModeOverlay:
		err = s.mount()
	case sandbox.ModeCopy:
		err = s.sendCopy(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.writer = workspace.NewWriter(s.dir, workspace.WriterOptions{HostPath: spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir})
	if f.network == "proxy" {
		return proxiedSandbox{s}, nil
	}
	return s, nil
}

// proxiedSandbox seems to have a proxy, which nothing uses.
type proxiedSandbox struct{ *fakeSandbox }

func (proxiedSandbox) Serve(sandbox.EgressHandler) {}

type fakeSandbox struct {
	backend *fakeBackend
	spec    sandbox.Spec
	writer  *workspace.Writer
	dir     *os.File
	path    string
	copy    *overlay.Copy
	once    sync.Once
	done    chan struct{}
}

func (s *fakeSandbox) ID() string           { return "fake" }
func (s *fakeSandbox) State() sandbox.State { return sandbox.StateRunning }

func (s *fakeSandbox) mount() (err error) {
	w := s.spec.Workspace
	s.path = filepath.Join(s.spec.Dir, "merged")
	if err := os.Mkdir(s.path, 0o755); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", strings.Join(append(slices.Clip(w.Lowers), w.Path), ":"), filepath.Join(w.Layers, "upper"), filepath.Join(w.Layers, "work"))
	if err := unix.Mount("overlay", s.path, "overlay", 0, options); err != nil {
		return fmt.Errorf("%w: mount overlay: %w", sandbox.ErrUnsupported, err)
	}
	s.dir, err = os.Open(s.path)
	return err
}

func (s *fakeSandbox) Ping(context.Context) error { return s.Err() }

func (s *fakeSandbox) sendCopy(ctx context.Context) (err error) {
	w := s.spec.Workspace
	s.path = filepath.Join(s.spec.Dir, "copy")
	if err := os.Mkdir(s.path, 0o755); err != nil {
		return err
	}
	var tree bytes.Buffer
	if err := overlay.WriteTree(ctx, &tree, w.Layers, w.Lowers, w.Dir, overlay.DefaultCopyBounds); err != nil {
		return err
	}
	if err := archive.Unpack(&tree, s.path, archive.Bounds{}); err != nil {
		return err
	}
	if s.dir, err = os.Open(s.path); err != nil {
		return err
	}
	r, err := workspace.NewReader(s.dir, workspace.ReaderOptions{})
	if err == nil {
		s.copy, err = overlay.OpenCopy(ctx, w.Layers, r, overlay.DefaultCopyBounds)
	}
	return err
}

func (s *fakeSandbox) Collect(ctx context.Context) error {
	if s.copy == nil {
		return sandbox.ErrState
	}
	return s.copy.Collect(ctx)
}

// View is nil if the workspace is mounted directly.
func (s *fakeSandbox) View() workspace.View {
	if s.dir == s.spec.Workspace.Dir {
		return nil
	}
	r, err := workspace.NewReader(s.dir, workspace.ReaderOptions{HostPath: s.spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir})
	if err != nil {
		panic(err)
	}
	return r
}

func (*fakeSandbox) Service() sandbox.ServiceProcess { return nil }

func (s *fakeSandbox) Done() <-chan struct{} { return s.done }
func (s *fakeSandbox) Err() error            { return nil }
func (s *fakeSandbox) Destroy(context.Context) error {
	var err error
	s.once.Do(func() {
		if s.dir != s.spec.Workspace.Dir {
			err = s.dir.Close()
			if s.copy == nil { // an interrupted command may still have files open in it
				err = errors.Join(err, unix.Unmount(s.path, unix.MNT_DETACH))
			}
			err = errors.Join(err, os.RemoveAll(s.path))
		}
		close(s.done)
	})
	return err
}

func (s *fakeSandbox) Attestation() sandbox.Attestation {
	var lost []string
	if s.backend.lost != "" {
		lost = []string{s.backend.lost}
	}
	isolation, _ := s.backend.chooseIsolation() // Check has succeeded
	return sandbox.Attestation{
		Lost: lost, Workspace: s.spec.Workspace.Path, WorkspaceMode: string(s.spec.Workspace.Mode),
		Backend: s.backend.name, Runtime: "fake", RuntimeVersion: "1", Container: "fake", Image: "host", User: "10001:10001",
		Capabilities: []string{}, GuestCapabilities: []string{}, Isolation: isolation, Namespaces: []string{}, Seccomp: "filter", Network: "none", Localhost: []string{"127.0.0.1"},
		Limits: sandbox.AttestedLimits{MemoryBytes: s.spec.Resources.MemoryBytes, PIDs: s.spec.Resources.PIDs},
	}
}

func (s *fakeSandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	return s.writer.Apply(ctx, op)
}

func (s *fakeSandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	dir := filepath.Join(s.path, strings.TrimPrefix(cmd.Dir, sandbox.WorkspaceDir))
	if len(cmd.Argv) > 1 && cmd.Argv[0] == sandbox.GuestPath && cmd.Argv[1] == wire.ReachWord {
		text, err := json.Marshal(fakeReach(s.backend.network, cmd.Argv[2:]))
		if err != nil {
			return nil, err
		}
		cmd.Argv = []string{"echo", string(text)}
	}
	if len(cmd.Argv) > 1 && cmd.Argv[0] == sandbox.GuestPath {
		switch cmd.Argv[1] {
		case archive.PackChangesWord: // nothing has changed
			cmd.Argv = []string{"head", "-c", "1024", "/dev/zero"}
		case archive.UnpackChangesWord:
			cmd.Argv = []string{"sh", "-c", "cat > /dev/null"}
		case "version":
			cmd.Argv = []string{"true"}
		}
	}
	c := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	if cmd.Env == nil {
		cmd.Env = sandbox.SetVariables(nil, s.spec.Env)
	}
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, sandbox.SetVariables(cmd.Env, cmd.Variables), orDiscard(cmd.Stdout), orDiscard(cmd.Stderr)
	if cmd.Stdin != nil { // as in a sandbox, a read that does not return delays no end
		if in, err := c.StdinPipe(); err == nil {
			go func() {
				_, _ = io.Copy(in, cmd.Stdin)
				_ = in.Close()
			}()
		}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if s.backend.started != nil {
		s.backend.started(cmd.Argv)
	}
	p := &fakeProcess{ctx: ctx, cmd: c}
	if err := c.Start(); err != nil {
		p.exit.Status.Code = 127
		p.cmd = nil
	}
	return p, nil
}

// fakeReach returns the network that a command finds: nothing, an interface of the
// engine ("bridge"), everything ("open"), a proxy that refuses ("proxy"), or no answer
// ("silent").
func fakeReach(network string, targets []string) wire.Reach {
	r := wire.Reach{Interfaces: []string{"lo"}, Results: map[string]string{}}
	if network == "bridge" {
		r.Interfaces = append(r.Interfaces, "eth0")
	}
	for _, t := range targets {
		switch network {
		case "open":
			r.Results[t] = "ok"
		case "silent":
		case "proxy":
			r.Results[t] = "ENETUNREACH"
			if strings.HasPrefix(t, wire.ByProxy) {
				r.Results[t] = "403"
			} else if strings.HasPrefix(t, wire.ByName) {
				r.Results[t] = wire.NameUnknown
			}
		default:
			r.Results[t] = "ENETUNREACH"
		}
	}
	return r
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

type fakeProcess struct {
	ctx  context.Context
	cmd  *exec.Cmd
	exit sandbox.Exit
}

func (p *fakeProcess) Wait() (sandbox.Exit, error) {
	if p.cmd == nil {
		return p.exit, nil
	}
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) && p.ctx.Err() == nil {
		return p.exit, fmt.Errorf("%w: %w", sandbox.ErrLost, err)
	}
	p.exit.Status.Code = p.cmd.ProcessState.ExitCode()
	p.exit.Status.Cancelled = p.ctx.Err() != nil
	return p.exit, nil
}
