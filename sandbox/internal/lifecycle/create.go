package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Create creates a sandbox; see sandbox.Creator.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (*Sandbox, error) {
	s, err := b.newSandbox(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("create %s sandbox: %w", b.Name, err)
	}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create %s sandbox: %w", b.Name, err), s.Destroy(ctx))
	}
	return s, nil
}

// newSandbox refuses what can be refused before anything is made.
func (b *Backend) newSandbox(ctx context.Context, spec sandbox.Spec) (*Sandbox, error) {
	if err := b.validateSpec(spec); err != nil {
		return nil, err
	}
	s := &Sandbox{
		backend: b, done: make(chan struct{}),
		prep: Preparation{Spec: spec, Name: ContainerName(spec.Session), Log: b.Logger.With(zap.String("session", spec.Session))},
	}
	var err error
	s.container, err = b.driver.NewContainer(ctx, &s.prep)
	return s, err
}

// create makes a running sandbox of s. Destroy undoes what it did before an
// error.
func (s *Sandbox) create(ctx context.Context) error {
	b := s.backend
	if err := s.fetchImage(ctx); err != nil {
		return s.explainFailure(ctx, err)
	}
	var err error
	s.lease, err = b.Semaphore.Acquire(ctx, admission.Request{MemoryBytes: s.prep.Spec.Resources.MemoryBytes, Notify: s.prep.Spec.Notify})
	if err != nil {
		return s.explainFailure(ctx, err)
	}
	defer s.lease.FinishStart()
	if b.StartTime > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, b.StartTime,
			fmt.Errorf("%w: the sandbox did not start within %s", sandbox.ErrUnavailable, b.StartTime))
		defer cancel()
	}
	for _, step := range []func(context.Context) error{
		s.claimOwnership, s.container.Begin, s.prepareMounts, s.startContainer, s.attest,
	} {
		if err := step(ctx); err != nil {
			return s.explainFailure(ctx, err)
		}
	}
	return s.commit()
}

// explainFailure adds the cause to the error of a failed start. What was
// interrupted by the end of ctx need not name its cause.
func (s *Sandbox) explainFailure(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // a dialler may return a little earlier
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return s.container.ExplainFailure(ctx, err)
}

// claimOwnership opens the session's cleanup list, adds what the container
// consists of on the host, and makes the directory of the session's files.
func (s *Sandbox) claimOwnership(ctx context.Context) error {
	b, spec := s.backend, s.prep.Spec
	self, err := b.Owner()
	if err != nil {
		return err
	}
	entries, err := s.container.Plan(ctx)
	if err != nil {
		return err
	}
	s.prep.Cleanup, err = ownership.OpenCleanupList(ownership.CleanupOptions{
		StateDir: b.StateDir, Backend: b.Name, Session: spec.Session, Owner: self, Dir: spec.Dir,
		Image: spec.Image.String(), Workspace: spec.Workspace.Path,
	})
	if err != nil {
		return err
	}
	entries = append(entries, ownership.Entry{Kind: ownership.KindDirectory, Path: filesDir})
	if s.entries, err = s.prep.Cleanup.Add(entries...); err != nil {
		return err
	}
	s.prep.Files, err = newFiles(spec.Dir)
	return err
}

// prepareMounts prepares the workspace's mounts and, at the same time, the
// image. The image depends on the commands' identity, which the workspace may
// change from the usual one; the image is then described again.
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
			Workspace: spec.Workspace, Git: spec.Git, Dir: spec.Dir, StateDir: b.StateDir, Protect: b.Protect,
			Cleanup: s.prep.Cleanup, Holder: s.prep.Guest.Path, UserNamespaces: &b.namespaces, CallerOwnsFiles: spec.CallerOwnsFiles,
			EngineMounts: b.EngineMounts, RuntimeJoins: b.RuntimeJoins, Log: s.prep.Log,
		})
		return err
	})
	both.Go(func() error { return s.describeImage(ctx, usual) })
	if err := both.Wait(); err != nil {
		return err
	}
	s.prep.Identity = s.container.Identity(s.prep.Mounts)
	if s.prep.Identity.CommandUID == usual.CommandUID && s.prep.Identity.CommandGID == usual.CommandGID {
		return nil
	}
	return s.describeImage(ctx, s.prep.Identity)
}

// startContainer creates and starts the container and waits for its guest.
func (s *Sandbox) startContainer(ctx context.Context) error {
	var err error
	if s.connection, err = s.container.Create(ctx); err != nil {
		return err
	}
	s.state.Advance(sandbox.StateCreated)
	if err := s.openView(ctx); err != nil {
		return s.quoteStderr(err)
	}
	if err := s.dialGuest(ctx); err != nil {
		return s.quoteStderr(err)
	}
	s.watchGuest()
	return nil
}

// openView opens the host's view of the workspace, once it is mounted.
func (s *Sandbox) openView(ctx context.Context) error {
	m := s.prep.Mounts
	if m.Namespace != nil {
		if err := m.Namespace.WaitMounted(ctx); err != nil {
			return err
		}
	}
	var err error
	s.view, err = m.View(s.prep.Spec.Workspace.Path, s.checkEnded)
	return err
}

// dialGuest speaks to the guest while the container starts: the guest is there
// some milliseconds before the engine or runtime returns.
func (s *Sandbox) dialGuest(ctx context.Context) error {
	started := make(chan error, 1)
	go func() {
		err := s.container.Start(ctx)
		if err != nil {
			_ = s.connection.Close() // ends the wait for a guest that does not come
		}
		started <- err
	}()
	conn, err := guest.Dial(ctx, s.guestOptions())
	if startErr := <-started; startErr != nil {
		if err == nil {
			_ = conn.Close() // the start's error counts
		}
		return startErr
	}
	if err != nil {
		return fmt.Errorf("start guest: %w", err)
	}
	s.conn = conn
	if s.prep.Mounts.Volume != nil {
		s.view = conn.View()
	}
	return nil
}

func (s *Sandbox) guestOptions() guest.Options {
	b, p := s.backend, &s.prep
	config := guest.NewConfig(p.Spec)
	config.CommandUID, config.CommandGID = uint32(p.Identity.CommandUID), uint32(p.Identity.CommandGID)
	config.SingleUID = p.Identity.SingleUID
	if b.GIDBase > 0 {
		config.GIDBase = b.GIDBase
	}
	if b.GIDCount > 0 {
		config.GIDCount = b.GIDCount
	}
	config.Probe = b.Probe
	config.View = p.Mounts.Volume != nil
	config.SilenceMS = b.Silence.Milliseconds()
	return guest.Options{
		Conn: s.connection, Config: config, Env: p.Env, Timeout: p.Spec.Resources.CommandTime, Grace: p.Spec.Grace,
		AnswerTime: b.AnswerTime, Logger: p.Log,
	}
}

// commit makes the sandbox a running one, unless it was lost meanwhile.
func (s *Sandbox) commit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.State() == sandbox.StateStopped {
		return fmt.Errorf("%w: it ended as soon as it had started: %w", sandbox.ErrUnavailable, s.err)
	}
	s.state.Advance(sandbox.StateRunning)
	return nil
}

// quoteStderr adds what was written to the container's standard error, unless
// err contains it.
func (s *Sandbox) quoteStderr(err error) error {
	return quote(err, "standard error", s.connection.Stderr())
}

// ContainerName returns the name of a session's container.
func ContainerName(session string) string { return "caisson-" + session }
