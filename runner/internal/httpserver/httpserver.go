// Package httpserver runs an HTTP server on several listeners, with bounded connections.
package httpserver

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// idleTime is how long a connection without a request is kept.
	idleTime = 2 * time.Minute
	// shutdownTime bounds the last responses once the sessions have ended.
	shutdownTime = 5 * time.Second
	// maxHeaderBytes bounds the headers of a request.
	maxHeaderBytes = 16 << 10
)

// Serve sets the bounds of h and serves on the listeners until ctx ends or one of them fails. Then
// it closes them, calls endSessions, and returns its error. Unless ctx has ended, it also
// returns the listeners' errors.
func Serve(ctx context.Context, h *http.Server, endSessions func() error, listeners ...net.Listener) error {
	h.IdleTimeout, h.MaxHeaderBytes = idleTime, maxHeaderBytes
	h.ConnContext, h.ConnState = withConn, trackState
	limits := make([]*limited, len(listeners))
	var group errgroup.Group
	failed := make(chan struct{}, len(listeners))
	for i := range listeners {
		l := newLimited(listeners[i])
		limits[i] = l
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
	for _, l := range limits {
		_ = l.Close() // Shutdown returns the error again
	}
	err := endSessions()
	for _, l := range limits {
		l.closeUnused()
	}
	late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), shutdownTime, errors.New("answers take too long"))
	defer cancel()
	if h.Shutdown(late) != nil {
		_ = h.Close() // closes the remaining connections
	}
	if serveErr := group.Wait(); ctx.Err() == nil {
		err = errors.Join(err, serveErr)
	}
	return err
}

// maxConnections bounds the connections of one listener.
const maxConnections = 1024

// limited bounds the number of open connections. For a new one beyond that, it closes the oldest
// one without a request from a client with a known token: strangers could otherwise occupy all.
type limited struct {
	net.Listener
	freed *sync.Cond // of mu
	mu    sync.Mutex
	// open counts the connections. idle has the ones that may be closed, oldest first.
	open   int
	idle   list.List
	closed bool
}

func newLimited(l net.Listener) *limited {
	limit := &limited{Listener: l}
	limit.freed = sync.NewCond(&limit.mu)
	return limit
}

func (l *limited) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open == maxConnections && !l.closed {
		if oldest := l.idle.Front(); oldest != nil {
			_ = oldest.Value.(*conn).closeHeld() // its client may be gone
		} else {
			l.freed.Wait()
		}
	}
	if l.closed {
		return nil, errors.Join(net.ErrClosed, accepted.Close())
	}
	l.open++
	c.idle = l.idle.PushBack(c)
	return c, nil
}

func (l *limited) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.freed.Broadcast()
	return l.Listener.Close()
}

// closeUnused closes the connections that no request has come on. Shutdown would wait five
// seconds for the first one.
func (l *limited) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.idle.Front(); e != nil; {
		c := e.Value.(*conn)
		e = e.Next() // closing removes c
		if !c.used {
			_ = c.closeHeld()
		}
	}
}

type conn struct {
	net.Conn
	l      *limited
	idle   *list.Element // its place in l.idle; nil during a request of a known client
	used   bool          // a request has begun
	closed bool
}

func (c *conn) Close() error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	return c.closeHeld()
}

// closeHeld is Close for callers that hold the listener's mu.
func (c *conn) closeHeld() error {
	if !c.closed {
		c.closed = true
		c.l.open--
		c.setBusy()
		c.l.freed.Broadcast()
	}
	return c.Conn.Close()
}

// setBusy prevents the connection from being closed for others.
func (c *conn) setBusy() {
	if c.idle != nil {
		c.l.idle.Remove(c.idle)
		c.idle = nil
	}
}

// trackState implements http.Server.ConnState.
func trackState(nc net.Conn, state http.ConnState) {
	c := nc.(*conn)
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.used = c.used || state == http.StateActive
	if state == http.StateIdle && c.idle == nil && !c.closed {
		c.idle = c.l.idle.PushBack(c)
		c.l.freed.Broadcast()
	}
}

type connKey struct{}

// KeepConnection keeps the connection of a request open until its end. Handlers call it once
// they know the client's token.
func KeepConnection(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.setBusy()
}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// Quota bounds what each client may have open at once.
type Quota struct {
	most int
	mu   sync.Mutex
	open map[string]int
}

// NewQuota returns a quota of most per client.
func NewQuota(most int) *Quota { return &Quota{most: most, open: map[string]int{}} }

// Take takes one of a client's quota until release is called. Further calls of release do
// nothing. ok is false if none is left.
func (q *Quota) Take(client string) (release func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[client] >= q.most {
		return nil, false
	}
	q.open[client]++
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.open[client]--; q.open[client] == 0 {
			delete(q.open, client)
		}
	}), true
}
