package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Backend creates sandboxes with one OCI runtime. It need not be closed,
// although it keeps a descriptor open for each owner of a workspace. It is safe
// for concurrent use.
type Backend struct {
	options   Options
	traits    traits
	runtime   *runtimeClient
	rootless  bool
	lifecycle *lifecycle.Backend
}

var _ sandbox.Backend = (*Backend)(nil)

// New returns a backend, or sandbox.ErrInvalid for invalid options. Check
// reports whether the runtime exists and works.
func New(o Options) (*Backend, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	t, _ := traitsOf(o.Kind)
	log := o.Logger.Named(string(o.Kind))
	b := &Backend{
		options: o, traits: t, rootless: os.Geteuid() != 0,
		runtime: &runtimeClient{path: o.RuntimePath, root: filepath.Join(o.StateDir, "oci", string(o.Kind)), cache: lifecycle.CacheDir(o.StateDir), flags: t.flags, log: log},
	}
	b.lifecycle = lifecycle.New(lifecycle.Options{
		BackendOptions: workmount.BackendOptions{StateDir: o.StateDir, Protect: o.Protect, RuntimeJoins: b.rootless},
		Name:           b.Name(), GuestPath: o.GuestPath, HostImage: o.Host, Images: o.Images,
		Semaphore: admission.New(admission.Options{StateDir: o.StateDir, Group: "oci", Memory: admission.ReadMemory}),
		StartTime: o.StartTime, DestroyTime: destroyTime,
		GIDBase: gidBase, Copies: t.ownKernel, LowPorts: !t.ownKernel, Probe: o.Probe, Logger: log,
	}, driver{b})
	return b, nil
}

// destroyTime bounds one Destroy. On a loaded machine gVisor takes half a
// second, runc a tenth.
const destroyTime = 30 * time.Second

// gidBase is the first of the GIDs that mark commands. No mapping limits them
// here, and no system hands out this range (systemd's UIDS-GIDS lists 1879048192
// to 2147483647 as unused), so they mean nothing on the host.
const gidBase = 2_000_000_000

// Name returns "gvisor" or "runc".
func (b *Backend) Name() string { return string(b.options.Kind) }

// Create creates and starts one sandbox; see sandbox.Backend. An error of the
// runtime ends with its own message.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return b.lifecycle.Create(ctx, spec)
}

// Sweep removes what sandboxes of dead owners left: the runtime's state,
// cgroups and the processes in them, mounts, directories and placeholders.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Orphan, error) { return b.lifecycle.Sweep(ctx) }

// List lists the sandboxes in this user's cleanup lists and asks the runtime
// about each.
func (b *Backend) List(ctx context.Context) ([]sandbox.Listing, error) { return b.lifecycle.List(ctx) }

// Pending reports whether sessions of this kind left cleanup lists below the
// state directory, so that a Sweep may have something to do. It runs no
// runtime.
func Pending(stateDir string, k Kind) bool { return ownership.Pending(stateDir, string(k)) }

// Check gets the runtime's version, running it only if its file has changed
// since a process of this user did so, and checks what the backend needs from
// the system.
func (b *Backend) Check(ctx context.Context) (sandbox.Info, error) {
	info := sandbox.Info{Backend: b.Name(), RuntimePath: b.options.RuntimePath, Local: true, Rootless: b.rootless}
	var err error
	if info.Isolation, info.NoNamespaces, err = b.chooseIsolation(); err != nil {
		return info, fmt.Errorf("check %s: %w", b.Name(), err)
	}
	if err := b.lifecycle.CheckGuest(); err != nil {
		return info, fmt.Errorf("check %s: %w", b.Name(), err)
	}
	v, err := b.runtime.queryVersion(ctx)
	if err != nil {
		return info, fmt.Errorf("check %s: %w", b.Name(), err)
	}
	info.Runtime, info.RuntimeVersion = v.name, v.number
	_, _, lost := b.planLimits("", info.Isolation)
	info.Lost = append(lost, b.listLost(info.Isolation)...)
	return info, nil
}

func (b *Backend) listLost(isolation sandbox.Isolation) []string {
	var lost []string
	if isolation == sandbox.IsolationProcess {
		lost = lostNamespaces()
	}
	switch {
	case b.rootless && b.options.Kind == Runc:
		return []string{"Separate uids: without subordinate ids an ordinary user has one in the container, so guest and commands share it."}
	case b.rootless:
		return append(lost, "Files of several owners: an ordinary user has one uid and gid in the sandbox, so that files of others can't be given their owner, nor made in setgid directories of other groups.")
	default:
		return lost
	}
}
