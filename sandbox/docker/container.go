package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

type driver struct{ backend *Backend }

var _ lifecycle.Driver = driver{}

type engineContainer struct {
	backend *Backend
	remote  *remote
	facts   facts
	prep    *lifecycle.Preparation

	seccomp harden.Seccomp
	image   rootImage
	volume  int // entry in the cleanup list, or 0
	asked   request
	id      string // "" until the engine has returned it
	stream  *stream
	started bool
	binds   *workmount.ImageBinds // nil unless the image's binds are staged
}

var _ lifecycle.Container = (*engineContainer)(nil)

// NewContainer connects to the engine and refuses what it can't do.
func (d driver) NewContainer(ctx context.Context, p *lifecycle.Preparation) (lifecycle.Container, error) {
	b := d.backend
	if !b.endpoint.isLocal() {
		if err := b.checkRemote(p.Spec); err != nil {
			return nil, err
		}
	}
	if p.Spec.Root == sandbox.RootEphemeral && p.Spec.Image.Scheme == images.SchemeRootFS {
		return nil, fmt.Errorf("image %s: %w: an engine mounts it read-only: use the gvisor or runc backend, or import it (docker import) and use its name",
			p.Spec.Image, sandbox.ErrUnsupported)
	}
	r, f, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	if p.Spec.User == sandbox.UserRoot {
		if err := b.checkRoot(f); err != nil {
			return nil, err
		}
	}
	return &engineContainer{backend: b, remote: r, facts: f, prep: p}, nil
}

// ID returns the engine's ID for the container, or its name before it has one.
func (c *engineContainer) ID() string {
	if c.id == "" {
		return c.prep.Name
	}
	return c.id
}

// FetchImage finds an image that the engine has. It loads others into an engine
// that can't bind their files, because it is on another machine or because they
// must be writable.
func (c *engineContainer) FetchImage(ctx context.Context) (fetched bool, err error) {
	b, ref := c.backend, c.prep.Spec.Image
	if ref.Scheme == images.SchemeName {
		c.image, err = engineImage(ctx, c.remote, c.facts, ref)
		if b.lifecycle.Images == nil || !errors.Is(err, sandbox.ErrNotFound) {
			c.prep.Config = c.image.config
			return true, err
		}
	}
	if b.endpoint.isLocal() && c.prep.Spec.Root != sandbox.RootEphemeral {
		return false, nil
	}
	c.image, err = b.loadedImage(ctx, c.remote, c.facts, ref)
	c.prep.Config = c.image.config
	return true, err
}

// Plan chooses the seccomp profile and announces the container.
func (c *engineContainer) Plan(context.Context) (_ []ownership.Entry, err error) {
	if c.seccomp, err = c.prep.Seccomp(c.facts.info.Architecture); err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
	}
	return []ownership.Entry{{Kind: ownership.KindContainer, Name: c.prep.Name}}, nil
}

func (c *engineContainer) Begin(ctx context.Context) error { return c.examineImage(ctx) }

func (c *engineContainer) Identity(m *workmount.Mounts) lifecycle.Identity {
	if c.isRoot() {
		return lifecycle.RootIdentity(c.prep.Spec, c.facts.base)
	}
	id := lifecycle.Identity{
		CommandUID: m.CommandUID, CommandGID: m.CommandGID, ForeignFiles: !m.IDMapped, Workspace: c.prep.ImageIdentity(),
	}
	id.Workspace.Base = c.facts.base
	return id
}

// Create makes the engine's container and attaches to it before it starts, so
// that no byte is lost.
func (c *engineContainer) Create(ctx context.Context) (lifecycle.Connection, error) {
	if err := c.provideGuest(ctx); err != nil {
		return nil, err
	}
	if err := c.makeRequest(ctx); err != nil {
		return nil, err
	}
	if err := c.checkTargets(ctx); err != nil {
		return nil, err
	}
	if err := c.makeVolume(ctx); err != nil {
		return nil, err
	}
	err := c.requestContainer(ctx)
	if errors.Is(err, sandbox.ErrNotFound) {
		// A sweep removed the old skeleton meanwhile.
		if err = c.makeRequest(ctx); err == nil {
			err = c.requestContainer(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	response, err := c.remote.attachContainer(ctx, c.id)
	if err != nil {
		return nil, err
	}
	c.stream = newStream(response)
	return c.stream, nil
}

func (c *engineContainer) makeRequest(ctx context.Context) error {
	p := c.prep
	if p.Image != nil {
		var err error
		if c.image, err = c.backend.skeletonImage(ctx, c.remote, p.Image); err != nil {
			return err
		}
	}
	if err := c.stageBinds(); err != nil {
		return err
	}
	volumes, err := p.VolumeMounts(c.image.config.Volumes)
	if err != nil {
		return err
	}
	own, further := p.Tmpfs()
	full := c.basePlan()
	full.volumes, full.work, full.tmpfs = volumes, p.Mounts, slices.Concat(own, further)
	full.files, full.hostsPath, full.remote = p.FileBinds(), p.Files.Path(lifecycle.HostsFile), p.Remote
	full.coverCgroups = c.isRoot() && c.ownsCgroups()
	c.asked = full.buildRequest()
	return nil
}

// basePlan plans a container without mounts.
func (c *engineContainer) basePlan() plan {
	return plan{
		spec: c.prep.Spec, image: c.image, seccomp: c.seccomp, runtime: c.facts.runtime, cpus: c.facts.info.NCPU,
		labels: c.backend.labels(c.prep.Spec), noSwapLimit: !c.facts.info.SwapLimit,
	}
}

func (c *engineContainer) requestContainer(ctx context.Context) error {
	created, err := c.remote.createContainer(ctx, c.asked)
	if err != nil {
		return err
	}
	c.id = created.ID
	for _, w := range created.Warnings {
		c.prep.Log.Warn("engine", zap.String("warning", w))
	}
	return context.Cause(ctx)
}

// withUnstarted calls use while c.id is a container that is never started. If
// the container can't be removed, c.id stays, so that Remove tries again.
func (c *engineContainer) withUnstarted(ctx context.Context, asked request, use func() error) error {
	created, err := c.remote.createContainer(ctx, asked)
	if err != nil {
		return err
	}
	c.id = created.ID
	err = use()
	if removeErr := removeContainer(context.WithoutCancel(ctx), c.remote, c.id); removeErr != nil {
		return errors.Join(err, removeErr)
	}
	c.id = ""
	return err
}

func (c *engineContainer) Start(ctx context.Context) error {
	err := c.remote.startContainer(ctx, c.id)
	c.started = err == nil
	if err == nil && c.binds != nil { // the container now has its own mounts
		err = c.binds.RemoveStaging()
	}
	return err
}

// ExplainFailure adds a hint if the engine could not mount the overlay or has
// other user namespaces, and how a started container ended.
func (c *engineContainer) ExplainFailure(ctx context.Context, err error) error {
	if m := c.prep.Mounts; m != nil && m.Volume != nil && strings.Contains(err.Error(), "mount local volume") {
		return fmt.Errorf("workspace %s: %w: the engine can't mount an overlay of it, or does not share this machine's processes and mounts: "+
			"use the gvisor backend, run as root, or use bind mode: %w", m.Path, sandbox.ErrUnsupported, err)
	}
	if errors.Is(err, guest.ErrUserNamespace) {
		return fmt.Errorf("%w: give the user of userns-remap one range of %d ids in /etc/subuid and /etc/subgid, or use the gvisor or the runc backend", err, workmount.IDCount)
	}
	if !c.started || context.Cause(ctx) != nil {
		return err
	}
	got, inspectErr := c.remote.inspectContainer(ctx, c.id)
	if inspectErr == nil && got.State != nil && !got.State.Running {
		err = fmt.Errorf("%w: the container ended with %d %s", err, got.State.ExitCode, got.State.Error)
	}
	return err
}
