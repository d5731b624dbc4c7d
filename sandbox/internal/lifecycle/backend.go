package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Options configures a [Backend]. Name, StateDir, GuestPath, Semaphore and
// GIDBase are required.
type Options struct {
	workmount.BackendOptions
	// Name is the backend's name in configuration and records.
	Name string
	// GuestPath is the guest's binary on this machine.
	GuestPath string
	// HostImage configures the image "host". UID and GID are set at each start.
	HostImage host.Options
	// Images provides images other than host, rootfs and the engine's own; nil
	// provides none.
	Images images.Source
	// Semaphore limits starts.
	Semaphore *admission.Semaphore
	// StartTime bounds a start from its admission on, and DestroyTime one
	// Destroy. Zero means no limit besides the driver's own.
	StartTime, DestroyTime time.Duration
	// GIDBase is the first of the gids that mark commands; see wire.Config. A
	// container with a user namespace has the guest's default instead.
	GIDBase uint32
	// Copies reports that containers can have a copy of the workspace. Remote
	// reports that containers with a copy have nothing else of this machine: no
	// bind and none of [Preparation.FileBinds]. The driver then provides the
	// guest.
	Copies, Remote bool
	// LowPorts reports that listeners below port 1024 need a capability in the
	// container.
	LowPorts bool
	// Probe makes the guest try what commands must not be able to do.
	Probe bool
	// Silence is how long the guest waits for a message before it ends itself;
	// zero means forever.
	Silence time.Duration
	// AnswerTime bounds an answer of the guest; zero means the guest's default.
	AnswerTime time.Duration
	// Logger receives errors that can't be returned.
	Logger *zap.Logger
}

// Backend creates sandboxes of one kind. It is safe for concurrent use.
type Backend struct {
	Options
	driver     Driver
	namespaces workmount.UserNamespaces
}

// New returns a backend. It touches nothing on the system.
func New(o Options, d Driver) *Backend {
	return &Backend{Options: o, driver: d}
}

// Close closes what is kept for further starts.
func (b *Backend) Close() { b.namespaces.Close() }

// Owner returns this process's identity as an owner in cleanup lists.
func (b *Backend) Owner() (ownership.Identity, error) {
	instance, err := ownership.Instance(b.StateDir)
	if err != nil {
		return ownership.Identity{}, err
	}
	return ownership.Self(instance)
}

func (b *Backend) validateSpec(spec sandbox.Spec) error {
	if err := spec.Resources.Validate(); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	if err := sandbox.CheckVariables(spec.Env); err != nil {
		return err
	}
	if err := spec.Egress.Validate(spec.Env); err != nil {
		return err
	}
	if e := spec.Egress; e != nil && len(e.Roots)+len(e.Files) > 0 && b.Remote && spec.Workspace.Mode == sandbox.ModeCopy {
		return fmt.Errorf("network of commands: %w: rules of https://, presets, git and keys need certificates or files in the sandbox, and nothing of this machine "+
			"can be mounted in the containers of an engine on another one: use tls:// rules, or an engine here", sandbox.ErrUnsupported)
	}
	if len(spec.Homes) > sandbox.MaxIdentity {
		return fmt.Errorf("%w: %d homes: there are %d identities", sandbox.ErrInvalid, len(spec.Homes), sandbox.MaxIdentity)
	}
	if err := validateService(spec); err != nil {
		return err
	}
	if err := sandbox.CheckTarget(spec.Workspace.MountPoint()); err != nil {
		return fmt.Errorf("workspace %s: %w", spec.Workspace.Path, err)
	}
	if err := validateMounts(spec.Mounts, spec.Workspace.MountPoint()); err != nil {
		return err
	}
	switch {
	case spec.Session == "" || strings.ContainsAny(spec.Session, "/. \x00"):
		return fmt.Errorf("%w: session %q", sandbox.ErrInvalid, spec.Session)
	case spec.Workspace.Dir == nil || !filepath.IsAbs(spec.Workspace.Path):
		return fmt.Errorf("%w: workspace %q is not open", sandbox.ErrInvalid, spec.Workspace.Path)
	case spec.Workspace.Mode == sandbox.ModeCopy && !b.Copies:
		return fmt.Errorf("workspace %s: %w: the %s backend has no mode copy: use mode overlay, or the docker or gvisor backend",
			spec.Workspace.Path, sandbox.ErrUnsupported, b.Name)
	case spec.Workspace.CopyBytes < 0 || spec.Workspace.CopyEntries < 0:
		return fmt.Errorf("%w: negative bounds of the workspace's copy", sandbox.ErrInvalid)
	case spec.Git != "" && spec.Git != sandbox.GitReadOnly && spec.Git != sandbox.GitCommit:
		return fmt.Errorf("%w: git mode %q", sandbox.ErrInvalid, spec.Git)
	case spec.Root != "" && spec.Root != sandbox.RootReadOnly && spec.Root != sandbox.RootEphemeral:
		return fmt.Errorf("%w: root mode %q", sandbox.ErrInvalid, spec.Root)
	case spec.Root == sandbox.RootEphemeral && spec.Image.Scheme == images.SchemeHost:
		return fmt.Errorf("image host: %w: its root can't be writable, because it consists of this machine's own directories: use another image",
			sandbox.ErrUnsupported)
	case spec.User != "" && spec.User != sandbox.UserOwner && spec.User != sandbox.UserImage && spec.User != sandbox.UserRoot:
		return fmt.Errorf("%w: user %q", sandbox.ErrInvalid, spec.User)
	case spec.User == sandbox.UserImage && isLocal(spec.Image):
		return sandbox.ImageError(fmt.Errorf("image %s: %w", spec.Image, images.CheckUser("")))
	}
	below, err := filepath.Rel(b.StateDir, spec.Dir)
	if err != nil || !filepath.IsAbs(spec.Dir) || below == "." || !filepath.IsLocal(below) {
		return fmt.Errorf("%w: session directory %q is not below the state directory %q", sandbox.ErrInvalid, spec.Dir, b.StateDir)
	}
	return b.validateImage(spec.Image)
}

func (b *Backend) validateImage(ref images.Reference) error {
	switch ref.Scheme {
	case images.SchemeHost, images.SchemeRootFS, images.SchemeName:
		return nil
	case images.SchemeLayout, images.SchemeArchive, images.SchemeBuild:
		if b.Images == nil {
			return noStoreError(ref)
		}
		return nil
	}
	return fmt.Errorf("%w: no image named", sandbox.ErrInvalid)
}

// Sweep removes what dead owners' sandboxes left; see sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	self, err := b.Owner()
	if err != nil {
		return nil, fmt.Errorf("sweep %s sandboxes: %w", b.Name, err)
	}
	orphans, unlistedErr := b.driver.RemoveUnlisted(ctx)
	listed, listedErr := ownership.Sweep(ctx, ownership.SweepOptions{
		StateDir: b.StateDir, Backend: b.Name, Instance: self.Instance, RemoveEntry: b.driver.RemoveEntry,
	})
	orphans = append(orphans, listed...)
	if err := errors.Join(unlistedErr, listedErr, b.driver.Prune(ctx), pruneCache(CacheDir(b.StateDir), time.Now())); err != nil {
		return orphans, fmt.Errorf("sweep %s sandboxes: %w", b.Name, err)
	}
	return orphans, nil
}

// List returns the sandboxes in cleanup lists and those that only the engine
// knows; see sandbox.Backend.
func (b *Backend) List(ctx context.Context) ([]sandbox.Listing, error) {
	self, err := b.Owner()
	if err != nil {
		return nil, fmt.Errorf("list %s sandboxes: %w", b.Name, err)
	}
	noted, err := ownership.ReadLists(b.StateDir, b.Name)
	listed := map[string]*Listed{}
	for _, n := range noted {
		listed[n.Session] = &Listed{Listing: n.Listing(self.Instance), Entries: n.Entries}
	}
	err = errors.Join(err, b.driver.Inspect(ctx, listed))
	list := make([]sandbox.Listing, 0, len(listed))
	for l := range maps.Values(listed) {
		list = append(list, l.Listing)
	}
	slices.SortFunc(list, func(a, b sandbox.Listing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Session, b.Session))
	})
	if err != nil {
		return list, fmt.Errorf("list %s sandboxes: %w", b.Name, err)
	}
	return list, nil
}
