package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
)

// registry holds a server's live sessions, and finds the others in its archive.
// It is safe for concurrent use.
type registry struct {
	*diagnostics
	opts    *Options
	archive archive

	// ctx is the sessions' context; end cancels it with a cause.
	ctx  context.Context //nolint:containedctx // sessions outlive the requests that start them
	end  context.CancelCauseFunc
	stop sync.Once
	// stopped is closed when the last session has closed.
	stopped chan struct{}

	mu       sync.Mutex
	closing  bool
	starting int // sessions that are being started
	sessions map[string]*session
	keys     sandboxKeys
	// ending counts the sessions that are being started, and the running
	// applies.
	ending sync.WaitGroup
}

func newRegistry(o *Options, d *diagnostics) *registry {
	r := &registry{
		diagnostics: d, opts: o, archive: archive{stateDir: o.StateDir, shows: o.Shows},
		sessions: map[string]*session{}, keys: sandboxKeys{byKey: map[string]*sandboxStart{}}, stopped: make(chan struct{}),
	}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	d.metrics.collectStates(r.countStates)
	return r
}

func (r *registry) startSession(ctx context.Context, in NewSession, from client) (*session, error) {
	live := newSession(r.diagnostics, in.Title, from)
	live.prepare = func(ctx context.Context) (runner.Options, func(), error) { return r.opts.Prepare(ctx, in) }
	live.idleTime = r.opts.IdleTime
	if err := r.startLive(ctx, live); err != nil {
		return nil, err
	}
	r.log.Info("session started", zap.String("session", live.id), zap.String("client", from.label), zap.String("workspace", displayTitle(in.Workspace)))
	return live, nil
}

func (r *registry) resumeSession(ctx context.Context, id string, in ResumeSession, from client) (*session, error) {
	dir, err := r.findDir(id)
	if err != nil {
		return nil, err
	}
	if r.liveSession(id) != nil {
		return nil, sessionLive()
	}
	p, err := readPast(id, dir)
	if err != nil {
		return nil, r.internalProblem("read session", err)
	}
	live := newSession(r.diagnostics, "", from)
	live.title, live.begun = displayTitle(p.begin.Task), p.begin.Time
	live.prepare = func(ctx context.Context) (runner.Options, func(), error) { return r.opts.Resume(ctx, id, in) }
	live.idleTime = r.opts.IdleTime
	if err := r.startLive(ctx, live); err != nil {
		return nil, err
	}
	r.log.Info("session resumed", zap.String("session", id), zap.String("client", from.label))
	return live, nil
}

func (r *registry) startLive(ctx context.Context, live *session) error {
	if err := r.reserveSession(); err != nil {
		return err
	}
	reserved := true
	defer func() { // also if openRun panics: closeAll would wait forever
		if reserved {
			r.releaseSession()
		}
		r.ending.Done()
	}()
	ended := live.onClosed
	live.onClosed = func() {
		r.removeSession(live.id)
		ended()
	}
	if err := live.openRun(ctx, r.ctx, r.opts); err != nil {
		if r.ctx.Err() != nil {
			return serverStopping()
		}
		return err
	}
	reserved = !r.addSession(live)
	if reserved { // it came too late for closeAll
		live.close("")
		<-live.closed
		return serverStopping()
	}
	r.metrics.started.Inc()
	return nil
}

// addSession makes a reserved session live. It returns false if the server is
// stopping.
func (r *registry) addSession(live *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return false
	}
	r.starting--
	r.sessions[live.id] = live
	live.startIdleTimer()
	return true
}

// releaseSession undoes reserveSession for a session that did not become live.
func (r *registry) releaseSession() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
}

// reserveSession counts a session that is about to be started.
func (r *registry) reserveSession() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closing:
		return serverStopping()
	case len(r.sessions)+r.starting >= r.opts.MaxSessions:
		p := newProblem(http.StatusTooManyRequests, "sessions", fmt.Sprintf("%d sessions are live, the maximum", r.opts.MaxSessions),
			"End one, or raise max_sessions of serve in the configuration")
		p.retryAfter = "10"
		return p
	}
	r.starting++
	r.ending.Add(1)
	return nil
}

func serverStopping() error {
	return newProblem(http.StatusServiceUnavailable, "stopping", "the server is stopping", "Try again when it is back")
}

func (r *registry) removeSession(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sessions, id)
}

// closeAll implements [Server.Close].
func (r *registry) closeAll(cause error) error {
	var err error
	r.stop.Do(func() {
		r.mu.Lock()
		r.closing = true
		r.mu.Unlock()
		all := r.listLive()
		if cause == nil {
			cause = errStopping
		}
		r.end(cause)
		for _, live := range all {
			live.close("")
		}
		for _, live := range all {
			<-live.closed
			if left := live.report.Left; len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("session %s left %s", live.id, left[0]))
			}
		}
		r.ending.Wait()
		close(r.stopped)
	})
	<-r.stopped
	return err
}

// beginWork returns a context for work that the server waits for when it stops.
// The context ends after the limit, or when the stop is forced.
func (r *registry) beginWork(ctx context.Context, limit time.Duration) (_ context.Context, done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return nil, nil, serverStopping()
	}
	r.ending.Add(1)
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	bounded, end := context.WithTimeoutCause(ctx, limit, errors.New("the apply takes too long"))
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-r.opts.Force:
			cancel(errStopping)
		case <-bounded.Done():
		}
	})
	return bounded, func() {
		end()
		watch.Wait()
		cancel(nil)
		r.ending.Done()
	}, nil
}

func (r *registry) listLive() []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.sessions))
}

func (r *registry) countStates() map[State]int {
	n := map[State]int{}
	for _, live := range r.listLive() {
		n[live.currentState()]++
	}
	return n
}

// liveSession returns a live session of this server, or nil.
func (r *registry) liveSession(id string) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions[id]
}

// requireLive returns a live session, or a problem if it has ended or doesn't
// exist.
func (r *registry) requireLive(id string) (*session, error) {
	if live := r.liveSession(id); live != nil {
		return live, nil
	}
	v, err := r.viewSession(id, false)
	if err != nil {
		return nil, err
	}
	if v.State == StateElsewhere {
		return nil, runsElsewhere(id, "Use that process")
	}
	return nil, sessionEnded(id)
}

// findDir returns the directory of a session that clients may see: live or
// ended, of this server or another Caisson of the same user.
func (r *registry) findDir(id string) (string, error) {
	dir, ok := r.archive.findDir(id)
	if !ok || r.liveSession(id) == nil && !r.archive.isVisible(dir) {
		return "", noSession()
	}
	return dir, nil
}

func runsElsewhere(id, hint string) *Problem {
	return newProblem(http.StatusConflict, "elsewhere", "session "+id+" runs in another process", hint)
}

func noSession() *Problem {
	return newProblem(http.StatusNotFound, "no_session", "there is no such session", "It may have been removed")
}

// viewSession returns a session as clients see it. whole adds the fields that
// lists don't have.
func (r *registry) viewSession(id string, whole bool) (Session, error) {
	if live := r.liveSession(id); live != nil {
		return live.sessionView(whole), nil
	}
	dir, ok := r.archive.findDir(id)
	if !ok {
		return Session{}, noSession()
	}
	p, err := readPast(id, dir)
	if err != nil {
		return Session{}, r.internalProblem("read session", err)
	}
	if !r.archive.mayShow(dir, p.begin.Created) {
		return Session{}, noSession()
	}
	return p.sessionView(p.ended == nil && r.archive.isLive(id), whole), nil
}
