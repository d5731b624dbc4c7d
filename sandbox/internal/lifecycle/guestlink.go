package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
)

// guestLink is the connection to a sandbox's guest. Its fields are set while
// the sandbox is created.
type guestLink struct {
	container Container
	streams   Connection  // nil before the container is created
	conn      *guest.Conn // nil before the handshake

	watching     sync.WaitGroup
	stopWatching context.CancelCauseFunc
}

// dialGuest starts the container and dials the guest meanwhile: the guest is
// ready some milliseconds before the engine or runtime returns.
func (l *guestLink) dialGuest(ctx context.Context, o guest.Options) error {
	o.Conn = l.streams
	started := make(chan error, 1)
	go func() {
		err := l.container.Start(ctx)
		if err != nil {
			_ = l.streams.Close() // ends the wait for a guest that won't come
		}
		started <- err
	}()
	conn, err := guest.Dial(ctx, o)
	if startErr := <-started; startErr != nil {
		if err == nil {
			_ = conn.Close() // the start's error counts
		}
		return startErr
	}
	if err != nil {
		return fmt.Errorf("start guest: %w", err)
	}
	l.conn = conn
	return nil
}

// watchGuest records the loss of the sandbox when the guest's connection ends,
// unless the sandbox is being destroyed.
func (l *guestLink) watchGuest(s *status) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l.stopWatching = cancel
	l.watching.Go(func() {
		<-l.conn.Done()
		if !s.isEnding() {
			s.markStopped(l.explainLoss(ctx, l.conn.Err()))
		}
	})
}

// explainLoss returns an ErrLost for the end of the guest's connection, with
// the cause if it can be found.
func (l *guestLink) explainLoss(ctx context.Context, err error) error {
	switch {
	case err == nil:
		err = sandbox.ErrLost
	case !errors.Is(err, sandbox.ErrLost):
		err = fmt.Errorf("%w: %w", sandbox.ErrLost, err)
	}
	err = l.container.ExplainLoss(ctx, err)
	return quote(err, "its last words", l.streams.Stderr())
}

// quoteStderr adds the container's standard error to err.
func (l *guestLink) quoteStderr(err error) error {
	return quote(err, "standard error", l.streams.Stderr())
}

// closeConn closes the connection and waits for the watching goroutine. The
// guest then kills everything and exits; the driver kills what does not exit.
func (l *guestLink) closeConn() {
	if l.conn == nil {
		return
	}
	_ = l.conn.Close() // the container is removed next
	l.stopWatching(errDestroyed)
	l.watching.Wait()
}
