package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Sandbox is one sandbox. It implements sandbox.Sandbox.
type Sandbox struct {
	// Set by create alone, and undone by Destroy.
	backend     *Backend
	container   Container
	prep        Preparation
	release     func() // lets the store prune the image; may be nil
	lease       *admission.Lease
	entries     []int // of the container and the files in the cleanup list
	connection  Connection
	view        workspace.View // nil in bind mode
	conn        *guest.Conn
	attestation sandbox.Attestation

	watching     sync.WaitGroup
	stopWatching context.CancelCauseFunc
	done         chan struct{} // closed with the state stopped

	mu     sync.Mutex // guards the fields below and the last transitions of state
	state  sandbox.Lifecycle
	ending bool // Destroy was called
	err    error

	destroying sync.Mutex // held by one call of Destroy; guards destroyed
	destroyed  bool
}

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Container returns the driver's part of the sandbox.
func (s *Sandbox) Container() Container { return s.container }

// Guest returns the connection to the guest.
func (s *Sandbox) Guest() *guest.Conn { return s.conn }

// ID returns the engine's or runtime's name of the container.
func (s *Sandbox) ID() string { return s.container.ID() }

// State returns the current state.
func (s *Sandbox) State() sandbox.State { return s.state.State() }

// Attestation returns what was observed and read back when the sandbox started.
func (s *Sandbox) Attestation() sandbox.Attestation { return s.attestation }

// Start starts a command; see sandbox.Sandbox.
func (s *Sandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := s.requireRunning("start command"); err != nil {
		return nil, err
	}
	return s.conn.Start(ctx, cmd)
}

// Apply makes one change to the workspace; see sandbox.Sandbox.
func (s *Sandbox) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if err := s.requireRunning("apply change"); err != nil {
		return workspace.Change{}, err
	}
	return s.conn.Apply(ctx, op)
}

// Ping asks the guest for an answer; see sandbox.Sandbox.
func (s *Sandbox) Ping(ctx context.Context) error {
	if err := s.requireRunning("ping"); err != nil {
		return err
	}
	return s.conn.Ping(ctx)
}

// requireRunning returns an error unless the sandbox is running: the loss of a
// lost sandbox, otherwise a sandbox.StateError.
func (s *Sandbox) requireRunning(action string) error {
	if err := s.Err(); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return s.state.Require(action, sandbox.StateRunning)
}

// View returns the view of an overlay as commands see it; see sandbox.Sandbox.
func (s *Sandbox) View() workspace.View { return s.view }

// Done returns a channel that is closed when the sandbox has stopped.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Err returns the loss of a lost sandbox.
func (s *Sandbox) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// checkEnded returns an error that wraps sandbox.ErrLost if the sandbox has
// stopped.
func (s *Sandbox) checkEnded() error {
	select {
	case <-s.done:
		if err := s.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%w: it was destroyed", sandbox.ErrLost)
	default:
		return nil
	}
}

// watchGuest watches the guest's connection, and removes in the background what only
// the start needed.
func (s *Sandbox) watchGuest() {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.stopWatching = cancel
	s.watching.Go(func() {
		<-s.conn.Done()
		s.mu.Lock()
		ending := s.ending
		s.mu.Unlock()
		if !ending {
			s.end(s.explainLoss(ctx, s.conn.Err()))
		}
	})
	s.watching.Go(func() {
		if err := s.prep.Mounts.RemoveStaging(); err != nil {
			s.prep.Log.Warn("staging mounts stay until the end", zap.Error(err))
		}
	})
}

// explainLoss returns why the connection to the guest ended. The loss itself is
// certain; causes are added where they can be found.
func (s *Sandbox) explainLoss(ctx context.Context, err error) error {
	switch {
	case err == nil:
		err = sandbox.ErrLost
	case !errors.Is(err, sandbox.ErrLost):
		err = fmt.Errorf("%w: %w", sandbox.ErrLost, err)
	}
	err = s.container.ExplainLoss(ctx, err)
	return quote(err, "its last words", s.connection.Stderr())
}

// end records that the sandbox has stopped, and why. Only the first call has an
// effect.
func (s *Sandbox) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.State() == sandbox.StateStopped {
		return
	}
	s.err = err
	s.state.Advance(sandbox.StateStopped)
	close(s.done)
}

// Destroy removes the container and everything that was made for it; see
// sandbox.Sandbox. It continues when ctx ends, because no other process may
// remove what it leaves as long as this one lives. What can't be removed is in
// the error and stays in the cleanup list, which any Sweep may then use; a
// further call tries again.
func (s *Sandbox) Destroy(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
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
		if s.prep.Cleanup != nil {
			err = errors.Join(err, s.prep.Cleanup.GiveUp())
		}
		return fmt.Errorf("destroy %s sandbox %s: %w", s.backend.Name, s.prep.Name, err)
	}
	if s.release != nil {
		s.release()
	}
	s.lease.Close()
	s.destroyed = true
	return nil
}

// undoCreate undoes every step of create, the last one first. It stops at the first
// error: nothing is removed that the container may still use.
func (s *Sandbox) undoCreate(ctx context.Context) error {
	// The guest kills everything and exits when its connection closes; the
	// driver kills what does not exit.
	if s.conn != nil {
		_ = s.conn.Close() // the container is removed next
		s.stopWatching(errDestroyed)
		s.watching.Wait()
	}
	var err error
	if s.entries != nil {
		err = s.container.Remove(ctx)
	}
	s.end(nil)
	if err != nil {
		return err
	}
	if s.prep.Mounts != nil {
		if err := s.prep.Mounts.Close(ctx); err != nil {
			return err
		}
	}
	if s.prep.Cleanup == nil {
		return nil
	}
	if s.entries != nil {
		if err := s.removeFiles(); err != nil {
			return err
		}
		if err := s.prep.Cleanup.Forget(s.entries...); err != nil {
			return err
		}
	}
	if err := s.prep.Cleanup.Close(); err != nil {
		return err
	}
	s.prep.Cleanup, s.entries = nil, nil
	return nil
}
