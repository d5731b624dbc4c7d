package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/sandbox/pool"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/policy"
)

const (
	// checkTime bounds the question whether the backend that was asked for could
	// start: an engine of a machine that is busy, with 64 sessions that start at
	// once, has taken more than 5 s.
	checkTime = 30 * time.Second
	// autoTime bounds the same where another backend can serve, and for the
	// doctor: an engine that hangs must not hold up who can do without it.
	autoTime = 5 * time.Second
	// sweepTime bounds the removal of what dead owners left.
	sweepTime = 30 * time.Second
)

// makeBackend makes a real backend.
func makeBackend(name string, s backendSettings) (sandbox.Backend, error) {
	env := environ(s.environ)
	hostImage := host.Options{Toolchains: s.toolchains, Mask: s.mask, Path: env.get("PATH")}
	var protect []string
	if home := env.home(); home != "" {
		protect = []string{home}
	}
	if name == "docker" {
		return docker.New(docker.Options{
			Host: s.host, Runtime: s.runtime, GuestPath: s.guest, StateDir: s.stateDir, Protect: protect,
			HostImage: hostImage, Images: s.images, Getenv: env.get, Logger: s.logger,
		})
	}
	return oci.New(oci.Options{
		Kind: oci.Kind(name), RuntimePath: s.runtime, GuestPath: s.guest, StateDir: s.stateDir, Protect: protect,
		Host: hostImage, Images: s.images, Logger: s.logger,
	})
}

// chooser makes and chooses backends for one configuration.
type chooser struct {
	deps     deps
	conf     config.Config
	programs *programs.Finder
	environ  environ
	logger   *zap.Logger
	images   *imageStore
	mu       sync.Mutex // guards made: sessions of a server may need another backend
	made     map[string]sandbox.Backend
	pools    []*pool.Pool
}

// make gives a backend by its name, made once.
func (c *chooser) make(name string) (sandbox.Backend, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.made[name]; ok {
		return b, nil
	}
	b, err := c.construct(name)
	if err != nil {
		return nil, err
	}
	if c.made == nil {
		c.made = map[string]sandbox.Backend{}
	}
	c.made[name] = b
	return b, nil
}

func (c *chooser) construct(name string) (sandbox.Backend, error) {
	guest, err := c.programs.Find(c.conf.Programs.Guest, "caisson-guest")
	if err != nil {
		return nil, err
	}
	s := backendSettings{
		stateDir: c.environ.stateDir(), guest: guest, environ: c.environ, logger: c.logger, images: c.images,
		toolchains: c.conf.HostImage.Toolchains, mask: c.conf.HostImage.Mask,
	}
	switch name {
	case "docker":
		s.host, s.runtime = value(c.conf.Docker.Host), value(c.conf.Docker.Runtime)
	case "gvisor":
		s.runtime, err = c.programs.Find(c.conf.Programs.Runsc, "runsc")
	case "runc":
		s.runtime, err = c.programs.Find(c.conf.Programs.Runc, "runc", "crun")
	}
	if err != nil {
		return nil, err
	}
	return c.deps.backend(name, s)
}

// pooled puts a pool in front of a backend where the configuration asks for one.
func (c *chooser) pooled(b sandbox.Backend) (sandbox.Backend, error) {
	if c.conf.File.Sandbox.Pool == nil {
		return b, nil
	}
	p, err := pool.New(b, pool.Options{Size: int(*c.conf.File.Sandbox.Pool), StateDir: c.environ.stateDir(), Logger: c.logger})
	if err != nil {
		return nil, err
	}
	c.pools = append(c.pools, p)
	return p, nil
}

// readyBackend is a backend that was chosen, and what was removed before.
type readyBackend struct {
	backend sandbox.Creator
	choice  record.BackendChoice
	removed []sandbox.Orphan
}

// makeReady chooses the backend and removes what dead owners left.
func (s *setup) makeReady(ctx context.Context, u teller) (*readyBackend, error) {
	backend, choice, err := s.backends.choose(ctx, u.note)
	if err == nil {
		backend, err = s.backends.pooled(backend)
	}
	if err != nil {
		return nil, err
	}
	return &readyBackend{backend, choice, s.backends.sweep(ctx)}, nil
}

// close ends what was made.
func (c *chooser) close() {
	for _, p := range c.pools {
		if err := p.Close(); err != nil {
			c.logger.Warn("sandboxes that were started ahead are left", zap.Error(err))
		}
	}
	for _, b := range c.made {
		if closer, ok := b.(io.Closer); ok {
			_ = closer.Close()
		}
	}
	c.images.close()
}

// choose gives the backend that was asked for and says why it is that one. A
// backend that was named is that one or an error.
func (c *chooser) choose(ctx context.Context, note func(string)) (sandbox.Backend, record.BackendChoice, error) {
	asked := *c.conf.Backend
	if asked != "auto" {
		b, err := c.make(asked)
		if err == nil {
			_, err = check(ctx, b, checkTime)
		}
		return b, record.BackendChoice{Asked: asked, Chosen: asked, Why: "asked for"}, err
	}
	why := "the administrator's file does not allow docker"
	if c.conf.Allowed("docker") {
		b, err := c.make("docker")
		if err == nil {
			var info sandbox.Info
			info, err = check(ctx, b, autoTime)
			if err == nil && !info.Local {
				err = errors.New("the engine is on another machine")
			}
		}
		if err == nil {
			return c.orGVisor(b, note), record.BackendChoice{Asked: asked, Chosen: "docker", Why: "a local Docker engine answers"}, nil
		}
		why = "no local Docker engine can be used: " + err.Error()
	}
	if !c.conf.Allowed("gvisor") {
		return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %w: %s, and the administrator's file does not allow gvisor", sandbox.ErrUnavailable, why)
	}
	b, err := c.make("gvisor")
	if err == nil {
		_, err = check(ctx, b, checkTime)
	}
	if err != nil {
		return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %s; and gvisor: %w", why, err)
	}
	return b, record.BackendChoice{Asked: asked, Chosen: "gvisor", Why: why}, nil
}

func check(ctx context.Context, b sandbox.Backend, limit time.Duration) (sandbox.Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %s", limit))
	defer cancel()
	return b.Check(ctx)
}

// orGVisor wraps the docker backend of auto: an engine that turns out not to
// share this file system, which only a container can tell, is left for gvisor.
func (c *chooser) orGVisor(b sandbox.Backend, note func(string)) sandbox.Backend {
	if !c.conf.Allowed("gvisor") {
		return b
	}
	return &autoBackend{Backend: b, other: func() (sandbox.Backend, error) { return c.make("gvisor") }, note: note}
}

// autoBackend is what auto chose, with what it takes where the choice proves
// impossible.
type autoBackend struct {
	sandbox.Backend
	other func() (sandbox.Backend, error)
	note  func(string)
}

// Create makes the sandbox with docker, or with gvisor where the engine does
// not share this file system. Any other failure stays one.
func (a *autoBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	box, err := a.Backend.Create(ctx, spec)
	if !errors.Is(err, docker.ErrNotShared) {
		return box, err
	}
	other, otherErr := a.other()
	if otherErr != nil {
		return nil, errors.Join(err, otherErr)
	}
	a.note("the sandbox is gvisor instead of docker: " + err.Error())
	return other.Create(ctx, spec)
}

// sweep removes what dead owners left, with every backend that is known.
func (c *chooser) sweep(ctx context.Context) []sandbox.Orphan {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTime, errors.New("no answer in time"))
	defer cancel()
	var all []sandbox.Orphan
	for _, name := range []string{"docker", "gvisor", "runc"} {
		c.mu.Lock()
		b, ok := c.made[name]
		c.mu.Unlock()
		if !ok && (name != "docker" || docker.Pending(c.environ.stateDir())) {
			// Another backend was chosen; what this one's dead sessions left is
			// removed all the same, where its runtime or engine is there.
			if made, err := c.make(name); err == nil {
				b, ok = made, true
			}
		}
		if !ok {
			continue
		}
		left, err := b.Sweep(ctx)
		all = append(all, left...)
		if err != nil && !errors.Is(err, sandbox.ErrUnavailable) {
			c.logger.Warn("remove what dead owners left", zap.String("backend", name), zap.Error(err))
		}
	}
	if _, err := sessiondir.Sweep(c.environ.stateDir()); err != nil {
		c.logger.Warn("remove what dead sessions left", zap.Error(err))
	}
	return all
}

// imageWarnings are what a user should know of the image before it runs.
func (c *chooser) imageWarnings(ctx context.Context, ref images.Reference) []string {
	if ref.Scheme != images.SchemeHost {
		return nil
	}
	fs, err := host.RootFS(ctx, host.Options{
		Toolchains: c.conf.HostImage.Toolchains, Mask: c.conf.HostImage.Mask, Path: withoutDir(c.environ.get("PATH"), c.programs.OwnDir()),
	})
	if err != nil {
		return nil // the backend will say so
	}
	return fs.Warnings
}

// withoutDir returns a PATH without a directory: what is beside Caisson is for
// Caisson, and no command of the sandbox misses it.
func withoutDir(path, dir string) string {
	return strings.Join(slices.DeleteFunc(filepath.SplitList(path), func(d string) bool {
		real, err := filepath.EvalSymlinks(d)
		return dir != "" && err == nil && real == dir
	}), string(filepath.ListSeparator))
}

func value(s *string) string {
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
	b, err := l.backend(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return b.Create(ctx, spec)
}

func (l *lateBackend) backend(ctx context.Context) (_ sandbox.Creator, err error) {
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
func (s *setup) findBackend(ctx context.Context, u teller, needed bool) (*readyBackend, error) {
	if !needed {
		return s.late("nothing that may be called needs one", func(ctx context.Context) (sandbox.Creator, error) {
			b, _, err := s.backends.choose(ctx, u.note)
			return b, err
		}), nil
	}
	ready, err := s.makeReady(ctx, u)
	if err == nil || ctx.Err() != nil {
		return ready, err
	}
	return s.late(noneCanStart+err.Error(), func(context.Context) (sandbox.Creator, error) { return nil, err }), nil
}

// noneCanStart begins the reason of a choice that failed.
const noneCanStart = "none can start: "

// late returns a backend that is chosen by the first call that needs it.
func (s *setup) late(why string, choose func(ctx context.Context) (sandbox.Creator, error)) *readyBackend {
	return &readyBackend{backend: newLateBackend(choose), choice: record.BackendChoice{Asked: *s.conf.Backend, Why: why}}
}
