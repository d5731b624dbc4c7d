package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Name is the name of this backend in configuration and records.
const Name = "docker"

// Options configures a [Backend]. GuestPath and StateDir are required.
type Options struct {
	// Host is the engine's address, such as unix:///run/docker.sock. If it is
	// empty, New tries DOCKER_HOST, DOCKER_CONTEXT, the docker command's
	// current context and the default socket, in this order.
	Host string
	// Runtime is a runtime registered with the engine; empty means the engine's
	// default. It is never replaced by another.
	Runtime string
	// GuestPath is the guest's binary on this machine.
	GuestPath string
	// StateDir is Caisson's state directory, owned by this user and not
	// writable by others.
	StateDir string
	// Protect names directories, such as the user's home, that no workspace may
	// be or contain.
	Protect []string
	// HostImage configures the image "host". The backend sets its UID and GID.
	HostImage host.Options
	// Images provides names that the engine does not know, layouts, archives
	// and builds. If nil, only host, rootfs and the engine's own images work.
	Images images.Source
	// Getenv reads the environment: DOCKER_HOST, DOCKER_CONTEXT and related
	// variables, and HOME for the docker command's configuration. Nil means the
	// default socket.
	Getenv func(string) string
	// Logger receives errors that can't be returned; nil discards them.
	Logger *zap.Logger
}

// Backend creates sandboxes with one engine. Close it after its sandboxes are
// destroyed. It is safe for concurrent use.
type Backend struct {
	options Options
	connection
	self      ownership.Identity
	lifecycle *lifecycle.Backend
	facts     facts // set once connected
}

var _ sandbox.Backend = (*Backend)(nil)

// facts are an engine's properties, which are read once.
type facts struct {
	version string
	info    system.Info
	runtime runtimeFacts
	base    workmount.Base // of its containers' user namespaces, with userns-remap
}

type runtimeFacts struct {
	name, version, path string
	shim                string // containerd's, if the engine names one instead of a path
}

// ownKernel reports whether the runtime claims to be gVisor, whose containers
// have their own kernel: by the name printed with its version, or else by the
// names of its binary and its shim (io.containerd.runsc.v1). [checkKernel]
// decides.
func (r runtimeFacts) ownKernel() bool {
	if program, _, ok := strings.Cut(r.version, " version "); ok {
		return program == "runsc"
	}
	return strings.Contains(r.name, "runsc") || strings.Contains(path.Base(r.path), "runsc") || strings.Contains(r.shim, "runsc")
}

// New returns a backend. It reads the docker command's configuration and the
// state directory, but does not contact the engine.
func New(o Options) (*Backend, error) {
	if o.GuestPath == "" || o.StateDir == "" {
		return nil, fmt.Errorf("make docker backend: %w: no guest or no state directory given", sandbox.ErrInvalid)
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	e, err := resolveEndpoint(o.Host, o.Getenv)
	if err != nil {
		return nil, fmt.Errorf("make docker backend: %w", err)
	}
	b := &Backend{options: o, connection: connection{endpoint: e, times: defaultDeadlines()}}
	b.lifecycle = lifecycle.New(lifecycle.Options{
		BackendOptions: workmount.BackendOptions{StateDir: o.StateDir, Protect: o.Protect, EngineMounts: e.isLocal(), EngineSocket: strings.TrimPrefix(e.host, "unix://")},
		Name:           Name, GuestPath: o.GuestPath, HostImage: o.HostImage, Images: o.Images,
		Semaphore: admission.New(admissionOptions(e, o.StateDir)), Copies: true, Remote: !e.isLocal(), GIDBase: markGIDs, Probe: true, Silence: silence, Logger: o.Logger,
	}, driver{b})
	if b.self, err = b.lifecycle.Owner(); err != nil {
		return nil, fmt.Errorf("make docker backend: %w", err)
	}
	return b, nil
}

// markGIDs is the first of the GIDs that mark commands in containers without a
// user namespace, where a GID is also one on the host. The range is above those
// of users and subordinate IDs (SUB_GID_MAX of login.defs(5) is 600100000), so
// it opens no file in the workspace.
const markGIDs = 1 << 30

// silence is how long a guest lives without hearing from its host. An engine
// that is killed in the middle of a start forgets the container, whose shim
// keeps its standard input open for ever (Docker 20.10 with containerd 1.6),
// and nothing could remove it then. It is long enough for a Caisson that was
// stopped for a while.
const silence = 15 * time.Minute

// admissionOptions returns the semaphore's options: starts share the engine
// and, if it runs here, this machine's memory.
func admissionOptions(e endpoint, stateDir string) admission.Options {
	sum := sha256.Sum256([]byte(e.host))
	o := admission.Options{StateDir: stateDir, Group: Name + "-" + hex.EncodeToString(sum[:4])}
	if e.isLocal() {
		o.Memory = admission.ReadMemory
	}
	return o
}

// Name returns "docker".
func (b *Backend) Name() string { return Name }

// Close closes idle connections to the engine and drops what is kept for the
// next start.
func (b *Backend) Close() error {
	b.lifecycle.Close()
	return b.connection.Close()
}

// Create creates one container and returns it running and attested; see
// sandbox.Backend. It also returns [ErrNotShared] if the engine does not see
// the workspace.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return b.lifecycle.Create(ctx, spec)
}

// Sweep removes the containers and volumes with labels of dead owners, and then
// what else their cleanup lists contain; see sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	if _, _, err := b.connect(ctx); err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	return b.lifecycle.Sweep(ctx)
}

// List lists the sandboxes in this user's cleanup lists and the containers with
// Caisson's labels. Without an engine it returns those in the lists, in state
// "unknown", along with the error.
func (b *Backend) List(ctx context.Context) ([]sandbox.Listing, error) { return b.lifecycle.List(ctx) }

// Pending reports whether sessions of this backend left cleanup lists below the
// state directory, so that a Sweep may be worthwhile even if another backend is
// in use. It does not contact an engine.
func Pending(stateDir string) bool { return ownership.Pending(stateDir, Name) }

// Check asks the engine for its properties and checks whether it has what
// Caisson needs. It starts nothing.
func (b *Backend) Check(ctx context.Context) (sandbox.Info, error) {
	_, f, err := b.connect(ctx)
	if err != nil {
		return sandbox.Info{}, err
	}
	if err := b.lifecycle.CheckGuest(); err != nil {
		return sandbox.Info{}, err
	}
	info := sandbox.Info{
		Backend: Name, Runtime: f.runtime.name, RuntimeVersion: f.runtime.version, RuntimePath: f.runtime.path,
		EngineVersion: f.version, Local: b.endpoint.isLocal(), Isolation: sandbox.IsolationNamespaces, Remapped: f.base.IsNamespace(),
	}
	if os.Geteuid() != 0 {
		info.Lost = append(info.Lost, workmount.LostFlags)
	}
	return info, nil
}

func (b *Backend) connect(ctx context.Context) (*remote, facts, error) {
	r, err := b.connectWith(ctx, func(r *remote) (err error) {
		b.facts, err = examineEngine(ctx, r, b.options.Runtime)
		return err
	})
	if err != nil {
		return nil, facts{}, err
	}
	return r, b.facts, nil
}

// examineEngine reads an engine's properties and refuses one that can't isolate
// containers.
func examineEngine(ctx context.Context, r *remote, runtime string) (facts, error) {
	var info system.Info
	var version types.Version
	var both errgroup.Group
	both.Go(func() (err error) { info, err = r.info(ctx); return err })
	both.Go(func() (err error) { version, err = r.version(ctx); return err })
	if err := both.Wait(); err != nil {
		return facts{}, err
	}
	if err := checkIsolation(info); err != nil {
		return facts{}, err
	}
	f := facts{version: info.ServerVersion, info: info}
	var err error
	f.runtime, err = findRuntime(info, version, runtime)
	if err == nil && f.runtime.version == "" && r.endpoint.isLocal() {
		f.runtime.version = queryVersion(ctx, f.runtime.path)
	}
	if err == nil && isRemapped(info) {
		f.base, err = findBase(f, r.endpoint.isLocal())
	}
	return f, err
}

// checkIsolation returns an error for each missing property.
func checkIsolation(info system.Info) error {
	var missing []error
	if info.OSType != "linux" {
		missing = append(missing, fmt.Errorf("%w: it runs %s containers: switch it to Linux containers", sandbox.ErrUnsupported, info.OSType))
	}
	options := strings.Join(info.SecurityOptions, "\n")
	if !strings.Contains(options, "name=seccomp") {
		missing = append(missing, fmt.Errorf("%w: it has no seccomp: use a kernel and an engine that have", sandbox.ErrUnsupported))
	}
	if strings.Contains(options, "name=rootless") {
		missing = append(missing, fmt.Errorf("%w: it runs rootless, so that only the container's root would own files in the workspace: "+
			"use an engine that runs as root, or the gvisor backend", sandbox.ErrUnsupported))
	}
	for name, has := range map[string]bool{"memory": info.MemoryLimit, "pids": info.PidsLimit, "CPU": info.CPUCfsQuota || info.CgroupVersion == "2"} {
		if !has {
			missing = append(missing, fmt.Errorf("%w: it can't limit %s: enable that cgroup controller", sandbox.ErrUnsupported, name))
		}
	}
	return errors.Join(missing...)
}

func findRuntime(info system.Info, version types.Version, name string) (runtimeFacts, error) {
	if name == "" {
		name = info.DefaultRuntime
	}
	entry, ok := info.Runtimes[name]
	if !ok {
		var known []string
		for n := range info.Runtimes {
			known = append(known, n)
		}
		slices.Sort(known)
		return runtimeFacts{}, fmt.Errorf("%w: runtime %q is not registered with it (it has %s): add it to daemon.json, or name another",
			sandbox.ErrNotFound, name, strings.Join(known, ", "))
	}
	f := runtimeFacts{name: name, path: entry.Path, shim: entry.Type}
	for _, c := range version.Components {
		if c.Name == name {
			f.version = c.Version
		}
	}
	return f, nil
}

// queryVersion runs a runtime whose version the engine does not know. The path
// comes from the engine's configuration, which only root writes.
func queryVersion(ctx context.Context, program string) string {
	if !filepath.IsAbs(program) {
		return ""
	}
	ctx, cancel := withDeadline(ctx, versionTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, "/", versionTime
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line[:min(len(line), maxVersion)]
}

// Bounds of a runtime's version output; runsc takes 10 ms.
const (
	versionTime = 2 * time.Second
	maxVersion  = 200
)
