package main

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/pool"
	"github.com/caisson-run/caisson/tools/policy"
)

// sweepTime bounds the questions to all backends.
const sweepTime = 30 * time.Second

// newHost makes the host from the settings. Nothing is started, and no engine is
// contacted.
func (s *setup) newHost() (err error) {
	c := &s.conf
	s.host, err = caisson.NewHost(caisson.HostOptions{
		StateDir: s.environ.stateDir(), CacheDir: s.environ.cacheDir(), Environ: slices.Concat([]string{}, s.environ), Backends: c.Requirements.Backends,
		Guest: valueOf(c.Programs.Guest), Runsc: valueOf(c.Programs.Runsc), Runc: valueOf(c.Programs.Runc), Buildctl: valueOf(c.Programs.Buildctl), Buildah: valueOf(c.Programs.Buildah),
		Programs: s.programs, NewBackend: s.deps.backend, DockerHost: valueOf(c.Docker.Host), DockerRuntime: valueOf(c.Docker.Runtime),
		Toolchains: c.HostImage.Toolchains, Mask: c.HostImage.Mask, PlainHTTP: c.Images.PlainHTTP,
	})
	return err
}

// pooled puts a pool in front of a backend where the configuration asks for one.
func (s *setup) pooled(b sandbox.Backend) (sandbox.Backend, error) {
	if s.conf.File.Sandbox.Pool == nil {
		return b, nil
	}
	p, err := pool.New(b, pool.Options{Size: int(*s.conf.File.Sandbox.Pool), StateDir: s.environ.stateDir(), Logger: s.logger})
	if err != nil {
		return nil, err
	}
	s.pools = append(s.pools, p)
	return p, nil
}

// readyBackend is a backend that was chosen, and what was removed before.
type readyBackend struct {
	backend sandbox.Creator
	choice  record.BackendChoice
	removed []sandbox.Orphan
}

// makeReady chooses the backend and removes what dead owners left.
func (s *setup) makeReady(ctx context.Context, u reporter) (*readyBackend, error) {
	backend, choice, err := s.host.Choose(ctx, *s.conf.Backend, u.recordWarning)
	if err == nil {
		backend, err = s.pooled(backend)
	}
	if err != nil {
		return nil, err
	}
	return &readyBackend{backend, choice, s.host.Sweep(ctx)}, nil
}

// setLogger makes a session's or the server's log that of what is made from now on.
func (s *setup) setLogger(l *zap.Logger) {
	s.logger = l
	s.host.SetLogger(l)
}

// openImages opens the image store.
func (s *setup) openImages(ctx context.Context) (*store.Store, error) {
	if s.environ.cacheDir() == "" {
		return nil, &runner.Error{Status: runner.ExitConfig, Problem: record.Problem{
			Cause: "there is no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path",
			Hint:  "Set HOME, or XDG_CACHE_HOME.",
		}}
	}
	opened, err := s.host.Images(ctx)
	if errors.As(err, new(*fs.PathError)) {
		return nil, &runner.Error{Status: runner.ExitConfig, Err: err, Problem: record.Problem{
			Cause: "the image store can't be opened: " + err.Error(), Hint: "Set XDG_CACHE_HOME to a directory that you can write.",
		}}
	}
	return opened, err
}

// closeBackends ends what was made.
func (s *setup) closeBackends() {
	for _, p := range s.pools {
		if err := p.Close(); err != nil {
			s.logger.Warn("sandboxes that were started ahead are left", zap.Error(err))
		}
	}
	_ = s.host.Close() // connections to engines
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// lateBackend chooses a backend when the first sandbox is needed. It is safe for
// concurrent use.
type lateBackend struct {
	choose func(ctx context.Context) (sandbox.Creator, error)

	// turn holds one value during a choice. Sessions of a server share a
	// backend: one that is cancelled does not wait for another's engine.
	turn   chan struct{}
	chosen sandbox.Creator
}

func newLateBackend(choose func(ctx context.Context) (sandbox.Creator, error)) *lateBackend {
	return &lateBackend{choose: choose, turn: make(chan struct{}, 1)}
}

// Create chooses the backend, the first time, and makes the sandbox with it.
func (l *lateBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := l.chooseOnce(ctx)
	if err != nil {
		return nil, describeError(err)
	}
	return b.Create(ctx, spec)
}

func (l *lateBackend) chooseOnce(ctx context.Context) (_ sandbox.Creator, err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	if l.chosen == nil {
		l.chosen, err = l.choose(ctx)
	}
	return l.chosen, err
}

// mayNeedSandbox reports whether a call of a session may need a sandbox before
// anything else asks for one.
func (s *setup) mayNeedSandbox(policy policy.Policy) (bool, error) {
	defs, err := toolsOf(&s.conf)
	return !s.reads && policy.AllowsSandboxed(defs, s.workspace.Path), err
}

// findBackend chooses the backend of one session, and removes what dead owners
// left. Where no sandbox may be needed, it is chosen by the first call that needs
// one. A choice that fails is a failure of such calls.
func (s *setup) findBackend(ctx context.Context, u reporter, needed bool) (*readyBackend, error) {
	if !needed {
		return s.chooseLate("nothing that may be called needs one", func(ctx context.Context) (sandbox.Creator, error) {
			b, _, err := s.host.Choose(ctx, *s.conf.Backend, u.recordWarning)
			return b, err
		}), nil
	}
	ready, err := s.makeReady(ctx, u)
	if err == nil || ctx.Err() != nil {
		return ready, err
	}
	return s.chooseLate(noneCanStart+err.Error(), func(context.Context) (sandbox.Creator, error) { return nil, err }), nil
}

// noneCanStart begins the reason of a choice that failed.
const noneCanStart = "none can start: "

// chooseLate returns a backend that is chosen by the first call that needs it.
func (s *setup) chooseLate(why string, choose func(ctx context.Context) (sandbox.Creator, error)) *readyBackend {
	return &readyBackend{backend: newLateBackend(choose), choice: record.BackendChoice{Asked: *s.conf.Backend, Why: why}}
}
