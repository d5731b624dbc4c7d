package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/tools/workspace"
)

// session is one container and what was made for it. It implements
// sandbox.Sandbox.
type session struct {
	backend *Backend
	remote  *remote
	facts   facts
	guest   guestFile
	spec    sandbox.Spec
	name    string
	nonce   string
	// processors are files of the session that are put over the kernel's.
	processors processorFiles
	seccomp    harden.Seccomp
	image      rootImage
	root       *images.RootFS // what the store unpacked; nil if it is not from there
	release    func()         // lets root go; nil if there is nothing to let go
	log        *zap.Logger

	lease       *admission.Lease
	lifecycle   sandbox.Lifecycle
	journal     *owner.Journal
	entries     []int // of the container and the session's files, in the journal
	work        *workmount.Prepared
	view        workspace.View // nil in bind mode
	volume      int            // its number in the journal, 0 without one
	id          string
	stream      *stream
	conn        *guest.Conn
	attestation sandbox.Attestation

	// stopWatching ends the wait for a loss, watched says that it has ended.
	stopWatching context.CancelCauseFunc
	watched      chan struct{}
	finish       sync.Once
	done         chan struct{}
	err          error // readable once done is closed

	destroying sync.Mutex
	destroyed  bool
}

var _ sandbox.Sandbox = (*session)(nil)

// ID is the engine's id of the container, its name until it has one.
func (s *session) ID() string {
	if s.id == "" {
		return s.name
	}
	return s.id
}

// State is where the container is in its life.
func (s *session) State() sandbox.State { return s.lifecycle.State() }

// Attestation is what was seen once it ran.
func (s *session) Attestation() sandbox.Attestation { return s.attestation }

// Start starts a command; see sandbox.Sandbox.
func (s *session) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := s.lifecycle.Require("start command", sandbox.StateRunning); err != nil {
		return nil, s.orLost(err)
	}
	return s.conn.Start(ctx, cmd)
}

// Apply makes one change to the workspace; see sandbox.Sandbox.
func (s *session) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if err := s.lifecycle.Require("change workspace", sandbox.StateRunning); err != nil {
		return workspace.Change{}, s.orLost(err)
	}
	return s.conn.Apply(ctx, op)
}

// Ping asks the guest for a sign of life; see sandbox.Sandbox.
func (s *session) Ping(ctx context.Context) error {
	if err := s.lifecycle.Require("ping", sandbox.StateRunning); err != nil {
		return s.orLost(err)
	}
	return s.conn.Ping(ctx)
}

// orLost prefers why the container went away over its being gone.
func (s *session) orLost(err error) error {
	if lost := s.Err(); lost != nil {
		return lost
	}
	return err
}

// View is an overlay as commands see it; see sandbox.Sandbox.
func (s *session) View() workspace.View { return s.view }

// ended says that the container is no more, and why.
func (s *session) ended() error {
	select {
	case <-s.done:
		if s.err != nil {
			return s.err
		}
		return fmt.Errorf("%w: it was destroyed", sandbox.ErrLost)
	default:
		return nil
	}
}

// Done is closed when the container has stopped.
func (s *session) Done() <-chan struct{} { return s.done }

// Err is why it stopped.
func (s *session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// errDestroyed ends what waits for a container that is being removed.
var errDestroyed = errors.New("the container is being destroyed")

// end says once that the container has stopped, and why.
func (s *session) end(err error) {
	s.finish.Do(func() {
		s.err = err
		s.lifecycle.Advance(sandbox.StateStopped)
		close(s.done)
	})
}

// watch waits for the loss of the guest.
func (s *session) watch() {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.stopWatching, s.watched = cancel, make(chan struct{})
	go func() {
		defer close(s.watched)
		defer cancel(nil)
		select {
		case <-ctx.Done():
		case <-s.conn.Done():
			if err := s.conn.Err(); err != nil {
				s.end(s.explainLoss(ctx, err))
			}
		}
	}()
}

// Destroy removes the container and all that was made for it; see
// sandbox.Sandbox. It goes on when ctx ends, because what it leaves nobody
// else may remove as long as this process lives.
func (s *session) Destroy(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	s.destroying.Lock()
	defer s.destroying.Unlock()
	if s.destroyed {
		return nil
	}
	// The guest kills everything and exits when its connection closes; the
	// engine's own kill follows, for a guest that can't.
	if s.conn != nil {
		s.conn.Close() //nolint:errcheck // removing the container is what counts
	} else if s.stream != nil {
		s.stream.Close() //nolint:errcheck // as above
	}
	if s.watched != nil {
		s.stopWatching(errDestroyed)
		<-s.watched
	}
	err := s.remove(ctx)
	s.end(nil)
	if err == nil && s.work != nil {
		err = s.work.Close(ctx)
	}
	if err == nil && s.journal != nil {
		err = s.removeFiles()
	}
	if s.journal != nil {
		// Another call may try again; until then a sweep may.
		end := s.journal.Close
		if err != nil {
			end = s.journal.GiveUp
		}
		err = errors.Join(err, end())
	}
	if err != nil {
		return fmt.Errorf("destroy container %s: %w", s.name, err)
	}
	s.releaseImage()
	s.lease.Close()
	s.destroyed = true
	return nil
}
