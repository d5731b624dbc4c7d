package caisson

import (
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

	// Workspace is the path of the directory that commands work in. It may not be or
	// contain the home directory, nor be a directory of the system.
	Workspace string
	// Target is where it is mounted; "" means /workspace, and "image" the image's own
	// WORKDIR. It hides what the image has there.
	Target string
	// Backend is docker, gvisor or runc; "" or auto means docker if a local engine
	// answers, otherwise gvisor.
	Backend string
	// Image is host, the programs of this machine, or the name of an image such as
	// debian:bookworm-slim, rootfs:DIR, oci-layout:DIR or docker-archive:FILE; "" means
	// host.
	Image string
	// Root is the access of commands to the image's files; "" means read-only. With
	// sandbox.RootEphemeral what they write is thrown away with the sandbox, which
	// needs another image than host.
	Root sandbox.RootMode
	// User is the user that commands run as; "" means sandbox.UserOwner. UserImage is the
	// image's USER. Root of the container needs gvisor or runc, to which auto changes.
	User sandbox.UserPolicy
	// Service is a long-lived program that is started with the sandbox, such as the
	// image's own; nil means none.
	Service *sandbox.Service
	// Mode is how the workspace is mounted; "" means bind, in which commands change it.
	// An overlay leaves it untouched, and so does copy, which sends it to the container
	// (docker), such as to an engine on another machine.
	Mode sandbox.WorkspaceMode
	// CopyBytes and CopyEntries bound what copy mode sends; zero means
	// sandbox.DefaultCopyBytes and DefaultCopyEntries. The error for a workspace that
	// exceeds them wraps sandbox.ErrInvalid and names its largest directories.
	CopyBytes, CopyEntries int64
	// Resources bound the sandbox; the zero value is limits.DefaultResources.
	Resources limits.Resources
	// Env are variables of the commands, as NAME=value. Records have their names; a
	// secret value belongs into Options.Secrets too.
	Env []string
	// Mounts are more directories of this machine that commands see. Path, Target and
	// ReadOnly of each are used, and the other fields must be zero. A writable one is
	// protected as the workspace is. In overlay and copy mode all must be read-only.
	Mounts []sandbox.Mount
	// Caches hold the files that build tools keep between the sandboxes of a workspace, below
	// StateDir: go, npm, pip, cargo, maven, apt, or a directory below the home of commands
	// such as ~/.gradle.
	Caches []string
	// CacheUse is how commands use Caches; "" means writable. With frozen, what they
	// write is dropped, as it is whenever changes in overlay mode are; none mounts no
	// caches. A sandbox that checks the work of another needs none, or both need frozen.
	CacheUse string
}

// withDefaults returns the image and the resources with their defaults.
func (o SandboxOptions) withDefaults() (images.Reference, limits.Resources, error) {
	if o.Workspace == "" {
		return images.Reference{}, limits.Resources{}, errors.New("SandboxOptions.Workspace is missing")
	}
	if o.Resources == (limits.Resources{}) {
		o.Resources = limits.DefaultResources()
	}
	if o.Image == "" {
		o.Image = string(images.SchemeHost)
	}
	ref, err := images.ParseLocalReference(o.Image)
	return ref, o.Resources, err
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

// protectedDirs returns the directories that no workspace and no mount may be.
func (h *Host) protectedDirs() runner.Protected {
	p := runner.Protected{State: h.o.StateDir, Cache: h.o.CacheDir, Config: xdgDir(h.o.Environ, "XDG_CONFIG_HOME", ".config")}
	if home := h.getenv("HOME"); filepath.IsAbs(home) {
		p.Home = home
	}
	return p
}

// openMounts opens the directories of Mounts. The caller closes them.
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

// cacheOptions returns the caches and how they are used.
func (h *Host) cacheOptions(o SandboxOptions) (runner.CacheOptions, error) {
	list, err := caches.ParseList(o.Caches)
	use, useErr := caches.ParseUse(o.CacheUse)
	if err := errors.Join(err, useErr); err != nil {
		return runner.CacheOptions{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return runner.CacheOptions{Store: caches.NewStore(h.o.StateDir), Caches: list, Use: use}, nil
}

// parts are what a sandbox is made of. Closing them undoes what was opened for it, after the
// sandbox.
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
	removed []sandbox.Orphan // by dead processes
}

// openParts opens the parts of a sandbox, whose session has secrets.
func openParts(ctx context.Context, o SandboxOptions, secrets []redact.Secret) (_ *parts, err error) {
	p := &parts{}
	defer p.CloseOnError(&err)
	if p.host, err = NewHost(o.HostOptions); err != nil {
		return nil, err
	}
	p.Push(p.host.Close)
	p.setup.Root, p.setup.User, p.setup.Service = o.Root, o.User, o.Service
	if p.setup.Image, p.setup.Resources, err = o.withDefaults(); err != nil {
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
	p.removed, _ = p.host.Sweep(ctx) // the log has what could not be removed; the sandbox needs none of it
	return p, nil
}

// NewSandbox starts a sandbox without a model, for programs that run commands
// themselves. Destroy removes it with everything that was made for it; in overlay and copy
// mode the changes are discarded. If this process is killed, the sandbox ends, and the next
// start of a sandbox removes what is left.
func NewSandbox(ctx context.Context, o SandboxOptions) (sandbox.Sandbox, error) {
	s, err := startSandbox(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	return s, nil
}

// ownedSandbox is a sandbox with the parts that it was made of.
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

// Destroy implements [sandbox.Sandbox]. What the sandbox was made with is kept until
// the sandbox is gone, so that a failed Destroy can be repeated.
func (s *ownedSandbox) Destroy(ctx context.Context) error {
	if err := s.Sandbox.Destroy(ctx); err != nil {
		return err
	}
	s.once.Do(func() { s.err = s.parts.Close() })
	return s.err
}
