package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// Create makes one container and returns it running and attested; see
// sandbox.Backend. Besides that contract's errors it fails with [ErrNotShared]
// where the engine does not see the workspace.
func (b *Backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := checkSpec(spec); err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	if spec.Workspace.Mode == sandbox.ModeOverlay && !b.endpoint.local() {
		return nil, fmt.Errorf("create container: workspace %s: %w: the engine at %s is not on this machine, and can't mount an overlay of its folders: "+
			"use bind mode, the gvisor backend, or an engine here", spec.Workspace.Path, sandbox.ErrUnsupported, b.endpoint.host)
	}
	r, f, err := b.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	guest, err := b.guestFile()
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	s := &session{
		backend: b, remote: r, facts: f, guest: guest, spec: spec,
		name: containerName(spec.Session), done: make(chan struct{}),
		log: b.options.Logger.With(zap.String("session", spec.Session)),
	}
	if err := s.make(ctx); err != nil {
		err = fmt.Errorf("create container: %w", err)
		if undo := s.Destroy(ctx); undo != nil {
			err = errors.Join(err, undo)
		}
		return nil, err
	}
	return s, nil
}

func checkSpec(spec sandbox.Spec) error {
	if err := spec.Resources.Validate(); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	switch {
	case spec.Session == "":
		return fmt.Errorf("%w: no session id", sandbox.ErrInvalid)
	case spec.Workspace.Dir == nil:
		return fmt.Errorf("%w: the workspace is not open", sandbox.ErrInvalid)
	case spec.Dir == "" || !filepath.IsAbs(spec.Dir):
		return fmt.Errorf("%w: the session's folder %q is not an absolute path", sandbox.ErrInvalid, spec.Dir)
	case spec.Git != "" && spec.Git != sandbox.GitReadOnly && spec.Git != sandbox.GitCommit:
		return fmt.Errorf("%w: git mode %q", sandbox.ErrInvalid, spec.Git)
	}
	return nil
}

// make does it all. What it made so far is in s, for Destroy.
func (s *session) make(ctx context.Context) error {
	if err := s.fetch(ctx); err != nil {
		return err
	}
	var err error
	s.lease, err = s.backend.semaphore.Acquire(ctx, admission.Request{MemoryBytes: s.spec.Resources.MemoryBytes, Notify: s.spec.Notify})
	if err != nil {
		return err
	}
	defer s.lease.FinishStart()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	asked, err := s.request(ctx)
	if err != nil {
		return err
	}
	if err := s.makeVolume(ctx); err != nil {
		return err
	}
	err = s.createContainer(ctx, asked)
	if errors.Is(err, sandbox.ErrNotFound) {
		// A sweep removed the old skeleton between the lookup and now.
		if asked, err = s.request(ctx); err == nil {
			err = s.createContainer(ctx, asked)
		}
	}
	if err != nil {
		return err
	}
	s.lifecycle.Advance(sandbox.StateCreated)
	if err := s.startGuest(ctx); err != nil {
		return err
	}
	if err := s.attest(ctx, asked); err != nil {
		return err
	}
	if err := s.needShell(ctx); err != nil {
		return err
	}
	if err := s.work.Started(); err != nil {
		return err
	}
	s.lifecycle.Advance(sandbox.StateRunning)
	s.watch()
	return nil
}

// prepare makes what the container needs on this machine.
func (s *session) prepare(ctx context.Context) (err error) {
	b, spec := s.backend, s.spec
	if s.seccomp, err = harden.SeccompFor(s.facts.info.Architecture); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, err)
	}
	s.journal, err = owner.OpenJournal(owner.JournalOptions{
		StateDir: b.options.StateDir, Backend: Name, Session: spec.Session, Owner: b.self.Renewed(), Dir: spec.Dir,
		Image: spec.Image.String(), Workspace: spec.Workspace.Path,
	})
	if err != nil {
		return err
	}
	s.entries, err = s.journal.Add(
		owner.Entry{Kind: owner.KindContainer, Name: s.name},
		owner.Entry{Kind: owner.KindFolder, Path: filesFolder})
	if err != nil {
		return err
	}
	if err := s.writeFiles(); err != nil {
		return err
	}
	s.work, err = workmount.Prepare(ctx, workmount.Options{
		Workspace: spec.Workspace, Git: spec.Git, Dir: spec.Dir, StateDir: b.options.StateDir, Protect: b.options.Protect,
		Journal: s.journal, Holder: s.guest.path, Namespaces: &b.namespaces, AllowOwnerRunner: spec.AllowOwnerRunner,
		EngineMounts: b.endpoint.local(), Log: s.log,
	})
	if err != nil {
		return err
	}
	s.view, err = s.work.View(spec.Workspace.Path, s.ended)
	return err
}

// request resolves the image and says what is asked of the engine.
func (s *session) request(ctx context.Context) (_ request, err error) {
	b := s.backend
	s.image, err = s.resolveImage(ctx, s.work.CommandUID, s.work.CommandGID)
	if err != nil {
		return request{}, err
	}
	volumes, err := volumeMounts(s.spec, s.image, s.work)
	if err != nil {
		return request{}, err
	}
	for _, w := range s.image.warnings {
		s.log.Info("image", zap.String("warning", w))
	}
	return plan{
		spec: s.spec, image: s.image, volumes: volumes, work: s.work, guestPath: s.guest.path, noncePath: s.noncePath(), processors: s.processors, hostsPath: s.hostsPath(), seccomp: s.seccomp,
		runtime: s.facts.runtime, cpus: s.facts.info.NCPU, labels: b.labels(s.spec),
		noSwapLimit: !s.facts.info.SwapLimit,
	}.build(), nil
}

func (s *session) createContainer(ctx context.Context, asked request) error {
	created, err := s.remote.createContainer(ctx, asked)
	if err != nil {
		return err
	}
	s.id = created.ID
	for _, w := range created.Warnings {
		s.log.Warn("engine", zap.String("warning", w))
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	return nil
}

// markGIDs is the first of the gids that mark commands. The containers have no
// user namespace, so that a gid inside is one on the host: this range is above
// those of users and the subordinate ones (SUB_GID_MAX of login.defs(5) is
// 600100000), so that no file of the workspace opens to it.
const markGIDs = 1 << 30

// silence is when a guest that hears nothing of its host ends. An engine that
// was killed in the middle of a start forgets the container, whose shim holds
// its standard input open for ever (Docker 20.10 with containerd 1.6); nobody
// could remove it. Long enough for a Caisson that somebody stopped for a while.
const silence = 15 * time.Minute

// startGuest attaches before the container starts, so that no byte is lost,
// and speaks to the guest. It does not wait for the engine's answer before:
// the guest says hello some 10 ms earlier.
func (s *session) startGuest(ctx context.Context) error {
	response, err := s.remote.attach(ctx, s.id)
	if err != nil {
		return err
	}
	s.stream = newStream(response)
	started := make(chan error, 1)
	go func() {
		err := s.remote.startContainer(ctx, s.id)
		if err != nil {
			s.stream.Close() //nolint:errcheck // it ends the wait for a hello that won't come
		}
		started <- err
	}()
	config := guest.NewConfig(s.spec)
	config.CommandUID, config.CommandGID = uint32(s.work.CommandUID), uint32(s.work.CommandGID)
	config.GIDBase, config.Probe, config.View = markGIDs, true, s.work.Volume != nil
	config.SilenceMS = silence.Milliseconds()
	conn, err := guest.Dial(ctx, guest.Options{
		Conn: s.stream, Config: config, Env: s.image.env, Timeout: s.spec.Resources.CommandTime, Grace: s.spec.Grace, AnswerTime: s.remote.answer, Logger: s.log,
	})
	if startErr := <-started; startErr != nil {
		if err == nil {
			conn.Close() //nolint:errcheck // as above
		}
		return s.explainVolume(startErr)
	}
	if err != nil {
		return s.explain(ctx, fmt.Errorf("start guest: %w", err))
	}
	s.conn = conn
	if s.work.Volume != nil {
		s.view = conn.View()
	}
	return nil
}

// explain adds what the container said when its guest did not answer.
func (s *session) explain(ctx context.Context, err error) error {
	if context.Cause(ctx) != nil {
		return err
	}
	if text := s.stream.complaint(); text != "" {
		err = fmt.Errorf("%w: it wrote: %.500q", err, text)
	}
	got, inspectErr := s.remote.inspect(ctx, s.id)
	if inspectErr == nil && got.State != nil && !got.State.Running {
		err = fmt.Errorf("%w: the container ended with %d %s", err, got.State.ExitCode, got.State.Error)
	}
	return err
}
