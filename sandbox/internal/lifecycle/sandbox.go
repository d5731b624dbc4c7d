package lifecycle

import (
	"context"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/service"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Sandbox implements sandbox.Sandbox.
type Sandbox struct {
	// Set while the sandbox is created; Destroy undoes it.
	backend     *Backend
	container   Container
	prep        Preparation
	image       sandboxImage
	lease       *admission.Lease
	claim       claim
	link        guestLink
	view        workspace.View // nil in bind mode
	copy        *overlay.Copy  // nil except in ModeCopy
	attestation sandbox.Attestation
	service     *service.Service // nil if the spec has none

	status  *status
	staging sync.WaitGroup // removes the staging mounts

	destroying sync.Mutex // held during Destroy; guards destroyed
	destroyed  bool
}

var (
	_ sandbox.Sandbox      = (*Sandbox)(nil)
	_ sandbox.EgressServer = (*Sandbox)(nil)
)

// Container returns the driver's part of the sandbox.
func (s *Sandbox) Container() Container { return s.container }

// Guest returns the connection to the guest.
func (s *Sandbox) Guest() *guest.Conn { return s.link.conn }

// ID returns the engine's or runtime's name for the container.
func (s *Sandbox) ID() string { return s.container.ID() }

// State returns the current state.
func (s *Sandbox) State() sandbox.State { return s.status.current() }

// Attestation returns what was observed and read back when the sandbox started.
func (s *Sandbox) Attestation() sandbox.Attestation { return s.attestation }

// Verify returns every way in which a guest with this hello observes less than
// was requested.
func (s *Sandbox) Verify(hello wire.Hello) error {
	o := observation{&s.prep, hello, s.backend.Probe}
	return o.verifySandbox()
}

// Start starts a command; see sandbox.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := s.status.requireRunning("start command"); err != nil {
		return nil, err
	}
	kills := s.prep.OOMKills
	if kills == nil {
		return s.link.conn.Start(ctx, cmd)
	}
	before := kills()
	p, err := s.link.conn.Start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &countedProcess{Process: p, killed: sync.OnceValue(func() bool { return kills() > before })}, nil
}

// countedProcess reports out-of-memory kills that the guest can't count.
type countedProcess struct {
	sandbox.Process
	killed func() bool // since the start; asked once
}

func (p *countedProcess) Wait() (sandbox.Exit, error) {
	exit, err := p.Process.Wait()
	// Processes of others are counted, too. A success shows that none of the
	// command's was needed.
	if killed := p.killed(); killed && !exit.Status.Success() {
		exit.Status.OOMKilled = true
	}
	return exit, err
}

// Apply makes one change to the workspace; see sandbox.Sandbox.
func (s *Sandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if err := s.status.requireRunning("apply change"); err != nil {
		return workspace.Change{}, err
	}
	return s.link.conn.Apply(ctx, op)
}

// Serve sets the handler of programs' connections; see sandbox.EgressServer.
func (s *Sandbox) Serve(h sandbox.EgressHandler) { s.link.conn.Serve(h) }

// Ping asks the guest for an answer; see sandbox.Sandbox.
func (s *Sandbox) Ping(ctx context.Context) error {
	if err := s.status.requireRunning("ping"); err != nil {
		return err
	}
	return s.link.conn.Ping(ctx)
}

// Collect collects the changes of a copied workspace; see sandbox.Sandbox.
func (s *Sandbox) Collect(ctx context.Context) error {
	if s.copy == nil {
		return fmt.Errorf("collect changes: %w: the workspace is not a copy", sandbox.ErrState)
	}
	if err := s.status.requireRunning("collect changes"); err != nil {
		return err
	}
	return s.copy.Collect(ctx)
}

// View returns the commands' view of an overlay or a copy; see sandbox.Sandbox.
func (s *Sandbox) View() workspace.View { return s.view }

// Service returns the service; see sandbox.Sandbox.
func (s *Sandbox) Service() sandbox.ServiceProcess {
	if s.service == nil {
		return nil
	}
	return s.service
}

// Done returns a channel that is closed when the sandbox has stopped.
func (s *Sandbox) Done() <-chan struct{} { return s.status.done }

// Err returns the loss of a lost sandbox.
func (s *Sandbox) Err() error { return s.status.lossError() }

// Destroy removes the container and everything made for it; see
// sandbox.Sandbox. It continues when ctx ends: no other process may remove what
// it leaves while this one lives. After an error, the rest stays in the cleanup
// list for any Sweep, and Destroy may be called again.
func (s *Sandbox) Destroy(ctx context.Context) error {
	s.status.markEnding()
	s.destroying.Lock()
	defer s.destroying.Unlock()
	if s.destroyed {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if limit := s.backend.DestroyTime; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("not destroyed within %s", limit))
		defer cancel()
	}
	if err := s.undoCreate(ctx); err != nil {
		return fmt.Errorf("destroy %s sandbox %s: %w", s.backend.Name, s.prep.Name, s.claim.giveUp(err))
	}
	s.image.releaseImage()
	s.lease.Close()
	s.destroyed = true
	return nil
}

// undoCreate undoes create's steps, last one first. It stops at the first
// error, so it removes nothing that the container may still use.
func (s *Sandbox) undoCreate(ctx context.Context) error {
	s.link.closeConn()
	s.staging.Wait()
	var err error
	if s.claim.entries != nil {
		err = s.container.Remove(ctx)
	}
	s.status.markStopped(nil)
	if err != nil {
		return err
	}
	if s.prep.Mounts != nil {
		if err := s.prep.Mounts.Close(ctx); err != nil {
			return err
		}
	}
	return s.claim.withdraw()
}
