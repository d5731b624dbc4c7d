package caisson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/sandbox/programs"
)

const (
	// checkTime bounds the check of a requested backend. With 64 sessions starting at
	// once, engines have taken more than 5 s.
	checkTime = 30 * time.Second
	// autoTime bounds the check if another backend can take over.
	autoTime = 5 * time.Second
	// sweepTime bounds the removal of dead processes' leftovers.
	sweepTime = 30 * time.Second
)

// backendNames are all backends, in the order in which they are asked.
var backendNames = []string{docker.Name, string(oci.GVisor), string(oci.Runc)}

// HostOptions configure what a process's sessions share. The zero value takes
// everything from the environment.
type HostOptions struct {
	// StateDir keeps session records, and what is needed to clean up after a killed
	// process. "" means caisson in $XDG_STATE_HOME or ~/.local/state.
	StateDir string
	// CacheDir keeps images; "" means caisson in $XDG_CACHE_HOME or ~/.cache.
	CacheDir string
	// Environ is the environment as NAME=value; nil means os.Environ().
	Environ []string
	// Backends are the allowed backends; nil means docker, gvisor and runc.
	Backends []string
	// Isolation forces one; "" means the strongest that works here. Only gvisor has
	// sandbox.IsolationProcess, so auto then chooses it.
	Isolation sandbox.Isolation
	// Guest, Runsc, Runc, Buildctl and Buildah are paths of programs. Set those that
	// are neither beside this program nor on PATH.
	Guest, Runsc, Runc, Buildctl, Buildah string
	// Programs finds programs; nil means a finder for this process and Environ.
	Programs *programs.Finder
	// NewBackend, if not nil, is called for each backend. If it returns nil and no
	// error, the built-in backend is used.
	NewBackend func(b BackendSettings) (sandbox.Backend, error)
	// DockerHost is the engine's address; "" means DOCKER_HOST or the current
	// context. DockerRuntime names the engine's runtime; "" means the engine's
	// default.
	DockerHost, DockerRuntime string
	// Toolchains are directories that the host image shows besides /usr. Mask are
	// paths that it hides.
	Toolchains, Mask []string
	// PlainHTTP are registries to contact without TLS.
	PlainHTTP []string
	// BuildNetwork bounds what Dockerfile commands may reach during image builds; nil
	// allows nothing. See buildnetwork.Options. BuildRecords is the directory of the
	// builds' network records; "" means builds in StateDir.
	BuildNetwork *runner.EgressOptions
	BuildRecords string
	// Logger is the operator's log; nil logs to the session's directory.
	Logger *zap.Logger
}

// BackendSettings are one backend's settings.
type BackendSettings struct {
	// Name is docker, gvisor or runc.
	Name     string
	StateDir string
	// Guest is the path of caisson-guest. Runtime is the path of runsc, runc or crun,
	// or for docker the name of the engine's runtime.
	Guest, Runtime string
	// DockerHost is the engine's address; "" leaves it to Environ and the contexts.
	DockerHost string
	// Isolation is what the sandboxes must have; "" means the strongest that works.
	Isolation sandbox.Isolation
	Environ   []string
}

// Host holds what sessions share: state directory, backends and image store. It is
// safe for concurrent use.
type Host struct {
	o        HostOptions
	programs *programs.Finder
	images   imageStore

	mu       sync.Mutex // guards the fields below
	logger   *zap.Logger
	backends map[string]sandbox.Backend
}

// NewHost returns a Host. It starts nothing and contacts no engine.
func NewHost(o HostOptions) (*Host, error) {
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	switch o.Isolation {
	case "", sandbox.IsolationNamespaces, sandbox.IsolationProcess:
	default:
		return nil, fmt.Errorf("%w: no isolation %q: isolations are namespaces and process", sandbox.ErrInvalid, o.Isolation)
	}
	if o.StateDir == "" {
		o.StateDir = xdgDir(o.Environ, "XDG_STATE_HOME", ".local/state")
	}
	if o.StateDir == "" {
		return nil, errors.New("no state directory: neither HOME nor XDG_STATE_HOME is an absolute path, and HostOptions.StateDir is empty")
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	if o.CacheDir == "" {
		o.CacheDir = xdgDir(o.Environ, "XDG_CACHE_HOME", ".cache")
	}
	h := &Host{o: o, logger: cmp.Or(o.Logger, zap.NewNop()), backends: map[string]sandbox.Backend{}}
	if o.Programs != nil {
		finder := *o.Programs // each host sets its own Writable
		h.programs = &finder
	} else {
		h.programs = &programs.Finder{Executable: os.Executable, Path: h.getenv("PATH")}
		if o.CacheDir != "" {
			h.programs.Cache = filepath.Join(o.CacheDir, "programs")
		}
	}
	h.images.host = h
	return h, nil
}

// xdgDir returns Caisson's directory below an XDG base directory, or "". A relative
// value counts as unset (XDG Base Directory Specification 0.8).
func xdgDir(environ []string, name, def string) string {
	base := getenv(environ, name)
	if !filepath.IsAbs(base) {
		home := getenv(environ, "HOME")
		if !filepath.IsAbs(home) {
			return ""
		}
		base = filepath.Join(home, def)
	}
	return filepath.Join(base, "caisson")
}

// getenv returns a variable's value, the last one if it is set twice.
func getenv(environ []string, name string) string {
	for _, v := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

func (h *Host) getenv(name string) string { return getenv(h.o.Environ, name) }

// SetLogger replaces the logger unless the options name one: a session's log needs
// the session's directory first. Call it before the first backend is made.
func (h *Host) SetLogger(l *zap.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.o.Logger == nil {
		h.logger = l
	}
}

func (h *Host) currentLogger() *zap.Logger {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.logger
}

// Backend returns a backend by name, which the host owns. So that callers can clean up,
// it also returns backends that HostOptions.Backends doesn't allow.
func (h *Host) Backend(name string) (sandbox.Backend, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.backends[name]
	if !ok {
		var err error
		if b, err = h.newBackend(name); err != nil {
			return nil, err
		}
		h.backends[name] = b
	}
	if len(programs.Embedded()) > 0 {
		b = unpackedBackend{b, h}
	}
	return b, nil
}

// unpackedBackend is a backend of a release build. It unpacks programs again if they
// have been removed from the cache.
type unpackedBackend struct {
	sandbox.Backend
	host *Host
}

func (b unpackedBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if _, err := b.host.findPrograms(b.Name()); errors.As(err, new(*programs.UnpackError)) {
		return nil, fmt.Errorf("create %s sandbox: %w: %w", b.Name(), sandbox.ErrUnavailable, err)
	}
	return b.Backend.Create(ctx, spec) // it reports anything else that is missing
}

func (o *HostOptions) allowsBackend(name string) bool {
	return o.Backends == nil || slices.Contains(o.Backends, name)
}

func (h *Host) findPrograms(name string) (BackendSettings, error) {
	guest, err := h.programs.Find(optional(h.o.Guest), "caisson-guest")
	if err != nil {
		return BackendSettings{}, err
	}
	settings := BackendSettings{Name: name, StateDir: h.o.StateDir, Guest: guest, Environ: h.o.Environ}
	if h.o.checkIsolation(name) == nil { // otherwise the backend is only to clean up
		settings.Isolation = h.o.Isolation
	}
	switch name {
	case docker.Name:
		settings.DockerHost, settings.Runtime = h.o.DockerHost, h.o.DockerRuntime
	case string(oci.GVisor):
		settings.Runtime, err = h.programs.Find(optional(h.o.Runsc), "runsc")
	case string(oci.Runc):
		settings.Runtime, err = h.programs.Find(optional(h.o.Runc), "runc", "crun")
	}
	return settings, err
}

func (h *Host) newBackend(name string) (sandbox.Backend, error) {
	if !slices.Contains(backendNames, name) {
		return nil, fmt.Errorf("%w: no backend %q: backends are docker, gvisor and runc", sandbox.ErrInvalid, name)
	}
	settings, err := h.findPrograms(name)
	if err != nil {
		return nil, err
	}
	if h.o.NewBackend != nil {
		if b, err := h.o.NewBackend(settings); b != nil || err != nil {
			return b, err
		}
	}
	var protect []string
	if home := h.getenv("HOME"); filepath.IsAbs(home) {
		protect = []string{home}
	}
	if name == docker.Name {
		return docker.New(docker.Options{
			Host: settings.DockerHost, Runtime: settings.Runtime, GuestPath: settings.Guest, StateDir: h.o.StateDir, Protect: protect,
			HostImage: h.hostImage(), Images: &h.images, Getenv: h.getenv, Logger: h.logger,
		})
	}
	return oci.New(oci.Options{
		Kind: oci.Kind(name), Isolation: settings.Isolation, RuntimePath: settings.Runtime, GuestPath: settings.Guest, StateDir: h.o.StateDir, Protect: protect,
		Host: h.hostImage(), Images: &h.images, Logger: h.logger,
	})
}

// checkIsolation returns an error if a backend can't have the isolation.
func (o *HostOptions) checkIsolation(backend string) error {
	if o.Isolation != sandbox.IsolationProcess || backend == string(oci.GVisor) {
		return nil
	}
	return &sandbox.IncapableError{Request: "isolation process", Reason: backend + " needs namespaces", Hint: "use the backend gvisor, or no isolation"}
}

func optional(path string) *string {
	if path == "" {
		return nil
	}
	return &path
}

// Choose returns a session's backend and the reason for the choice. "" and auto mean
// docker if a local engine is running, otherwise gvisor, with namespaces if they can
// be made. If a later start shows that docker can't be used, another backend takes its
// place, and notify, if not nil, is told.
func (h *Host) Choose(ctx context.Context, name string, notify func(text string)) (sandbox.Backend, record.BackendChoice, error) {
	if name != "" && name != "auto" {
		if !h.o.allowsBackend(name) {
			return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %w: %s is not allowed here", sandbox.ErrUnavailable, name)
		}
		if err := h.o.checkIsolation(name); err != nil {
			return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %w", err)
		}
		b, info, err := h.checkBackend(ctx, name, checkTime)
		return b, record.BackendChoice{Asked: name, Chosen: name, Why: joinReasons("asked for", h.explainIsolation(info))}, err
	}
	engine, why := h.findEngine(ctx)
	if engine != nil {
		choice := record.BackendChoice{Asked: "auto", Chosen: docker.Name, Why: "a local Docker engine answers"}
		return &fallback{Backend: engine, host: h, notify: notify}, choice, nil
	}
	if !h.o.allowsBackend(string(oci.GVisor)) {
		return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %w: %s, and gvisor is not allowed here", sandbox.ErrUnavailable, why)
	}
	b, info, err := h.checkBackend(ctx, string(oci.GVisor), checkTime)
	if err != nil {
		return nil, record.BackendChoice{}, fmt.Errorf("choose backend: %s; and gvisor: %w", why, err)
	}
	return b, record.BackendChoice{Asked: "auto", Chosen: string(oci.GVisor), Why: joinReasons(h.explainIsolation(info), why)}, nil
}

// explainIsolation says why a sandbox has no namespaces, or returns "" if it has.
func (h *Host) explainIsolation(info sandbox.Info) string {
	switch {
	case info.Isolation != sandbox.IsolationProcess:
		return ""
	case h.o.Isolation == sandbox.IsolationProcess:
		return "without namespaces" // as asked for
	}
	return "without namespaces, because " + cmp.Or(info.NoNamespaces, "this process may not make any")
}

func joinReasons(reasons ...string) string {
	return strings.Join(slices.DeleteFunc(reasons, func(text string) bool { return text == "" }), "; ")
}

func (h *Host) findEngine(ctx context.Context) (engine sandbox.Backend, why string) {
	if !h.o.allowsBackend(docker.Name) {
		return nil, "docker is not allowed here"
	}
	if h.o.checkIsolation(docker.Name) != nil {
		return nil, "docker has no isolation process"
	}
	b, info, err := h.checkBackend(ctx, docker.Name, autoTime)
	if err == nil && !info.Local {
		err = errors.New("the engine is on another machine")
	}
	if err != nil {
		return nil, "no local Docker engine can be used: " + err.Error()
	}
	return b, ""
}

// checkBackend returns a backend, and the result of its check.
func (h *Host) checkBackend(ctx context.Context, name string, limit time.Duration) (sandbox.Backend, sandbox.Info, error) {
	b, err := h.Backend(name)
	if err != nil {
		return nil, sandbox.Info{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %s", limit))
	defer cancel()
	info, err := b.Check(ctx)
	if errors.Is(err, sandbox.ErrNoNamespaces) && h.o.Isolation != "" {
		err = fmt.Errorf("isolation %s is asked for: %w", h.o.Isolation, err)
	}
	return b, info, err
}

// fallback is auto's docker backend. If the first container shows that the engine
// doesn't share this file system, or if docker can't provide the requested sandbox,
// it uses another backend.
type fallback struct {
	sandbox.Backend
	host   *Host
	notify func(text string)
}

func (f *fallback) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := f.Backend.Create(ctx, spec)
	if !errors.Is(err, docker.ErrNotShared) && !errors.As(err, new(*sandbox.IncapableError)) {
		return b, err
	}
	for _, name := range []string{string(oci.GVisor), string(oci.Runc)} {
		if !f.host.o.allowsBackend(name) {
			continue
		}
		other, info, otherErr := f.host.checkBackend(ctx, name, checkTime)
		if otherErr != nil {
			err = errors.Join(err, fmt.Errorf("%s instead: %w", name, otherErr))
			continue
		}
		if f.notify != nil {
			f.notify("the sandbox is " + joinReasons(name+" instead of docker: "+err.Error(), f.host.explainIsolation(info)))
		}
		return other.Create(ctx, spec)
	}
	return nil, err
}

// Sweep removes what dead processes' sessions left on all backends, and returns what
// it found. If there is much, some directories remain for the next call. Errors don't
// stop it: it logs them and returns them joined.
func (h *Host) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, sweepTime, errors.New("no answer in time"))
	defer cancel()
	var all []sandbox.Orphan
	var errs []error
	for _, name := range backendNames {
		h.mu.Lock()
		_, used := h.backends[name]
		h.mu.Unlock()
		idle := name == docker.Name && !docker.Pending(h.o.StateDir) // no session of this state directory needs the engine
		if idle && !used {
			continue
		}
		b, err := h.Backend(name)
		if err != nil {
			continue // its runtime is not installed
		}
		left, err := b.Sweep(ctx)
		if idle && errors.Is(err, sandbox.ErrUnavailable) {
			continue
		}
		all = append(all, left...)
		errs = append(errs, err)
		if err != nil && !errors.Is(err, sandbox.ErrUnavailable) {
			h.currentLogger().Warn("remove what dead processes left", zap.String("backend", name), zap.Error(err))
		}
	}
	if _, err := sessiondir.SweepPending(h.o.StateDir); err != nil {
		h.currentLogger().Warn("remove what dead sessions left", zap.Error(err))
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Close closes the connections to engines. End all sessions first.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, b := range h.backends {
		if c, ok := b.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(append(errs, h.images.closeEngine())...)
}
