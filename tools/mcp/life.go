package mcp

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// legacyProtocol is offered to stdio servers first. With a newer version, the SDK
// begins with a request that is not part of the old handshake, and some servers end
// when they get it. A server that refuses this handshake is started again with the
// newest version.
const legacyProtocol = "2025-11-25"

const stopTime = 15 * time.Second

// life is one life of a server, from its start to its end.
type life struct {
	server  *server
	link    link
	session *mcp.ClientSession
	began   time.Time

	// ctx ends with the life. Its cause is the reason.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// changed has room for one signal that the tools must be listed again.
	changed  chan struct{}
	incoming *rate.Limiter

	mu       sync.Mutex
	calls    int
	tokens   int
	progress map[string]*progress
	refused  map[string]bool
}

// startLife starts the server, does the handshake and lists its tools. ctx bounds
// all of it. If it fails, nothing of the server is left.
func (s *server) startLife(ctx context.Context) (_ *life, offer toolList, err error) {
	l := &life{
		server: s, began: time.Now(), changed: make(chan struct{}, 1), incoming: s.set.limits.lines.newLimiter(),
		progress: map[string]*progress{}, refused: map[string]bool{},
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	if l.link, err = s.openLink(ctx); err != nil {
		return nil, offer, err
	}
	ctx, unbind := l.bindContext(ctx)
	defer unbind()
	// The SDK waits for messages under way if a handshake fails.
	abort := context.AfterFunc(ctx, func() { _ = l.stopLink() })
	defer func() {
		abort()
		if err != nil {
			err = l.explainError(ctx, err)
			s.refusedStreamable = refusesStreamable(l.link)
			s.lastStderr, _ = l.link.stderrTail()
			_ = l.stopLife(err)
		}
	}()
	defer s.recoverPanic(&err)
	if l.session, err = l.openSession(ctx); err != nil {
		return nil, offer, err
	}
	go func() {
		err := l.session.Wait()
		l.cancel(cmp.Or(err, error(&EndedError{})))
	}()
	offer, err = l.listTools(ctx)
	return l, offer, err
}

func (l *life) openSession(ctx context.Context) (*mcp.ClientSession, error) {
	opts := &mcp.ClientOptions{
		Capabilities: &mcp.ClientCapabilities{RootsV2: &mcp.RootCapabilities{}}, //nolint:staticcheck // deprecated by the newest protocol; servers ask for them
		// Without a handler, the SDK subscribes to no changes.
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {},
		MultiRoundTrip:         &mcp.MultiRoundTripOptions{Disabled: true},
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "caisson", Version: l.server.set.opts.Version}, opts)
	client.AddReceivingMiddleware(l.filterIncoming)
	client.AddRoots(&mcp.Root{URI: l.server.set.opts.Roots, Name: "workspace"}) //nolint:staticcheck // as above
	var session mcp.ClientSessionOptions
	if l.server.cfg.Command != "" && !l.server.modern {
		session.ProtocolVersion = legacyProtocol
	}
	return client.Connect(ctx, l.link, &session)
}

// refusedHandshake reports whether a server answered with an error. After a
// handshake, another protocol version may work.
func refusedHandshake(err error) bool {
	_, answered := errors.AsType[*jsonrpc.Error](err)
	return answered
}

// recoverPanic turns a panic into an error. The SDK panics when it decodes some
// unexpected results.
func (s *server) recoverPanic(err *error) {
	if p := recover(); p != nil {
		s.serverLog().Error("panic while an MCP server was asked", zap.Any("panic", p), zap.Stack("stack"))
		*err = &AnswerError{"a result that can't be decoded"}
	}
}

// watchLife waits for the end of the life and returns the reason. Meanwhile it
// lists the tools again when they change.
func (l *life) watchLife(ctx context.Context) error {
	wait, listed := relistPause, time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.ctx.Done():
			return l.explainError(l.ctx, nil)
		case <-l.link.endSignal():
			return l.link.endCause()
		case <-l.changed:
		}
		// Changes come in bursts, and a server may report them forever.
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			continue
		case <-l.ctx.Done():
			continue
		case <-l.link.endSignal():
			continue
		}
		select {
		case <-l.changed:
		default:
		}
		if wait = min(2*wait, maxRelistPause); time.Since(listed) > 2*maxRelistPause {
			wait = relistPause
		}
		if err := l.listAgain(ctx); err != nil {
			l.server.serverLog().Debug("list tools of MCP server again", zap.Error(err))
		}
		listed = time.Now()
	}
}

const (
	// relistPause is the time from a change of the tools to listing them. It
	// doubles each time, up to maxRelistPause, until the tools stay the same for
	// longer.
	relistPause    = 100 * time.Millisecond
	maxRelistPause = time.Minute
)

func (l *life) listAgain(ctx context.Context) (err error) {
	defer l.server.recoverPanic(&err)
	ctx, cancel := context.WithTimeoutCause(ctx, l.server.cfg.startTimeout(), &TimeoutError{Op: "list of tools", After: l.server.cfg.startTimeout()})
	defer cancel()
	ctx, stop := l.bindContext(ctx)
	defer stop()
	offer, err := l.listTools(ctx)
	if err != nil {
		return err
	}
	l.server.applyChanges(offer)
	return nil
}

// bindContext returns a context that ends with ctx and with the life.
func (l *life) bindContext(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// explainError returns the reason behind err: why ctx or the life ended, if they did.
func (l *life) explainError(ctx context.Context, err error) error {
	select {
	case <-l.link.endSignal():
		if cause := l.link.endCause(); cause != nil && !errors.Is(cause, ErrClosed) {
			return cause
		}
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// stopLife ends the life and waits until nothing of it is left, or for stopTime.
// Calls under way fail with the cause.
func (l *life) stopLife(cause error) error {
	l.cancel(cause)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if l.session != nil {
			_ = l.session.Close() // the link reports why it ended
		}
	}()
	err := l.stopLink()
	select {
	case <-closed:
	case <-time.After(stopTime):
		err = errors.Join(err, &TimeoutError{Op: "close of the session", After: stopTime})
	}
	return err
}

func (l *life) stopLink() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), stopTime, &TimeoutError{Op: "stop", After: stopTime})
	defer cancel()
	return l.link.stopServer(ctx)
}

// beginCall returns the context of one call, which ends after its timeouts or with
// the life, and the token of its progress. The caller must call end.
func (l *life) beginCall(ctx context.Context, show func(text string)) (_ context.Context, token string, end func()) {
	timeout := l.server.cfg.callTimeout()
	total := l.server.cfg.maxCallTime()
	ctx, unbind := l.bindContext(ctx)
	ctx, cancelTotal := context.WithTimeoutCause(ctx, total, &TimeoutError{Op: "call", After: total})
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(timeout, func() { cancel(&TimeoutError{Op: "call", After: timeout}) })
	p := &progress{extend: func() { timer.Reset(timeout) }, show: show}
	l.mu.Lock()
	l.calls++
	l.tokens++
	token = strconv.Itoa(l.tokens)
	l.progress[token] = p
	l.mu.Unlock()
	return ctx, token, func() {
		l.mu.Lock()
		l.calls--
		delete(l.progress, token)
		l.mu.Unlock()
		timer.Stop()
		cancel(nil)
		cancelTotal()
		unbind()
	}
}

func (l *life) callsUnderWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}
