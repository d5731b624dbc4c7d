package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	guestarchive "github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fakeBackend makes sandboxes in memory that know these commands:
//
//	say TEXT · write NAME TEXT · link NAME TARGET · fill COUNT · flood BYTES · hang · cling
//	gate · cat · env · bytes HEX
//
// Files are really written, in the folder or in a real overlay of it.
type fakeBackend struct {
	// create runs first in Create, if not nil.
	create func(ctx context.Context) error
	// start runs first in Start, if not nil.
	start func(cmd sandbox.Command) error
	// clings is sent to when the command cling has begun, and when it ignores a
	// signal.
	clings chan struct{}
	// gate lets the command gate continue.
	gate chan struct{}

	// transfer, if not nil, replaces the commands that copy files.
	transfer func(context.Context, sandbox.Command) sandbox.ExitStatus

	mu    sync.Mutex
	boxes []*fakeBox
	ran   []string
}

func (f *fakeBackend) Name() string { return "fake" }

func (f *fakeBackend) Check(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Backend: "fake", Local: true}, nil
}
func (f *fakeBackend) Sweep(context.Context) ([]sandbox.Orphan, error) { return nil, nil }
func (f *fakeBackend) List(context.Context) ([]sandbox.Listing, error) { return nil, nil }

func (f *fakeBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if f.create != nil {
		if err := f.create(ctx); err != nil {
			return nil, err
		}
	}
	b := &fakeBox{backend: f, spec: spec, done: make(chan struct{}), dir: spec.Workspace.Dir}
	if spec.Workspace.Mode == sandbox.ModeOverlay {
		if err := b.mount(); err != nil {
			return nil, err
		}
	}
	b.writer = workspace.NewWriter(b.dir, workspace.WriterOptions{HostPath: spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes = append(f.boxes, b)
	return b, nil
}

// commands returns the commands that ran, in order.
func (f *fakeBackend) commands() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.ran...)
}

// requireGone fails the test if a sandbox is left.
func (f *fakeBackend) requireGone(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, b := range f.boxes {
		if b.State() != sandbox.StateStopped {
			t.Errorf("sandbox %d of %d is left", i, len(f.boxes))
		}
	}
}

type fakeBox struct {
	backend *fakeBackend
	spec    sandbox.Spec
	writer  *workspace.Writer
	dir     *os.File
	merged  string

	once sync.Once
	done chan struct{}
}

func (b *fakeBox) ID() string { return "fake-" + b.spec.Session }

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
		Backend: "fake", Container: b.ID(), Network: "none", User: "10001:10001", Capabilities: []string{}, GuestCapabilities: []string{},
		Namespaces: []string{"pid"}, Workspace: b.spec.Workspace.Path, WorkspaceMode: string(b.spec.Workspace.Mode),
	}
}

// mount mounts a real overlay, which needs root.
func (b *fakeBox) mount() (err error) {
	w := b.spec.Workspace
	b.merged = filepath.Join(b.spec.Dir, "merged")
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

func (b *fakeBox) Ping(context.Context) error    { return nil }
func (*fakeBox) Service() sandbox.ServiceProcess { return nil }

func (b *fakeBox) Done() <-chan struct{} { return b.done }
func (b *fakeBox) Err() error            { return nil }

// Collect is for copies, which this fake does not make.
func (*fakeBox) Collect(context.Context) error { return sandbox.ErrState }

func (b *fakeBox) View() workspace.View {
	if b.merged == "" {
		return nil
	}
	r, err := workspace.NewReader(b.dir, workspace.ReaderOptions{HostPath: b.spec.Workspace.Path, ContainerPath: sandbox.WorkspaceDir})
	if err != nil {
		panic(err)
	}
	return r
}

func (b *fakeBox) Destroy(context.Context) error {
	var err error
	b.once.Do(func() {
		if b.merged != "" {
			err = errors.Join(b.dir.Close(), unix.Unmount(b.merged, 0), os.Remove(b.merged))
		}
		close(b.done)
	})
	return err
}

func (b *fakeBox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	return b.writer.Apply(ctx, op)
}

func (b *fakeBox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if b.backend.start != nil {
		if err := b.backend.start(cmd); err != nil {
			return nil, err
		}
	}
	p := &fakeProcess{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.exit = b.run(ctx, cmd)
	}()
	return p, nil
}

// path returns the path of a file in the workspace.
func (b *fakeBox) path(name string) string {
	if b.merged != "" {
		return filepath.Join(b.merged, name)
	}
	return filepath.Join(b.spec.Workspace.Path, name)
}

func (b *fakeBox) run(ctx context.Context, cmd sandbox.Command) (exit sandbox.Exit) {
	if cmd.Argv[0] == "bash" && len(cmd.Argv) == 3 {
		return exit // there is a bash
	}
	if cmd.Argv[0] == sandbox.GuestPath {
		exit.Status = b.transfer(ctx, cmd)
		return exit
	}
	text := cmd.Argv[len(cmd.Argv)-1]
	b.backend.mu.Lock()
	b.backend.ran = append(b.backend.ran, text)
	b.backend.mu.Unlock()
	verb, rest, _ := strings.Cut(text, " ")
	n := 0
	switch verb {
	case "say":
		n, _ = io.WriteString(cmd.Stdout, rest+"\n")
	case "write":
		name, content, _ := strings.Cut(rest, " ")
		if os.WriteFile(b.path(name), []byte(content+"\n"), 0o644) != nil {
			exit.Status.Code = 1
		}
	case "link":
		name, target, _ := strings.Cut(rest, " ")
		if os.Symlink(target, b.path(name)) != nil {
			exit.Status.Code = 1
		}
	case "fill": // files with paths of 3,000 bytes
		dir := b.path(strings.Repeat(strings.Repeat("d", 249)+"/", 12))
		err := os.MkdirAll(dir, 0o755)
		count, _ := strconv.Atoi(rest)
		for i := 0; i < count && err == nil; i++ {
			err = os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644)
		}
		if err != nil {
			exit.Status.Code = 1
		}
	case "flood":
		total, _ := strconv.Atoi(rest)
		for piece := []byte(strings.Repeat("x", 1023) + "\n"); n < total; n += len(piece) {
			_, _ = cmd.Stdout.Write(piece)
		}
	case "hang":
		n, _ = io.WriteString(cmd.Stdout, "so far\n")
		select {
		case <-ctx.Done():
		case <-b.done:
		}
		exit.Status = sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: ctx.Err() != nil}
	case "gate":
		_, _ = io.WriteString(cmd.Stdout, "before\n")
		select {
		case <-b.backend.gate:
			_, _ = io.WriteString(cmd.Stdout, "after\n")
			_, _ = io.WriteString(cmd.Stderr, "done\n")
			exit.Status.Code = 3
		case <-ctx.Done():
			exit.Status = sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
		case <-b.done:
			exit.Status = sandbox.ExitStatus{Code: -1, Signal: 9}
		}
	case "cat":
		if cmd.Stdin != nil {
			_, _ = io.Copy(cmd.Stdout, cmd.Stdin)
		}
	case "env":
		_, _ = io.WriteString(cmd.Stdout, strings.Join(cmd.Variables, "\n"))
	case "bytes":
		text, _ := hex.DecodeString(rest)
		for i := range text { // one at a time
			_, _ = cmd.Stdout.Write(text[i : i+1])
			_, _ = cmd.Stderr.Write(text[i : i+1])
		}
	case "cling": // it ends with its sandbox alone
		b.backend.clings <- struct{}{}
		<-ctx.Done()
		b.backend.clings <- struct{}{}
		<-b.done
		exit.Status = sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}
	default:
		exit.Status.Code = 127
	}
	exit.Stdout = sandbox.Stream{Total: int64(n), Live: int64(n)}
	return exit
}

// transfer packs and unpacks in the workspace, like the guest's binary, or
// calls the test's transfer.
func (b *fakeBox) transfer(ctx context.Context, cmd sandbox.Command) sandbox.ExitStatus {
	if b.backend.transfer != nil {
		return b.backend.transfer(ctx, cmd)
	}
	var err error
	switch cmd.Argv[1] {
	case guestarchive.PackWord:
		err = guestarchive.Pack(cmd.Stdout, b.path(cmd.Argv[2]), guestarchive.PackOptions{Name: cmd.Argv[3], LeaveOut: func(string, error) error { return nil }})
	case guestarchive.UnpackWord:
		r, w := io.Pipe()
		go func() {
			_, err := io.Copy(w, cmd.Stdin)
			w.CloseWithError(err)
		}()
		defer context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })()
		err = guestarchive.Unpack(r, b.path(cmd.Argv[2]), guestarchive.Bounds{})
		r.CloseWithError(io.ErrClosedPipe)
	}
	switch {
	case err == nil:
		return sandbox.ExitStatus{}
	case ctx.Err() != nil:
		return sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
	}
	fmt.Fprintln(cmd.Stderr, err)
	switch {
	case errors.Is(err, guestarchive.ErrNoDirectory):
		return sandbox.ExitStatus{Code: guestarchive.StatusNoDirectory}
	case errors.Is(err, guestarchive.ErrEntry), errors.Is(err, guestarchive.ErrMalformed), errors.Is(err, guestarchive.ErrSpecial):
		return sandbox.ExitStatus{Code: guestarchive.StatusRefused}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return sandbox.ExitStatus{Code: guestarchive.StatusNoFile}
	}
	return sandbox.ExitStatus{Code: 1}
}

type fakeProcess struct {
	done chan struct{}
	exit sandbox.Exit
}

func (p *fakeProcess) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, nil
}
