//go:build linux

package sandboxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/service"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Fake is an in-memory sandbox.Backend: no process and no container, but the
// probe's verbs done in process on a real directory. Code above the contract is
// tested with it. It has one fault at most.
type Fake struct {
	Fault Fault
	// StateDir is a directory that no mount may be in; empty for none.
	StateDir string

	mu    sync.Mutex
	alive map[string]*fakeSandbox // by session
	// planted are the words that sandboxes were given to leave traces of.
	planted map[string]string // to the session
	scarred bool              // a command changed its root
}

// Name is "fake".
func (f *Fake) Name() string { return "fake" }

// Check never fails.
func (f *Fake) Check(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Backend: "fake", Runtime: "fake", RuntimeVersion: "1", Local: true}, nil
}

// Sweep finds nothing: a fake's sandboxes die with the process.
func (f *Fake) Sweep(context.Context) ([]sandbox.Orphan, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var removed []sandbox.Orphan
	for session := range f.alive {
		if f.Fault == FaultSweepsLiving {
			removed = append(removed, sandbox.Orphan{Session: session})
		}
	}
	return removed, nil
}

// List finds nothing: what the fake makes lives in this process alone.
func (f *Fake) List(context.Context) ([]sandbox.Listing, error) { return nil, nil }

// Leftovers lists what is alive of a session.
func (f *Fake) Leftovers(session string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alive[session] != nil {
		return []string{"container " + session}, nil
	}
	return nil, nil
}

// HostProcess is none: a fake runs in this process.
func (f *Fake) HostProcess(context.Context, sandbox.Sandbox) (int, error) { return 0, nil }

// Pause freezes a sandbox: it answers no cancellation any more.
func (f *Fake) Pause(_ context.Context, sb sandbox.Sandbox) error {
	s, ok := sb.(*fakeSandbox)
	if !ok {
		return fmt.Errorf("%T is no fake", sb)
	}
	s.paused.Store(true)
	return nil
}

// Kill ends a sandbox as a crash would.
func (f *Fake) Kill(_ context.Context, sb sandbox.Sandbox) error {
	s, ok := sb.(*fakeSandbox)
	if !ok {
		return fmt.Errorf("%T is no fake", sb)
	}
	s.stop(fmt.Errorf("%w: killed", sandbox.ErrLost))
	return nil
}

// Create makes a sandbox on the workspace's directory.
func (f *Fake) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	if err := validateSpec(spec, f.StateDir); err != nil && f.Fault != FaultAnySpec {
		return nil, fmt.Errorf("create sandbox: %w: %w", sandbox.ErrInvalid, err)
	}
	if spec.Image.Scheme == images.SchemeRootFS && f.Fault != FaultAnySpec {
		if _, err := os.Stat(spec.Image.Value); err != nil {
			return nil, fmt.Errorf("create sandbox: %w: %w", sandbox.ErrNotFound, err)
		}
	}
	if spec.Root == sandbox.RootEphemeral && spec.Image.Scheme == images.SchemeHost {
		return nil, fmt.Errorf("create sandbox: %w: image host", sandbox.ErrUnsupported)
	}
	layered := slices.ContainsFunc(spec.Mounts, func(m sandbox.Mount) bool { return m.Layers != "" })
	if (spec.Workspace.Mode == sandbox.ModeOverlay || layered) && f.Fault != FaultOverlay {
		return nil, fmt.Errorf("create sandbox: %w: a fake has no overlay", sandbox.ErrUnsupported)
	}
	owner, err := ownerOf(spec.Workspace.Path)
	if err != nil {
		return nil, err
	}
	plan, err := f.planService(spec)
	if err != nil {
		return nil, err
	}
	sb := &fakeSandbox{
		backend: f, spec: spec, original: spec.Workspace.Path, owner: owner, done: make(chan struct{}),
	}
	if err := sb.findAccount(); err != nil {
		return nil, err
	}
	if spec.Workspace.Mode == sandbox.ModeCopy {
		if err := sb.sendCopy(ctx); err != nil {
			return nil, err
		}
	}
	sb.writer = workspace.NewWriter(sb.spec.Workspace.Dir, workspace.WriterOptions{ContainerPath: sb.mountPoint()})
	if err := sb.makeMounts(); err != nil {
		return nil, err
	}
	sb.life.Advance(sandbox.StateCreated)
	sb.life.Advance(sandbox.StateRunning)
	f.mu.Lock()
	if f.alive == nil {
		f.alive = map[string]*fakeSandbox{}
	}
	f.alive[spec.Session] = sb
	f.mu.Unlock()
	if err := sb.startService(ctx, plan); err != nil {
		if f.Fault == FaultServiceLeft {
			sb.stop(nil) // and not forgotten
			return nil, err
		}
		return nil, errors.Join(err, sb.Destroy(ctx))
	}
	return sb, nil
}

// planService returns the plan of the service of a spec, nil if it has none.
func (f *Fake) planService(spec sandbox.Spec) (*service.Plan, error) {
	if spec.Service == nil {
		return nil, nil
	}
	of := *spec.Service
	switch f.Fault {
	case FaultServiceEarly:
		if err := of.Check(); err != nil {
			return nil, err
		}
		of.HealthCheck = nil
	case FaultServiceAsAgent:
		of.AsAgent = true
	}
	return service.NewPlan(of, images.Config{}, spec.Workspace.MountPoint())
}

// startService starts a service and waits until it is healthy.
func (s *fakeSandbox) startService(ctx context.Context, plan *service.Plan) error {
	if plan == nil {
		return nil
	}
	var err error
	s.service, err = service.Start(ctx, plan, service.Options{Start: s.Start, Life: context.WithoutCancel(ctx), Identities: sandbox.MaxIdentity + 1})
	return err
}

// Service returns the service.
func (s *fakeSandbox) Service() sandbox.ServiceProcess {
	if s.service == nil {
		return nil
	}
	return s.service
}

func validateSpec(spec sandbox.Spec, stateDir string) error {
	switch {
	case !strings.HasPrefix(spec.Session, "ses_") || strings.ContainsAny(spec.Session, "/."):
		return fmt.Errorf("session %q", spec.Session)
	case spec.Workspace.Dir == nil:
		return errors.New("no workspace")
	case spec.Image.Scheme == "":
		return errors.New("no image")
	case spec.User != "" && spec.User != sandbox.UserOwner && spec.User != sandbox.UserImage && spec.User != sandbox.UserRoot:
		return fmt.Errorf("user %q", spec.User)
	case spec.Git != "" && spec.Git != sandbox.GitReadOnly && spec.Git != sandbox.GitCommit:
		return fmt.Errorf("git mode %q", spec.Git)
	}
	return errors.Join(checkMountsOf(spec, stateDir), sandbox.CheckVariables(spec.Env), spec.Egress.Validate(spec.Env), sandbox.CheckTarget(spec.Workspace.MountPoint()), spec.Resources.Validate())
}

// fakeSandbox is one sandbox of a Fake.
type fakeSandbox struct {
	backend *Fake
	spec    sandbox.Spec
	mounts  []fakeMount
	// original is the path of the workspace, of which spec has the copy in copy mode.
	original string
	copy     *overlay.Copy
	view     workspace.View
	owner    string // uid:gid of the workspace
	account  images.UserAccount
	writer   *workspace.Writer
	life     sandbox.Lifecycle
	service  *service.Service // nil for none
	egress   fakeEgress
	serving  atomic.Bool // the service listens
	done     chan struct{}
	paused   atomic.Bool // from outside
	stopped  atomic.Bool // by a command

	mu        sync.Mutex
	err       error
	counted   int // how often forks were counted, or files held
	processes []*fakeProcess
	stall     sync.Mutex // held while a writer is called, under FaultDeadlock
}

func (s *fakeSandbox) ID() string           { return "fake-" + s.spec.Session }
func (s *fakeSandbox) State() sandbox.State { return s.life.State() }

// mountPoint returns the workspace's path in the container.
func (s *fakeSandbox) mountPoint() string {
	if s.backend.Fault == FaultTarget {
		return sandbox.WorkspaceDir
	}
	return s.spec.Workspace.MountPoint()
}

// View is that of the copy, or nil if the workspace is mounted as it is.
func (s *fakeSandbox) View() workspace.View { return s.view }

func (s *fakeSandbox) Done() <-chan struct{} { return s.done }

func (s *fakeSandbox) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Destroy stops the sandbox and forgets it.
func (s *fakeSandbox) Destroy(context.Context) error {
	s.stop(nil)
	if err := errors.Join(s.removeMounts(), s.removeCopy()); err != nil {
		return err
	}
	if s.backend.Fault != FaultLeaks {
		s.backend.mu.Lock()
		defer s.backend.mu.Unlock()
		delete(s.backend.alive, s.spec.Session)
	}
	return nil
}

// stop ends everything, once, with reason.
func (s *fakeSandbox) stop(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
		return
	default:
	}
	s.err = reason
	s.life.Advance(sandbox.StateStopped)
	close(s.done)
	s.egress.end(func(*fakeConn) bool { return true })
	for _, p := range s.processes {
		p.sendSignal(sigKill)
	}
}

// Apply changes the real directory and makes its owner own the result.
func (s *fakeSandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if err := s.life.Require("apply", sandbox.StateRunning); err != nil {
		return workspace.Change{}, err
	}
	if op.Kind == workspace.OpPatch && s.backend.Fault == FaultAnyPatch {
		op.ReplaceAll = true
	}
	change, err := s.writer.Apply(ctx, op)
	if err == nil && op.Kind != workspace.OpDelete && op.Kind != workspace.OpRename {
		err = s.chownPath(s.spec.Workspace.Path, change.Path)
	}
	return change, err
}

// userImage is the name of a fake's image without its USER.
const userImage = "fake-user:"

// findAccount looks the image's user up, if commands are to run as it.
func (s *fakeSandbox) findAccount() (err error) {
	if s.spec.User != sandbox.UserImage {
		return nil
	}
	user := strings.TrimPrefix(s.spec.Image.Value, userImage)
	s.account, err = images.FindAccount(user, images.AccountFiles{Passwd: []byte(userPasswd), Group: []byte(userGroupText)})
	if err == nil && s.account.UID == sandbox.IdentityBase(0, 0)+1 {
		err = &images.UserError{User: user, Reason: "it is an identity", Hint: "use another one"}
	}
	if err != nil && s.backend.Fault != FaultAnyUser {
		return fmt.Errorf("create sandbox: %w", sandbox.ImageError(err))
	}
	return nil
}

// accountVariables returns the variables of the image's user.
func (s *fakeSandbox) accountVariables() []string {
	if s.spec.User != sandbox.UserImage || s.backend.Fault == FaultUserDropped {
		return nil
	}
	list := []string{"USER=" + s.account.Name, "LOGNAME=" + s.account.Name}
	if s.spec.Root == sandbox.RootEphemeral && s.backend.Fault != FaultUserHome {
		list = append(list, "HOME="+s.account.Home)
	}
	return list
}

// Attestation returns what the probe observes, unless the fake lies.
func (s *fakeSandbox) Attestation() sandbox.Attestation {
	at := sandbox.Attestation{
		Backend: "fake", Runtime: "fake", RuntimeVersion: "1", Container: s.ID(),
		Image: string(s.spec.Image.Scheme), ImageDigest: "sha256:" + strings.Repeat("0", 64),
		Kernel: fakeKernel, GuestVersion: "1", GuestSHA256: strings.Repeat("0", 64),
		User: "10001:10001", GuestUser: "0:0", NoNewPrivileges: true, Seccomp: "filter",
		SeccompProfile: strings.Repeat("0", 64), Network: "none", Localhost: []string{"127.0.0.1"}, RootReadOnly: s.spec.Root != sandbox.RootEphemeral,
		Identities: sandbox.MaxIdentity + 1,
		Workspace:  s.original, WorkspaceTarget: s.mountPoint(), WorkspaceMode: string(cmp.Or(s.spec.Workspace.Mode, sandbox.ModeBind)), WorkspaceOwner: s.owner,
		Git: string(sandbox.GitReadOnly), Mounts: s.attestMounts(), KillMethod: "fake",
		Limits: sandbox.AttestedLimits{
			MemoryBytes: s.spec.Resources.MemoryBytes, PIDs: s.spec.Resources.PIDs,
			MilliCPUs: s.spec.Resources.MilliCPUs, TmpBytes: harden.TmpfsMounts(s.spec.Resources, 0, 0)[0].Bytes,
			OpenFiles: s.spec.Resources.OpenFiles,
		},
	}
	if s.spec.Root == sandbox.RootEphemeral {
		at.Mounts = append(at.Mounts, sandbox.AttestedMount{Target: "/", Type: sandbox.MountScratch, Bytes: sandbox.RootBytes})
	}
	at.UserPolicy = string(cmp.Or(s.spec.User, sandbox.UserOwner))
	if s.spec.User == sandbox.UserRoot {
		at.User, at.Capabilities = "0:0", harden.RootCapabilities()
		at.UIDMap, at.GIDMap = "0 300000 65536", "0 300000 65536"
		if s.backend.Fault == FaultRootOutside {
			at.UIDMap = "0 0 4294967295"
		}
	}
	at.Egress = attestEgress(s)
	if s.service != nil {
		at.Service = new(s.service.Attestation())
	}
	if s.spec.User == sandbox.UserImage {
		at.User, at.Groups = fmt.Sprintf("%d:%d", s.account.UID, s.account.GID), []uint32{imageGroup, imageOthers}
	}
	if s.backend.Fault == FaultLies {
		at.User, at.KillMethod = "65534:65534", ""
	}
	return at
}
