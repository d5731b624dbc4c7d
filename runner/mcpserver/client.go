package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
)

type client struct {
	server *Server
	conn   *mcp.ServerSession
	user   runner.User
	slots  chan struct{} // one per call that runs or waits
	// ctx ends when the client does, by cancel.
	ctx    context.Context //nolint:containedctx // the contexts of its calls end with it
	cancel context.CancelCauseFunc

	// opening is held while the session is opened or closed.
	opening sync.Mutex
	session *Session
	ended   bool

	// idle ends the client when no HTTP request has been under way for a while.
	activity sync.Mutex
	active   int
	idle     *time.Timer
}

// openSession returns the client's session, which it opens first if necessary.
// ctx bounds the wait for that, not the session.
func (c *client) openSession(ctx context.Context) (*Session, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	switch {
	case c.ended:
		return nil, context.Cause(c.ctx)
	case c.session != nil:
		return c.session, nil
	}
	from := Client{User: c.user}
	var roots bool
	if p := c.conn.InitializeParams(); p != nil {
		if p.ClientInfo != nil {
			from.Name, from.Version = p.ClientInfo.Name, p.ClientInfo.Version
		}
		roots = p.Capabilities != nil && p.Capabilities.RootsV2 != nil && p.ProtocolVersion < withoutRoots //nolint:staticcheck // as in askRoots
	}
	if roots && c.server.opts.AsksRoots {
		var err error
		if from.Roots, err = c.askRoots(ctx); err != nil {
			return nil, err
		}
	}
	session, err := c.server.opts.Open(c.ctx, from)
	if err != nil {
		return nil, err
	}
	c.session = session
	c.server.log.Info("session opened", zap.String("user", c.user.Name), zap.String("client", from.Name))
	return session, nil
}

// withoutRoots is the first protocol version in which servers can't ask for
// roots.
const withoutRoots = "2026-07-28"

func (c *client) askRoots(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rootsTime, fmt.Errorf("no answer in %v", rootsTime))
	defer cancel()
	list, err := c.conn.ListRoots(ctx, nil) //nolint:staticcheck // clients of the protocol before 2026-07-28 have them
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("ask client for its roots: %w", err)
	}
	var out []string
	for _, r := range list.Roots {
		if r != nil {
			out = append(out, r.URI)
		}
	}
	return out, nil
}

// closeSession cancels the client's calls and closes its session. Further calls
// wait for the first.
func (c *client) closeSession(cause error) {
	c.cancel(cause)
	c.opening.Lock()
	defer c.opening.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	defer c.server.forgetClient(c)
	c.stopIdle()
	if c.session == nil {
		return
	}
	r := c.session.Runner.CloseFor(c.user.Name)
	if c.session.Done != nil {
		c.session.Done()
	}
	c.server.log.Info("session closed", zap.String("session", r.Session), zap.String("user", c.user.Name), zap.NamedError("cause", cause))
	c.server.opts.Ended(r)
}

// beginRequest counts an HTTP request. The caller must call end when the
// request ends.
func (c *client) beginRequest() (end func()) {
	c.activity.Lock()
	defer c.activity.Unlock()
	c.active++
	if c.idle != nil {
		c.idle.Stop()
	}
	return func() {
		c.activity.Lock()
		defer c.activity.Unlock()
		if c.active--; c.active > 0 || c.ctx.Err() != nil {
			return
		}
		if c.idle != nil {
			c.idle.Stop()
		}
		c.idle = time.AfterFunc(c.server.opts.IdleTime, c.endIdle)
	}
}

var errIdle = errors.New("no request for a long time")

// endIdle ends the client unless a request is under way.
func (c *client) endIdle() {
	c.activity.Lock()
	busy := c.active > 0
	c.activity.Unlock()
	if busy {
		return
	}
	c.closeSession(errIdle)
	_ = c.conn.Close() // forgets its ID
}

func (c *client) stopIdle() {
	c.activity.Lock()
	defer c.activity.Unlock()
	if c.idle != nil {
		c.idle.Stop()
	}
}
