package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Create makes and starts one sandbox. The errors are those of
// sandbox.Backend; one that the runtime gave ends with its own words.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (_ sandbox.Sandbox, err error) {
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err) // who was interrupted does not always say by what
		}
		return fmt.Errorf("create %s sandbox: %w", b.Name(), explainFailure(err))
	}
	if err := b.validate(spec); err != nil {
		return nil, fail(err)
	}
	c := newContainer(b, spec)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Destroy(ctx))
		}
	}()
	if err := c.fetch(ctx, spec.Image); err != nil {
		return nil, fail(err)
	}
	if c.lease, err = b.semaphore.Acquire(ctx, admission.Request{MemoryBytes: spec.Resources.MemoryBytes, Notify: spec.Notify}); err != nil {
		return nil, fail(err)
	}
	defer c.lease.FinishStart()
	ctx, cancel := context.WithTimeoutCause(ctx, b.options.StartTime,
		fmt.Errorf("%w: the sandbox did not start within %s", sandbox.ErrUnavailable, b.options.StartTime))
	defer cancel()
	if err := c.prepare(ctx, spec); err != nil {
		return nil, fail(err)
	}
	if err := c.start(ctx, spec); err != nil {
		return nil, fail(err)
	}
	c.life.Advance(sandbox.StateCreated)
	c.watchOver()
	if err := c.attest(ctx, spec); err != nil {
		return nil, fail(err)
	}
	if err := c.commit(); err != nil {
		return nil, fail(err)
	}
	return c, nil
}

// validate refuses what can be refused before anything is made.
func (b *Backend) validate(spec sandbox.Spec) error {
	dir := filepath.Clean(spec.Dir)
	switch {
	case spec.Session == "" || strings.ContainsAny(spec.Session, "/. \x00"):
		return fmt.Errorf("session %q: %w", spec.Session, sandbox.ErrInvalid)
	case spec.Workspace.Dir == nil || !filepath.IsAbs(spec.Workspace.Path):
		return fmt.Errorf("workspace %q is not open: %w", spec.Workspace.Path, sandbox.ErrInvalid)
	case spec.Git != "" && spec.Git != sandbox.GitReadOnly && spec.Git != sandbox.GitCommit:
		return fmt.Errorf("git mode %q: %w", spec.Git, sandbox.ErrInvalid)
	case !strings.HasPrefix(dir, filepath.Clean(b.options.StateDir)+"/"):
		return fmt.Errorf("session folder %q is not below the state folder %q: %w", spec.Dir, b.options.StateDir, sandbox.ErrInvalid)
	}
	if err := spec.Resources.Validate(); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	if err := b.checkImage(spec.Image); err != nil {
		return err
	}
	if err := b.checkSystem(); err != nil {
		return err
	}
	if _, err := os.Stat(b.options.RuntimePath); err != nil {
		return fmt.Errorf("runtime %s: %w: install it, or name its path in the configuration: %w", b.options.RuntimePath, sandbox.ErrNotFound, err)
	}
	return nil
}

// prepare makes the journal and the bundle's folder, in which the rest is put by
// complete. What is made is noted in the journal before.
func (c *container) prepare(ctx context.Context, spec sandbox.Spec) error {
	b := c.backend
	self, err := b.owner()
	if err != nil {
		return err
	}
	c.plan.cgroup, c.lost = planCgroup(spec.Session, b.rootless, b.traits)
	go expectMigration(ctx, c.plan.cgroup)
	c.journal, err = owner.OpenJournal(owner.JournalOptions{
		StateDir: b.options.StateDir, Backend: b.Name(), Session: spec.Session, Owner: self, Dir: spec.Dir,
		Image: spec.Image.String(), Workspace: spec.Workspace.Path,
	})
	if err != nil {
		return err
	}
	if c.entries, err = c.journal.Add(c.things()...); err != nil {
		return err
	}
	if c.bundle, err = newBundle(spec.Dir); err != nil {
		return err
	}
	c.log, err = c.bundle.makeLog()
	return err
}

// complete makes what the container needs on the host and writes the bundle.
// Workspace and image are looked at at the same time.
func (c *container) complete(ctx context.Context, spec sandbox.Spec) error {
	b := c.backend
	guestCopy, err := b.guestCopy()
	if err != nil {
		return err
	}
	c.guestSHA256 = guestCopy.sha256
	c.plan.traits, c.plan.resources, c.plan.ceiling = b.traits, spec.Resources, b.hardLimit
	c.plan.guest, c.plan.nonce = guestCopy.path, c.bundle.noncePath()
	if c.plan.processors, err = c.bundle.writeProcessors(spec.Resources.MilliCPUs); err != nil {
		return err
	}

	usual := b.usualIdentity()
	var both errgroup.Group
	both.Go(func() (err error) {
		c.prepared, err = workmount.Prepare(ctx, workmount.Options{
			Workspace: spec.Workspace, Git: spec.Git, Dir: spec.Dir, StateDir: b.options.StateDir, Protect: b.options.Protect,
			Journal: c.journal, Holder: guestCopy.path, Namespaces: &b.namespaces, AllowOwnerRunner: spec.AllowOwnerRunner,
			RuntimeEnters: b.rootless, Log: b.log,
		})
		return err
	})
	both.Go(func() error { return c.resolve(ctx, spec.Image, usual) })
	if err := both.Wait(); err != nil {
		return err
	}
	c.plan.workspace, c.plan.identity = c.prepared.Binds, b.identity(c.prepared)
	if id := c.plan.identity; id.commandUID != usual.commandUID || id.commandGID != usual.commandGID {
		if err := c.resolve(ctx, spec.Image, id); err != nil {
			return err
		}
	}
	return c.writeBundle()
}

// things are what the journal notes: everything that a runtime or this
// package makes and that a dead owner would leave.
func (c *container) things() []owner.Entry {
	list := []owner.Entry{
		{Kind: owner.KindFolder, Path: bundleDir},
		{Kind: owner.KindContainer, Name: c.id},
	}
	for _, dir := range c.plan.cgroup.dirs {
		list = append(list, owner.Entry{Kind: owner.KindCgroup, Name: strings.TrimPrefix(dir, "/")})
	}
	return list
}

func (c *container) writeBundle() error {
	var err error
	if c.plan.rootfs, err = skeletonFor(c.plan.image, c.backend.cacheDir()); err != nil {
		return err
	}
	if !c.plan.traits.ownKernel {
		if c.plan.seccomp, err = harden.SeccompFor(runtime.GOARCH); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
		}
	}
	return c.bundle.write(c.plan.spec())
}

// usualIdentity is what identity nearly always says, before the workspace was
// looked at.
func (b *Backend) usualIdentity() identity {
	return b.identity(&workmount.Prepared{CommandUID: sandbox.CommandUID, CommandGID: sandbox.CommandGID})
}

// identity says who is who, from what the workspace needs and who we are.
func (b *Backend) identity(w *workmount.Prepared) identity {
	switch {
	case !b.rootless:
		return identity{commandUID: w.CommandUID, commandGID: w.CommandGID}
	case b.options.Kind == GVisor:
		// The sandbox's own kernel has all ids; only one of them is the user
		// outside. The guest starts as that one and becomes 0 by its
		// capabilities.
		return identity{
			guest: sandbox.CommandUID, commandUID: sandbox.CommandUID, commandGID: sandbox.CommandGID,
			user: &idPair{container: sandbox.CommandUID, hostUID: os.Geteuid(), hostGID: os.Getegid()},
		}
	default:
		return identity{single: true, user: &idPair{hostUID: os.Geteuid(), hostGID: os.Getegid()}}
	}
}

// start makes the rest of the bundle, runs the container, and takes hold of its
// process and of its guest, which is greeted before it is there: so its own
// start overlaps with the end of the runtime's, as the beginning of the
// runtime's does with our preparations; see [launch].
func (c *container) start(ctx context.Context, spec sandbox.Spec) error {
	ours, theirs, err := openStdio()
	if err != nil {
		return err
	}
	c.stdio = ours
	if err := c.run(ctx, spec, theirs); err != nil {
		return c.quoting(err)
	}
	return nil
}

// run returns when the container runs and its guest has answered. The runtime
// has theirs then; as long as we had them too, the guest's end would be no end
// of the pipe.
func (c *container) run(ctx context.Context, spec sandbox.Spec, theirs streams) error {
	client := c.backend.runtime
	begin := func() (*launch, error) {
		var entrance *workmount.Entrance
		if c.prepared != nil {
			entrance = c.prepared.Entrance
		}
		l, err := client.begin(ctx, c.bundle, c.id, c.plan.cgroup.path != "", theirs, entrance)
		return l, errors.Join(err, theirs.close())
	}
	var running *launch
	var err error
	// How the runtime is started may depend on the workspace, for a user.
	early := c.log.held && client.waitsForLog(c.backend.traits) && !(c.backend.rootless && spec.Workspace.Mode == sandbox.ModeOverlay)
	if early {
		if running, err = begin(); err != nil {
			return err
		}
	}
	if err = c.complete(ctx, spec); err == nil {
		err = c.log.release()
	}
	switch {
	case err != nil && early:
		return errors.Join(err, running.abandon())
	case err != nil:
		return errors.Join(err, theirs.close())
	case !early:
		if running, err = begin(); err != nil {
			return err
		}
	}
	if err = c.look(ctx, spec); err != nil {
		c.stdio.Close() //nolint:errcheck // a guest that starts nevertheless ends
		return errors.Join(err, running.finish())
	}
	greeted := make(chan error, 1)
	go func() { greeted <- c.greet(ctx, spec) }()
	if err = running.wait(ctx, c.log); err == nil {
		err = c.hold()
	}
	if err != nil {
		c.stdio.Close() //nolint:errcheck // ends the greeting
		<-greeted
		return err
	}
	return <-greeted
}

// look opens the host's view of the workspace, once that is mounted.
func (c *container) look(ctx context.Context, spec sandbox.Spec) error {
	if c.prepared.Entrance != nil {
		if err := c.prepared.Entrance.Opened(ctx); err != nil {
			return err
		}
	}
	var err error
	c.view, err = c.prepared.View(spec.Workspace.Path, c.ended)
	return err
}

// quoting adds what the runtime or the guest wrote to the container's standard
// error, if anything that err doesn't have yet.
func (c *container) quoting(err error) error {
	return quote(err, c.stdio.stderr.text())
}

func quote(err error, said string) error {
	if said == "" || strings.Contains(err.Error(), said) {
		return err
	}
	return fmt.Errorf("%w: standard error: %q", err, said)
}

// greet waits for the guest. If ctx ends, the connection is closed, and the
// guest ends too.
func (c *container) greet(ctx context.Context, spec sandbox.Spec) error {
	config := guest.NewConfig(spec)
	id := c.plan.identity
	config.CommandUID, config.CommandGID, config.SingleUID = uint32(id.commandUID), uint32(id.commandGID), id.single
	config.GIDBase, config.GIDCount = gidBase, gidCount
	config.Probe = c.backend.options.Probe
	conn, err := guest.Dial(ctx, guest.Options{
		Conn: c.stdio, Config: config, Env: sandbox.Environment(c.plan.image.Env, c.plan.image.Path), Timeout: spec.Resources.CommandTime, Grace: spec.Grace, AnswerTime: c.backend.answer, Logger: c.backend.log,
	})
	if err != nil {
		return err
	}
	c.conn = conn
	return nil
}

// hold opens the container's process and finds its cgroup.
func (c *container) hold() error {
	pid, err := c.bundle.pid()
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	if c.process, err = openProcess(pid); err != nil {
		return fmt.Errorf("container died at once: %w: %w", sandbox.ErrUnavailable, err)
	}
	if c.plan.cgroup.path != "" {
		if c.cgroup, err = cgroupOf(pid, c.session); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
		}
	}
	return nil
}

// watchOver begins to watch the guest, and lets go of what only the start
// needed.
func (c *container) watchOver() {
	c.watching.Go(c.watch)
	c.watching.Go(func() {
		if err := c.prepared.Started(); err != nil {
			c.backend.log.Warn("staging mounts stay until the end", zap.String("session", c.session), zap.Error(err))
		}
	})
}

// The gids that mark commands: no mapping bounds them here, and nothing gives
// out ids of this range (systemd's UIDS-GIDS lists 1879048192 to 2147483647 as
// unused), so that they mean nothing on the host.
const (
	gidBase  = 2_000_000_000
	gidCount = 20_000
)
