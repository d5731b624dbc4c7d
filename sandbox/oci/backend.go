package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Backend makes sandboxes with one OCI runtime. It need not be closed: what it
// keeps open, a descriptor for each owner of a workspace, goes with it. It is
// safe for concurrent use.
type Backend struct {
	options  Options
	traits   traits
	runtime  *runtimeClient
	rootless bool
	// answer bounds a guest's answer; zero is the guest's own default.
	answer    time.Duration
	log       *zap.Logger
	semaphore *admission.Semaphore

	namespaces workmount.Namespaces

	mu    sync.Mutex
	guest guestFile // the copy made last
}

var _ sandbox.Backend = (*Backend)(nil)

// New returns a backend. It fails with sandbox.ErrInvalid for options that
// can't be right; whether the runtime is there and works is for Check to say.
func New(o Options) (*Backend, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	t, _ := kinds(o.Kind)
	semaphore, err := admission.New(admission.Options{StateDir: o.StateDir, Group: "oci", Memory: admission.ReadMemory})
	if err != nil {
		return nil, fmt.Errorf("make oci backend: %w", err)
	}
	log := o.Logger.Named(string(o.Kind))
	return &Backend{
		options: o, traits: t, rootless: os.Geteuid() != 0, log: log, semaphore: semaphore,
		runtime: &runtimeClient{path: o.RuntimePath, root: filepath.Join(o.StateDir, "oci", string(o.Kind)), flags: t.flags, log: log},
	}, nil
}

// Name is "gvisor" or "runc".
func (b *Backend) Name() string { return string(b.options.Kind) }

// Check asks the runtime for its version and the system for what the backend
// needs of it. It starts no container and writes nothing.
func (b *Backend) Check(ctx context.Context) (sandbox.Info, error) {
	info := sandbox.Info{Backend: b.Name(), RuntimePath: b.options.RuntimePath, Local: true, Rootless: b.rootless}
	if err := b.checkSystem(); err != nil {
		return info, fmt.Errorf("check %s: %w", b.Name(), err)
	}
	if _, err := os.Stat(b.options.GuestPath); err != nil {
		return info, fmt.Errorf("check %s: guest binary: %w: build it (make build) and keep it beside caisson: %w", b.Name(), sandbox.ErrNotFound, err)
	}
	v, err := b.runtime.version(ctx)
	if err != nil {
		return info, fmt.Errorf("check %s: %w", b.Name(), err)
	}
	info.Runtime, info.RuntimeVersion = v.name, v.number
	_, lost := planCgroup("", b.rootless, b.traits)
	info.Lost = append(lost, b.lost()...)
	return info, nil
}

// lost names what this backend can't give to this user, limits apart.
func (b *Backend) lost() []string {
	switch {
	case b.rootless && b.options.Kind == Runc:
		return []string{"Separate uids: without subordinate ids an ordinary user has one in the container, so guest and commands share it."}
	case b.rootless:
		return []string{"Files of several owners: an ordinary user has one uid and gid in the sandbox, so that files of others can't be given their owner, nor made in setgid folders of other groups."}
	default:
		return nil
	}
}

// owner is this process, as it signs what it makes.
func (b *Backend) owner() (owner.Identity, error) {
	instance, err := owner.Instance(b.options.StateDir)
	if err != nil {
		return owner.Identity{}, err
	}
	return owner.Self(instance)
}
