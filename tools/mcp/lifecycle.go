package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

const (
	firstRestart = time.Second
	maxRestart   = time.Minute
	// maxRestarts is the number of consecutive starts without a good run that are
	// tried after the first.
	maxRestarts = 5
	// goodRun is how long a server must run for its restarts to be counted anew.
	goodRun     = time.Minute
	shownStderr = 4 << 10
)

// server is one server of a [Set], with its lives and what it offers.
type server struct {
	set *Set
	cfg Server
	// tried is closed when the first start has succeeded or failed.
	tried chan struct{}
	// modern means that the server refused the old handshake. Only runLives uses it
	// and the next four.
	modern     bool
	lastStderr string
	restarts   int
	// oldSSE means that the server has only the older HTTP transport.
	// refusedStreamable is set if the last start failed in a way that suggests so.
	oldSSE, refusedStreamable bool
	// oauth authorizes requests over HTTP, or is nil. It is made with the first
	// link.
	oauth atomic.Pointer[oauth.Handler]

	mu sync.Mutex
	// life is the life that can be called, or nil. gaveUp is why there will be
	// none.
	life   *life
	gaveUp error
	// turned is closed and replaced when either changes.
	turned chan struct{}
	// offered holds the registered tools.
	offered map[tools.Name]offeredTool
}

func newServer(set *Set, cfg Server) *server {
	return &server{set: set, cfg: cfg, tried: make(chan struct{}), turned: make(chan struct{}), offered: map[tools.Name]offeredTool{}}
}

func (s *server) openLink(ctx context.Context) (link, error) {
	if s.cfg.Command == "" {
		return s.openHTTP()
	}
	stderr := limits.Tail{Size: tailBytes}
	proc, err := s.set.opts.Launch(ctx, s.cfg, &stderr)
	if err != nil {
		return nil, &launchError{err}
	}
	return newStdioLink(proc, &stderr, s.set.limits), nil
}

// launchError marks an error of Options.Launch or Options.HTTPClient.
type launchError struct{ err error }

func (e *launchError) Error() string { return e.err.Error() }
func (e *launchError) Unwrap() error { return e.err }

// runLives starts the server, and starts it again when it ends, until the set is
// closed or the server has failed too often.
func (s *server) runLives() {
	ctx := s.set.ctx
	firstTried := sync.OnceFunc(func() { close(s.tried) })
	defer firstTried()
	for failures := 0; ; {
		began := time.Now()
		l, err := s.startServer(ctx)
		var final bool
		if err == nil {
			firstTried()
			err = l.watchLife(ctx)
			if time.Since(began) >= goodRun {
				failures = 0
			}
			failures++
			final = failures > maxRestarts
			s.endLife(l, err, final)
		} else {
			var launch *launchError
			failures++
			final = failures > maxRestarts || s.restarts == 0 && errors.As(err, &launch) || errors.Is(err, oauth.ErrSignIn)
			s.failStart(err, time.Since(began), final)
			firstTried()
		}
		if final || ctx.Err() != nil {
			return
		}
		wait := min(firstRestart<<(failures-1), maxRestart)
		s.reportEvent(ServerRestarting{Server: s.cfg.Name, Attempt: failures, Wait: wait})
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			s.giveUp(ErrClosed)
			return
		}
	}
}

// startServer starts the server when its turn comes, registers its tools and lets
// it be called.
func (s *server) startServer(ctx context.Context) (*life, error) {
	release, err := s.set.takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	timeout := s.cfg.startTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, &TimeoutError{Op: "start", After: timeout})
	defer cancel()
	began := time.Now()
	l, offer, err := s.startLife(ctx)
	if s.cfg.Command != "" && !s.modern && refusedHandshake(err) {
		s.modern = true
		l, offer, err = s.startLife(ctx)
	}
	if err != nil && s.refusedStreamable && !s.cfg.SSE && s.restarts == 0 {
		s.oldSSE, s.refusedStreamable = true, false
		first := err
		if l, offer, err = s.startLife(ctx); err != nil {
			s.oldSSE, err = false, first
		}
	}
	if err != nil {
		return nil, err
	}
	changes := s.registerTools(offer)
	handshake := l.session.InitializeResult()
	event := ServerStarted{
		Server: s.cfg.Name, Transport: s.usedTransport(), Runs: s.cfg.Place(), Protocol: oneLine(handshake.ProtocolVersion, maxShownName),
		Tools: s.offeredTools(), Skipped: s.redactSkipped(changes.Skipped), Restarts: s.restarts, WallMS: time.Since(began).Milliseconds(),
	}
	event.ToolCount = len(event.Tools)
	if info := handshake.ServerInfo; info != nil {
		event.Title, event.Version = oneLine(info.Name, maxShownName), oneLine(info.Version, maxShownName)
	}
	if caps := handshake.Capabilities; caps != nil {
		event.Resources, event.Prompts = caps.Resources != nil, caps.Prompts != nil
	}
	if event.Resources || event.Prompts {
		s.set.registerFeatures()
	}
	s.reportEvent(event)
	if s.restarts > 0 && changes.hasChanges() {
		s.reportEvent(changes)
	}
	s.restarts++
	s.setLife(l, nil)
	return l, nil
}

func (s *server) endLife(l *life, err error, final bool) {
	s.setLife(nil, nil)
	calls := l.callsUnderWay()
	if stopErr := l.stopLife(err); stopErr != nil {
		s.serverLog().Warn("stop MCP server", zap.Error(stopErr))
	}
	stderr, total := l.link.stderrTail()
	event := ServerStopped{
		Server: s.cfg.Name, Transport: s.usedTransport(), Calls: calls,
		Stderr: s.redactText(lastLines(stderr, shownStderr)), StderrBytes: total, GivenUp: final, WallMS: time.Since(l.began).Milliseconds(),
	}
	if errors.Is(err, ErrClosed) {
		event.GivenUp = false
		s.giveUp(ErrClosed)
	} else {
		event.Err, event.Cause = err, err.Error()
		if final {
			s.giveUp(err)
		}
	}
	s.reportEvent(event)
}

func (s *server) failStart(err error, took time.Duration, final bool) {
	closed := errors.Is(err, ErrClosed)
	if final || closed {
		s.giveUp(err)
	}
	if !closed {
		s.reportEvent(ServerFailed{
			Server: s.cfg.Name, Transport: s.usedTransport(), Err: err, Cause: err.Error(),
			Stderr: s.redactText(lastLines(s.lastStderr, shownStderr)), GivenUp: final, WallMS: took.Milliseconds(),
		})
	}
	s.lastStderr = ""
}

func (s *server) giveUp(err error) {
	s.setLife(nil, &ServerError{Server: s.cfg.Name, GivenUp: !errors.Is(err, ErrClosed), Err: err})
}

func (s *server) setLife(l *life, gaveUp error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life, s.gaveUp = l, gaveUp
	close(s.turned)
	s.turned = make(chan struct{})
}

// waitReady returns the life that can be called. It waits for a start under way or
// to come. The error is a [*ServerError], or why ctx ended.
func (s *server) waitReady(ctx context.Context) (*life, error) {
	for {
		s.mu.Lock()
		l, gaveUp, turned := s.life, s.gaveUp, s.turned
		s.mu.Unlock()
		switch {
		case gaveUp != nil:
			return nil, gaveUp
		case l != nil:
			return l, nil
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.set.ctx.Done():
			return nil, &ServerError{Server: s.cfg.Name, Err: ErrClosed}
		}
	}
}

// registerTools makes the registered tools match the offered ones and returns the
// changes. A tool that can't be registered is skipped.
func (s *server) registerTools(offer toolList) ToolsChanged {
	s.mu.Lock()
	before := maps.Clone(s.offered)
	s.mu.Unlock()
	changes := ToolsChanged{Server: s.cfg.Name}
	after := map[tools.Name]offeredTool{}
	wanted := map[tools.Name]bool{}
	for _, t := range offer.tools {
		wanted[t.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !wanted[name] {
			s.set.opts.Unregister(name)
			changes.Removed = append(changes.Removed, before[name].Tool)
		}
	}
	for _, t := range offer.tools {
		old, had := before[t.Name]
		if had && old.Hash == t.Hash {
			after[t.Name] = old
			continue
		}
		if had {
			s.set.opts.Unregister(t.Name)
		}
		switch err := s.registerTool(t); {
		case err != nil:
			offer.skipTool(t.raw, "%s", registrationProblem(err))
			if had {
				changes.Removed = append(changes.Removed, old.Tool)
			}
			continue
		case had:
			changes.Changed = append(changes.Changed, t.Tool)
		default:
			changes.Added = append(changes.Added, t.Tool)
		}
		after[t.Name] = t
	}
	changes.Skipped = offer.skipped
	s.mu.Lock()
	s.offered = after
	s.mu.Unlock()
	return changes
}

func (c ToolsChanged) hasChanges() bool { return len(c.Added)+len(c.Changed)+len(c.Removed) > 0 }

func (s *server) applyChanges(offer toolList) {
	changes := s.registerTools(offer)
	changes.Skipped = s.redactSkipped(changes.Skipped)
	if changes.hasChanges() {
		s.reportEvent(changes)
	}
}

func (s *server) registerTool(t offeredTool) error {
	return s.set.opts.Register(func() tools.Tool { return &tool{server: s, offered: t} })
}

func registrationProblem(err error) string {
	var registration *tools.RegistrationError
	if !errors.As(err, &registration) || len(registration.Problems) == 0 {
		return err.Error()
	}
	if n := len(registration.Problems); n > 1 {
		return fmt.Sprintf("%s (and %d more)", registration.Problems[0], n-1)
	}
	return registration.Problems[0]
}

func (s *server) offeredTools() []Tool {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Tool, 0, len(s.offered))
	for _, name := range slices.Sorted(maps.Keys(s.offered)) {
		list = append(list, s.offered[name].Tool)
	}
	return list
}

// offersNow reports whether the server still offers exactly this definition.
func (s *server) offersNow(t Tool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offered[t.Name].Hash == t.Hash
}

// usedTransport returns the transport in use. Only runLives uses it.
func (s *server) usedTransport() string {
	if s.oldSSE {
		return "sse"
	}
	return s.cfg.Transport()
}

func (s *server) reportEvent(e Event) { s.set.reportEvent(e) }

func (s *server) serverLog() *zap.Logger {
	return s.set.opts.Log.With(zap.String("server", s.cfg.Name))
}

func (s *server) redactText(text string) string {
	return s.set.opts.Redact(s.oauth.Load().Redact(text))
}

func (s *server) redactSkipped(list []Skipped) []Skipped {
	for i := range list {
		list[i].Name, list[i].Why = s.redactText(list[i].Name), s.redactText(list[i].Why)
	}
	return list
}
