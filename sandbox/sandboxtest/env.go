package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// ownerID is the uid and gid that own the suite's workspaces if it runs as
// root: neither root's nor the commands', so that a mapping shows.
const ownerID = 4242

type env struct {
	target    Target
	base      string
	workspace string
	session   string
	dir       *os.File
	sb        sandbox.Sandbox
	// plant, if not nil, adds to the workspace before it is mounted.
	plant func(e *env) error
	// root asks for a writable root, on target.WritableImage.
	root    bool
	user    sandbox.UserPolicy
	image   images.Reference
	service *sandbox.Service
	egress  *sandbox.EgressPlan
	// overlay asks for a copy-on-write view of the workspace, copied for a
	// copy.
	overlay    bool
	copied     bool
	mountPoint string
	layers     *overlay.Layers
	layersDir  string
	mounts     []sandbox.Mount
	// leaks are descriptors that every child of this process inherits.
	leaks []int
}

func compareSetting[T comparable](name string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s is %v, want %v", name, got, wanted)
	}
	return nil
}

func newEnv(target Target, base string) *env {
	return &env{
		target:    target,
		copied:    target.OnCopies,
		base:      base,
		workspace: filepath.Join(base, "workspace"),
		session:   "ses_" + ulid.Make().String(),
	}
}

func (e *env) start(ctx context.Context, change func(*limits.Resources)) error {
	spec, err := e.newSpec(change)
	if err != nil {
		return err
	}
	e.sb, err = e.target.Backend.Create(ctx, spec)
	if err == nil {
		return nil
	}
	if e.layers != nil {
		err = errors.Join(err, e.layers.Close())
	}
	return errors.Join(err, e.dir.Close())
}

// expectRefused asserts that a start failed with an error of this class and
// text, and left nothing.
func (e *env) expectRefused(ctx context.Context, err, class error, text string) error {
	if err == nil {
		return errors.Join(errors.New("it is accepted"), e.close(ctx))
	}
	if !errors.Is(err, class) || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("error %w, want %w and %q", err, class, text)
	}
	return e.nothingLeft()
}

func (e *env) newSpec(change func(*limits.Resources)) (sandbox.Spec, error) {
	state := e.stateDir()
	for _, dir := range []string{e.workspace, state} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return sandbox.Spec{}, err
		}
	}
	if err := e.fillWorkspace(); err != nil {
		return sandbox.Spec{}, err
	}
	dir, err := os.Open(e.workspace)
	if err != nil {
		return sandbox.Spec{}, err
	}
	e.dir = dir
	r := limits.DefaultResources()
	if change != nil {
		change(&r)
	}
	spec := sandbox.Spec{
		Session:   e.session,
		Setup:     sandbox.Setup{Image: e.target.Image, User: e.user, Service: e.service, Resources: r},
		Workspace: sandbox.Workspace{Path: e.workspace, Dir: dir, Target: e.mountPoint},
		Mounts:    e.mounts,
		Egress:    e.egress,
		Dir:       state,
		Env:       sessionVariables,
	}
	if e.root {
		spec.Root, spec.Image = sandbox.RootEphemeral, e.target.WritableImage
	}
	if e.image.Scheme != "" {
		spec.Image = e.image
	}
	switch {
	case e.overlay:
		spec.Workspace.Mode = sandbox.ModeOverlay
	case e.copied:
		// With this, the other files in memory keep their requested sizes.
		spec.Workspace.Mode, spec.Workspace.CopyBytes = sandbox.ModeCopy, 64<<20
	}
	if spec.Workspace.Mode.KeepsChanges() {
		spec.Workspace.Layers = filepath.Join(e.target.StateDir, "layers-"+ulid.Make().String())
		layers, err := overlay.Create(spec.Workspace.Layers, overlay.CreateOptions{Session: e.session, Path: e.workspace, Workspace: dir})
		if err != nil {
			return spec, err
		}
		e.layers, e.layersDir = layers, spec.Workspace.Layers
		if err := e.freezeFile(); err != nil {
			return spec, err
		}
		spec.Workspace.Lowers = layers.Lowers()
	}
	return spec, nil
}

// frozenFile is a file that only a frozen layer of an overlay or a copy has.
const frozenFile = "in-a-frozen-layer"

// freezeFile makes a frozen layer with a file below the upper layer.
func (e *env) freezeFile() error {
	path := filepath.Join(e.layersDir, overlay.UpperDir, frozenFile)
	if err := errors.Join(os.WriteFile(path, []byte("x"), 0o644), giveToOwner(path)); err != nil {
		return err
	}
	ctx := context.Background()
	return errors.Join(e.layers.Record(ctx, e.dir), e.layers.Freeze(ctx, e.layersDir+"-frozen"))
}

func (e *env) stateDir() string { return filepath.Join(e.target.StateDir, "sessions", e.session) }

// sessionVariables are every session's variables: a new one, and one that
// replaces a default.
var sessionVariables = []string{"SESSION_VARIABLE=a b=\n$HOME", "PAGER=more"}

// fillWorkspace puts the probe into the workspace and sets the owner. Others
// must be able to enter the directories above for a backend that does not map
// IDs.
func (e *env) fillWorkspace() error {
	if err := copyProbe(e.target, e.workspace); err != nil {
		return err
	}
	if e.plant != nil {
		if err := e.plant(e); err != nil {
			return err
		}
	}
	return giveToOwner(e.workspace, filepath.Join(e.workspace, probeName))
}

// giveToOwner gives files to the workspace's owner, if the suite is root.
func giveToOwner(paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var err error
	for _, path := range paths {
		err = errors.Join(err, os.Lchown(path, ownerID, ownerID))
	}
	return err
}

// close destroys the sandbox and asserts that nothing is left.
func (e *env) close(ctx context.Context) error {
	err := e.sb.Destroy(context.WithoutCancel(ctx))
	err = errors.Join(err, e.dir.Close())
	if e.layers != nil {
		err = errors.Join(err, e.layers.Close(), os.RemoveAll(e.layersDir), os.RemoveAll(e.layersDir+"-frozen"))
	}
	return errors.Join(err, e.nothingLeft())
}

func (e *env) nothingLeft() error {
	left, err := e.target.Leftovers(e.session)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %q", left)
	}
	return nil
}

type result struct {
	sandbox.Exit
	out, errOut string
}

func (e *env) runProbe(ctx context.Context, args ...string) (result, error) {
	argv := probeArgv(args...)
	if e.mountPoint != "" {
		argv[0] = e.mountPoint + "/" + probeName
	}
	return e.run(ctx, sandbox.Command{Argv: argv})
}

func probeArgv(args ...string) []string {
	return append([]string{sandbox.WorkspaceDir + "/" + probeName}, args...)
}

func (e *env) run(ctx context.Context, cmd sandbox.Command) (result, error) {
	var out, errOut safeBuffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &errOut
	}
	p, err := e.sb.Start(ctx, cmd)
	if err != nil {
		return result{}, fmt.Errorf("start %q: %w", cmd.Argv, err)
	}
	exit, err := waitProcess(ctx, p)
	r := result{Exit: exit, out: out.String(), errOut: errOut.String()}
	if err != nil {
		return r, fmt.Errorf("wait for %q: %w", cmd.Argv, err)
	}
	return r, nil
}

// stuckTime is how long a command may outlive its context, and a sandbox its
// loss: grace period, kill and proof, on a slow machine.
const stuckTime = 15 * time.Second

// waitProcess waits for a process. It fails if the process outlives ctx by
// stuckTime.
func waitProcess(ctx context.Context, p sandbox.Process) (sandbox.Exit, error) {
	type answer struct {
		exit sandbox.Exit
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		exit, err := p.Wait()
		c <- answer{exit, err}
	}()
	select {
	case a := <-c:
		return a.exit, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-c:
		return a.exit, a.err
	case <-time.After(stuckTime):
		return sandbox.Exit{}, fmt.Errorf("wait did not return within %s of the cancellation", stuckTime)
	}
}

func waitDone(sb sandbox.Sandbox) error {
	select {
	case <-sb.Done():
		return nil
	case <-time.After(stuckTime):
		return fmt.Errorf("the sandbox is %s and not done within %s", sb.State(), stuckTime)
	}
}

// expectOutput runs a verb, which must succeed, and returns its standard
// output.
func (e *env) expectOutput(ctx context.Context, args ...string) (string, error) {
	r, err := e.runProbe(ctx, args...)
	if err != nil {
		return "", err
	}
	if !r.Status.Success() {
		return "", fmt.Errorf("probe %q: %s, stderr %q", args, r.Status, r.errOut)
	}
	return r.out, nil
}

// expectAnswer runs a verb that must print want.
func (e *env) expectAnswer(ctx context.Context, want string, args ...string) error {
	out, err := e.expectOutput(ctx, args...)
	if err == nil && out != want {
		err = fmt.Errorf("%s: %.1000q, want %.1000q", args[0], out, want)
	}
	return err
}

// expectNumber runs a verb that must print a number.
func (e *env) expectNumber(ctx context.Context, args ...string) (int, error) {
	out, err := e.expectOutput(ctx, args...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

func (e *env) countRunning(ctx context.Context, marker string) (int, error) {
	return e.expectNumber(ctx, "ps", marker)
}

func newMarker() string { return "mark-" + strings.ToLower(ulid.Make().String()) }

type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// signalWriter closes seen once want was written.
type signalWriter struct {
	safeBuffer
	want string
	once sync.Once
	seen chan struct{}
}

func newSignalWriter(want string) *signalWriter {
	return &signalWriter{want: want, seen: make(chan struct{})}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	n, err := w.safeBuffer.Write(p)
	if strings.Contains(w.String(), w.want) {
		w.once.Do(func() { close(w.seen) })
	}
	return n, err
}

func (w *signalWriter) waitSeen(ctx context.Context, sb sandbox.Sandbox) error {
	select {
	case <-w.seen:
		return nil
	case <-sb.Done():
		return errorf("no %q in %q: sandbox ended: %w", w.want, w.String(), sb.Err())
	case <-ctx.Done():
		return fmt.Errorf("no %q in %q: %w", w.want, w.String(), context.Cause(ctx))
	}
}

func ownerOf(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("%s: no owner", path)
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid), nil
}
