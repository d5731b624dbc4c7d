package caisson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// SandboxOptions configure a sandbox. Workspace is required.
type SandboxOptions struct {
	HostOptions

	// Workspace is the directory that commands work in. It must not be or contain the
	// home directory, or be a system directory.
	Workspace string
	// Target is its mount point; "" means /workspace, and "image" the image's
	// WORKDIR. It hides the image's files there.
	Target string
	// Backend is docker, gvisor or runc. "" or auto means docker if a local engine is
	// running, otherwise gvisor.
	Backend string
	// Image is host (this machine's programs), an image name such as
	// debian:bookworm-slim, rootfs:DIR, oci-layout:DIR or docker-archive:FILE. ""
	// means host.
	Image string
	// Root is the commands' access to the image's files; "" means read-only. With
	// sandbox.RootEphemeral their changes are dropped with the sandbox; the host
	// image doesn't support it.
	Root sandbox.RootMode
	// User is the commands' user: "" means sandbox.UserOwner, and UserImage the
	// image's USER. Root needs gvisor or runc; auto then chooses one of them.
	User sandbox.UserPolicy
	// Service is a long-running program to start with the sandbox, such as the
	// image's own.
	Service *sandbox.Service
	// Mode is how the workspace is mounted; "" means bind, in which commands change
	// it. overlay and copy leave it unchanged. copy sends it to the container and
	// works with remote engines; it needs docker.
	Mode sandbox.WorkspaceMode
	// CopyBytes and CopyEntries bound what copy mode sends; zero means
	// sandbox.DefaultCopyBytes and DefaultCopyEntries. If the workspace exceeds them,
	// the error wraps sandbox.ErrInvalid and names its largest directories.
	CopyBytes, CopyEntries int64
	// Resources bound the sandbox; the zero value means limits.DefaultResources.
	Resources limits.Resources
	// Env has the commands' variables, as NAME=value. Records contain only their
	// names. Put secret values into Options.Secrets too.
	Env []string
	// Mounts are more host directories that commands see. Set only Path, Target and
	// ReadOnly. Writable ones are protected like the workspace. In overlay and copy
	// mode all must be read-only.
	Mounts []sandbox.Mount
	// Caches keep build tools' files for the workspace's next sandboxes, below
	// StateDir: go, npm, pip, cargo, maven, apt, or a directory below the commands'
	// home, such as ~/.gradle.
	Caches []string
	// CacheUse is how commands use Caches; "" means writable. frozen drops what they
	// write; in overlay mode, discarding the changes does too. none mounts no caches.
	// A sandbox that checks another's work needs none, or frozen in both.
	CacheUse string
}

// setup returns the setup of the sandbox, with defaults for the image and resources.
func (o SandboxOptions) setup() (sandbox.Setup, error) {
	if o.Workspace == "" {
		return sandbox.Setup{}, errors.New("SandboxOptions.Workspace is missing")
	}
	image, err := images.ParseLocalReference(cmp.Or(o.Image, string(images.SchemeHost)))
	return sandbox.Setup{
		Image: image, Root: o.Root, User: o.User, Service: o.Service, Resources: cmp.Or(o.Resources, limits.DefaultResources()),
	}, err
}

func (h *Host) openWorkspace(o SandboxOptions) (*runner.Workspace, error) {
	w, err := runner.OpenWorkspace(o.Workspace, h.protectedDirs())
	if err != nil {
		return nil, err
	}
	if err := w.CheckOwner(false); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	writable := []string{w.Path, h.o.StateDir}
	for _, m := range o.Mounts {
		if !m.ReadOnly {
			writable = append(writable, m.Path)
		}
	}
	h.programs.Writable = func() []string {
		if h.o.Programs == nil || h.o.Programs.Writable == nil {
			return writable
		}
		return append(h.o.Programs.Writable(), writable...)
	}
	return w, nil
}

func (h *Host) protectedDirs() runner.Protected {
	p := runner.Protected{State: h.o.StateDir, Cache: h.o.CacheDir, Config: xdgDir(h.o.Environ, "XDG_CONFIG_HOME", ".config")}
	if home := h.getenv("HOME"); filepath.IsAbs(home) {
		p.Home = home
	}
	return p
}

func (h *Host) openMounts(o SandboxOptions, w *runner.Workspace, target string) ([]sandbox.Mount, error) {
	var list []runner.UserMount
	for _, m := range o.Mounts {
		if !reflect.DeepEqual(m, sandbox.Mount{Path: m.Path, Target: m.Target, ReadOnly: m.ReadOnly}) {
			return nil, fmt.Errorf("%w: the mount at %q has more than Path, Target and ReadOnly", sandbox.ErrInvalid, m.Target)
		}
		list = append(list, runner.UserMount{From: m.Path, To: m.Target, ReadOnly: m.ReadOnly})
	}
	return runner.OpenMounts(list, w, target, o.Mode, h.protectedDirs())
}

func (h *Host) cacheOptions(o SandboxOptions) (runner.CacheOptions, error) {
	list, err := caches.ParseList(o.Caches)
	use, useErr := caches.ParseUse(o.CacheUse)
	if err := errors.Join(err, useErr); err != nil {
		return runner.CacheOptions{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return runner.CacheOptions{Store: caches.NewStore(h.o.StateDir), Caches: list, Use: use}, nil
}

// parts are what a sandbox is made of. Close the sandbox before its parts.
type parts struct {
	closers.Stack
	host    *Host
	setup   sandbox.Setup
	work    *runner.Workspace
	dir     *sessiondir.Dir
	target  string
	mounts  []sandbox.Mount
	caches  runner.CacheOptions
	backend sandbox.Backend
	choice  record.BackendChoice
	removed []sandbox.Orphan // of dead processes
}

// openParts opens the parts of a sandbox. secrets are kept out of its logs.
func openParts(ctx context.Context, o SandboxOptions, secrets []redact.Secret) (_ *parts, err error) {
	p := &parts{}
	defer p.CloseOnError(&err)
	if p.host, err = NewHost(o.HostOptions); err != nil {
		return nil, err
	}
	p.Push(p.host.Close)
	if p.setup, err = o.setup(); err != nil {
		return nil, err
	}
	if p.work, err = p.host.openWorkspace(o); err != nil {
		return nil, err
	}
	p.Push(p.work.Close)
	if p.dir, err = sessiondir.Create(p.host.o.StateDir, secrets); err != nil {
		return nil, err
	}
	p.Push(p.dir.Close)
	p.host.SetLogger(p.dir.Log)
	if p.target, err = p.host.MountPoint(ctx, p.setup.Image, o.Target); err != nil {
		return nil, err
	}
	if err := p.host.CheckUser(ctx, p.setup.Image, o.User); err != nil {
		return nil, err
	}
	if p.mounts, err = p.host.openMounts(o, p.work, p.target); err != nil {
		return nil, err
	}
	p.Push(func() error { return runner.CloseMounts(p.mounts) })
	if p.caches, err = p.host.cacheOptions(o); err != nil {
		return nil, err
	}
	if p.backend, p.choice, err = p.host.Choose(ctx, o.Backend, nil); err != nil {
		return nil, err
	}
	p.removed, _ = p.host.Sweep(ctx) // errors are logged, and don't affect this sandbox
	return p, nil
}

// NewSandbox starts a sandbox without a model, for programs that run commands
// themselves. Destroy removes it with everything made for it; in overlay and copy
// mode this discards the changes. If this process is killed, the sandbox ends, and
// the next sandbox to start removes what is left.
func NewSandbox(ctx context.Context, o SandboxOptions) (sandbox.Sandbox, error) {
	s, err := startSandbox(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	return s, nil
}

type ownedSandbox struct {
	sandbox.Sandbox
	parts *parts

	once sync.Once
	err  error
}

func startSandbox(ctx context.Context, o SandboxOptions) (_ *ownedSandbox, err error) {
	p, err := openParts(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	defer p.CloseOnError(&err)
	kept, err := runner.OpenCaches(p.dir, p.work, o.Mode, p.caches)
	if err != nil {
		return nil, err
	}
	p.PushFunc(func() { kept.End(false) })
	spec := sandbox.Spec{
		Session: p.dir.Session, Setup: p.setup, Dir: filepath.Join(p.dir.Path, "sandbox"),
		Workspace: sandbox.Workspace{Path: p.work.Path, Dir: p.work.Dir, Target: p.target, Mode: o.Mode, CopyBytes: o.CopyBytes, CopyEntries: o.CopyEntries},
		Mounts:    slices.Concat(p.mounts, kept.Mounts), Env: slices.Concat(kept.Env, o.Env),
	}
	if o.Mode.KeepsChanges() {
		layers, err := overlay.Create(filepath.Join(p.dir.Path, "overlay"), overlay.CreateOptions{Session: p.dir.Session, Path: p.work.Path, Workspace: p.work.Dir})
		if err != nil {
			return nil, err
		}
		p.Push(func() error {
			return errors.Join(layers.End(overlay.Discarded), layers.Close(), os.RemoveAll(layers.Dir()))
		})
		if err := layers.Record(ctx, p.work.Dir); err != nil {
			return nil, err
		}
		spec.Workspace.Layers = layers.Dir()
	}
	box, err := kept.Creator(p.backend, func(message string) { p.host.currentLogger().Warn(message) }).Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &ownedSandbox{Sandbox: box, parts: p}, nil
}

// Destroy closes the parts only once the sandbox is gone, so that a failed Destroy
// can be repeated.
func (s *ownedSandbox) Destroy(ctx context.Context) error {
	if err := s.Sandbox.Destroy(ctx); err != nil {
		return err
	}
	s.once.Do(func() { s.err = s.parts.Close() })
	return s.err
}
