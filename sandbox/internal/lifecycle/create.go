package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Create creates a sandbox; see sandbox.Creator.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := b.newSandbox(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create %s sandbox: %w", b.Name, err)
	}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create %s sandbox: %w", b.Name, err), s.Destroy(ctx))
	}
	return s, nil
}

// newSandbox refuses a spec as far as it can before anything is made.
func (b *Backend) newSandbox(ctx context.Context, spec sandbox.Spec) (*Sandbox, error) {
	if err := b.validateSpec(spec); err != nil {
		return nil, err
	}
	s := &Sandbox{
		backend: b, status: newStatus(),
		prep: Preparation{Spec: spec, Name: ContainerName(spec.Session), Remote: b.Remote && spec.Workspace.Mode == sandbox.ModeCopy, LowPorts: b.LowPorts, Log: b.Logger.With(zap.String("session", spec.Session))},
	}
	s.image = sandboxImage{prep: &s.prep, store: b.Images, host: b.HostImage}
	s.claim.prep = &s.prep
	var err error
	s.container, err = b.driver.NewContainer(ctx, &s.prep)
	s.link.container = s.container
	return s, err
}

// create makes s a running sandbox. After an error, Destroy undoes what it did.
func (s *Sandbox) create(ctx context.Context) error {
	b := s.backend
	if err := s.image.fetchImage(ctx, s.container); err != nil {
		return s.explainFailure(ctx, err)
	}
	var err error
	s.lease, err = b.Semaphore.Acquire(ctx, admission.Request{
		MemoryBytes: s.prep.Spec.Resources.MemoryBytes, Job: s.prep.Job, Notify: s.prep.Spec.Notify,
	})
	if err != nil {
		return s.explainFailure(ctx, err)
	}
	s.prep.Threads = s.lease.Threads()
	if err := s.createAdmitted(ctx); err != nil {
		return err
	}
	if err := s.startService(ctx); err != nil {
		return err
	}
	return s.status.markRunning()
}

// createAdmitted does the steps that count as a start: the number of concurrent
// starts and their time are limited.
func (s *Sandbox) createAdmitted(ctx context.Context) error {
	defer s.lease.FinishStart()
	if limit := s.backend.StartTime; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit,
			fmt.Errorf("%w: the sandbox did not start within %s", sandbox.ErrUnavailable, limit))
		defer cancel()
	}
	for _, step := range []func(context.Context) error{
		s.claimOwnership, s.container.Begin, s.prepareMounts, s.planService, s.startContainer, s.attest, s.sendCopy,
	} {
		if err := step(ctx); err != nil {
			return s.explainFailure(ctx, err)
		}
	}
	return nil
}

// explainFailure adds the cause to the error of a failed start. An operation
// that the end of ctx interrupted may not have named it.
func (s *Sandbox) explainFailure(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // a dialler may return a little earlier
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return s.container.ExplainFailure(ctx, err)
}

// claimOwnership adds the container's parts on the host to the session's
// cleanup list, and makes the session's files.
func (s *Sandbox) claimOwnership(ctx context.Context) error {
	b, spec := s.backend, s.prep.Spec
	self, err := b.Owner()
	if err != nil {
		return err
	}
	planned, err := s.container.Plan(ctx)
	if err != nil {
		return err
	}
	return s.claim.makeClaim(ownership.CleanupOptions{
		StateDir: b.StateDir, Backend: b.Name, Session: spec.Session, Owner: self, Dir: spec.Dir,
		Image: spec.Image.String(), Workspace: spec.Workspace.Path,
	}, planned)
}

// prepareMounts prepares the workspace's mounts and the image concurrently. It
// describes the image for the commands' usual identity, and again if the
// workspace leads to another one.
func (s *Sandbox) prepareMounts(ctx context.Context) error {
	b, spec := s.backend, s.prep.Spec
	var err error
	if s.prep.Guest, err = b.copyGuest(); err != nil {
		return err
	}
	if err := s.prep.Files.writeProcessors(spec.Resources.MilliCPUs); err != nil {
		return err
	}
	usual := s.container.Identity(workmount.UsualMounts())
	var both errgroup.Group
	both.Go(func() (err error) {
		s.prep.Mounts, err = workmount.Prepare(ctx, workmount.Options{
			BackendOptions: b.BackendOptions, Workspace: spec.Workspace, Git: spec.Git, Further: s.prep.furtherMounts(), Dir: spec.Dir,
			Cleanup: s.prep.Cleanup, Holder: s.prep.Guest.Path, UserNamespaces: &b.namespaces, CallerOwnsFiles: spec.CallerOwnsFiles,
			Identity: usual.Workspace, Log: s.prep.Log,
		})
		return err
	})
	both.Go(func() error { return s.image.describeImage(ctx, usual) })
	if err := both.Wait(); err != nil {
		return err
	}
	s.prep.Identity = s.container.Identity(s.prep.Mounts)
	if s.prep.Identity.CommandUID != usual.CommandUID || s.prep.Identity.CommandGID != usual.CommandGID {
		if err := s.image.describeImage(ctx, s.prep.Identity); err != nil {
			return err
		}
	}
	if s.prep.Image != nil {
		if err := errors.Join(s.prep.AddEgressFiles(rootFiles{s.prep.Image}), s.prep.addHosts()); err != nil {
			return err
		}
	}
	target, writable := spec.Workspace.MountPoint(), spec.Root == sandbox.RootEphemeral
	if s.prep.Image == nil || len(spec.Mounts) == 0 && target == sandbox.WorkspaceDir && !writable {
		return nil // every skeleton has it
	}
	s.prep.Image, err = addMountPoints(s.prep.Image, target, s.prep.furtherMounts(), writable)
	return err
}

func (s *Sandbox) startContainer(ctx context.Context) error {
	var err error
	if s.link.streams, err = s.container.Create(ctx); err != nil {
		return err
	}
	s.status.markCreated()
	if err := s.openView(ctx); err != nil {
		return s.link.quoteStderr(err)
	}
	if err := s.link.dialGuest(ctx, s.guestOptions()); err != nil {
		return s.link.quoteStderr(err)
	}
	if s.prep.readsThroughGuest() {
		s.view = s.link.conn.View()
	}
	s.link.watchGuest(s.status)
	s.staging.Go(func() { // only the start needed them
		if err := s.prep.Mounts.RemoveStaging(); err != nil {
			s.prep.Log.Warn("staging mounts stay until the end", zap.Error(err))
		}
	})
	return nil
}

func (s *Sandbox) openView(ctx context.Context) error {
	m := s.prep.Mounts
	if m.Namespace != nil {
		if err := m.Namespace.WaitMounted(ctx); err != nil {
			return err
		}
	}
	var err error
	s.view, err = m.View(s.prep.Spec.Workspace.Path, s.status.checkEnded)
	return err
}

func (s *Sandbox) guestOptions() guest.Options {
	b, p := s.backend, &s.prep
	config := guest.NewConfig(p.Spec)
	config.CommandUID, config.CommandGID = uint32(p.Identity.CommandUID), uint32(p.Identity.CommandGID)
	config.IdentityBase = uint32(sandbox.IdentityBase(p.Identity.CommandUID, p.Identity.CommandGID))
	config.Groups = p.groups()
	config.SingleUID, config.Root = p.Identity.SingleUID, p.Identity.Root
	if !p.Identity.Workspace.Base.IsNamespace() {
		config.GIDBase = b.GIDBase
	}
	for _, m := range p.Mounts.Further {
		config.Mounts = append(config.Mounts, m.Target)
	}
	_, tmpfs := p.Tmpfs()
	for _, t := range tmpfs {
		config.Mounts = append(config.Mounts, t.Path)
	}
	config.Layered = p.layered()
	config.Probe = b.Probe
	config.View = p.readsThroughGuest()
	config.SilenceMS = b.Silence.Milliseconds()
	config.Egress = p.egressConfig()
	return guest.Options{
		Config: config, Env: p.commandEnv(), SessionEnv: p.Spec.Env, Plan: p.Spec.Egress,
		Timeout: p.Spec.Resources.CommandTime, Grace: p.Spec.Grace, AnswerTime: b.AnswerTime, Logger: p.Log,
	}
}

// attest compares the running container with the requested one, from inside and
// outside, and keeps what it observes. It returns an error if anything is
// weaker.
func (s *Sandbox) attest(ctx context.Context) error {
	o := observation{&s.prep, s.link.conn.Hello(), s.backend.Probe}
	if err := o.verifySandbox(); err != nil {
		return err
	}
	s.attestation = o.describeSandbox(s.backend.Name, s.container.ID())
	o.attestAccount(&s.attestation, s.guestOptions().Config.GIDBase)
	return s.container.Attest(ctx, s.link.conn, &s.attestation)
}

// claim is what one sandbox owns on this machine: its entries in the session's
// cleanup list, and the directory of the session's files. It sets
// Preparation.Cleanup and Preparation.Files.
type claim struct {
	prep    *Preparation
	entries []int // in the cleanup list; nil before they are added
}

// makeClaim opens the session's cleanup list, adds planned, the container's
// parts on the host, and makes the directory of the session's files.
func (c *claim) makeClaim(o ownership.CleanupOptions, planned []ownership.Entry) error {
	var err error
	c.prep.Cleanup, err = ownership.OpenCleanupList(o)
	if err != nil {
		return err
	}
	planned = append(planned, ownership.Entry{Kind: ownership.KindDirectory, Path: filesDir})
	if c.entries, err = c.prep.Cleanup.Add(planned...); err != nil {
		return err
	}
	c.prep.Files, err = newFiles(c.prep.Spec.Dir)
	return err
}

// withdraw removes the session's files and the entries, and closes the cleanup
// list. The container must be gone.
func (c *claim) withdraw() error {
	if c.prep.Cleanup == nil {
		return nil
	}
	if c.entries != nil {
		if err := c.removeFiles(); err != nil {
			return err
		}
		c.prep.Cleanup.Drop(c.entries...)
	}
	if err := c.prep.Cleanup.Close(); err != nil {
		return err
	}
	c.prep.Cleanup, c.entries = nil, nil
	return nil
}

func (c *claim) removeFiles() error {
	base, err := os.Open(c.prep.Spec.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove session files: %w", err)
	}
	defer func() { _ = base.Close() }()
	if err := workspace.RemoveTreeAt(base, filesDir); err != nil {
		return fmt.Errorf("remove session files: %w", err)
	}
	return nil
}

// giveUp lets any sweep remove what is left. It returns err joined with its own
// error.
func (c *claim) giveUp(err error) error {
	if c.prep.Cleanup == nil {
		return err
	}
	return errors.Join(err, c.prep.Cleanup.GiveUp())
}
