// Package httpserver runs an HTTP server on several listeners until it is to end.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// idleTime is how long a connection without a request is kept.
	idleTime = 2 * time.Minute
	// shutdownTime bounds the responses that are still being written once the sessions
	// have ended.
	shutdownTime = 5 * time.Second
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 16 << 10
)

// Serve answers on listeners until ctx ends or one of them fails, then calls endSessions
// and returns its error. It sets what the server bounds, and closes the listeners. The
// error of a listener counts unless ctx has ended.
func Serve(ctx context.Context, h *http.Server, endSessions func() error, listeners ...net.Listener) error {
	h.IdleTimeout, h.MaxHeaderBytes = idleTime, maxHeaderBytes
	h.ConnContext, h.ConnState = withConn, trackState
	listeners = slices.Clone(listeners)
	for i, l := range listeners {
		listeners[i] = newLimited(l)
	}
	var group errgroup.Group
	failed := make(chan struct{}, len(listeners))
	for _, l := range listeners {
		group.Go(func() error {
			err := h.Serve(l)
			failed <- struct{}{}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("serve on %s: %w", l.Addr(), err)
		})
	}
	select {
	case <-ctx.Done():
	case <-failed: // stop serving on the others
	}
	for _, l := range listeners {
		_ = l.Close() // Shutdown returns the error again
	}
	err := endSessions()
	late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), shutdownTime, errors.New("answers take too long"))
	defer cancel()
	if h.Shutdown(late) != nil {
		_ = h.Close() // closes their connections
	}
	if serveErr := group.Wait(); ctx.Err() == nil {
		err = errors.Join(err, serveErr)
	}
	return err
}
