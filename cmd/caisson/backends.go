package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/programs"
)

const sweepTime = 30 * time.Second

// engineTime bounds asking an engine whether it is local.
const engineTime = 10 * time.Second

// backends are this machine's sandbox backends, with a command's settings.
type backends struct {
	*settings
	host   *caisson.Host
	finder *programs.Finder
}

var pathLock sync.Mutex

// openBackends makes the host from the settings. It starts nothing and contacts no
// engine. w is nil if the command has no workspace.
func openBackends(s *settings, w *runner.Workspace) (*backends, error) {
	if err := s.makeStateDir(); err != nil {
		return nil, err
	}
	finder := &programs.Finder{Executable: s.deps.executable, Cache: joinUnder(s.environ.cacheDir(), "programs"), Path: s.environ.get("PATH")}
	workspace := ""
	if w != nil {
		workspace = w.Path
	}
	finder.Writable = func() []string { return s.writableDirs(workspace) }
	pathLock.Lock() // a server opens sessions concurrently
	defer pathLock.Unlock()
	writable := finder.Writable()
	if w == nil {
		if here, err := workspaceFor(s.environ, ""); err == nil { // fails for the home directory and its parents
			writable = append(writable, here.Path)
			_ = here.Close()
		}
	}
	finder.Path, s.environ = programs.CleanPath(finder.Path, writable), programs.CleanEnviron(s.environ, writable)
	// Some dependencies start programs too, such as registry credential helpers.
	if err := os.Setenv("PATH", programs.CleanPath(os.Getenv("PATH"), writable)); err != nil {
		return nil, err
	}
	c := &s.conf
	toolchains, err := c.Toolchains()
	if err != nil {
		return nil, err
	}
	buildNetwork, err := c.BuildNetwork()
	if err != nil {
		return nil, err
	}
	host, err := caisson.NewHost(caisson.HostOptions{
		StateDir: s.environ.stateDir(), CacheDir: s.environ.cacheDir(), Environ: slices.Concat([]string{}, s.environ), Backends: c.Requirements.Backends,
		Guest: valueOf(c.Programs.Guest), Runsc: valueOf(c.Programs.Runsc), Runc: valueOf(c.Programs.Runc), Buildctl: valueOf(c.Programs.Buildctl), Buildah: valueOf(c.Programs.Buildah),
		Programs: finder, NewBackend: s.deps.backend, Isolation: c.SandboxIsolation(), DockerHost: valueOf(c.Docker.Host), DockerRuntime: valueOf(c.Docker.Runtime),
		Toolchains: toolchains, Mask: c.HostImage.Mask, PlainHTTP: c.Images.PlainHTTP,
		BuildNetwork: buildNetwork, BuildRecords: s.buildRecords,
	})
	if err != nil {
		return nil, err
	}
	return &backends{settings: s, host: host, finder: finder}, nil
}

// findProgramIn returns a program in dir that all sandboxes of these backends need:
// caisson-guest or a runtime. It returns "" if dir has none.
func (bs *backends) findProgramIn(dir string) string {
	c := &bs.conf.Programs
	guest, _ := bs.finder.Find(c.Guest, "caisson-guest")
	runsc, _ := bs.finder.Find(c.Runsc, "runsc")
	runc, _ := bs.finder.Find(c.Runc, "runc", "crun")
	for _, program := range []string{guest, runsc, runc} {
		if program != "" && programs.FindWritable([]string{dir}, program) != "" {
			return program
		}
	}
	return ""
}

// openDefaultBackends makes the host from the settings, ignoring flags.
func openDefaultBackends(a *app) (*backends, error) {
	s, err := loadSettings(a, config.File{}, "")
	if err != nil {
		return nil, err
	}
	return openBackends(s, nil)
}

// readyBackend is the chosen backend, with the result of the sweep that followed.
type readyBackend struct {
	backend sandbox.Creator
	choice  record.BackendChoice
	removed []sandbox.Orphan
	left    error // why something was not removed
}

// choose chooses the backend and removes what dead owners left.
func (bs *backends) choose(ctx context.Context, u reporter) (*readyBackend, error) {
	backend, choice, err := bs.host.Choose(ctx, *bs.conf.Backend, u.recordWarning)
	if err != nil {
		return nil, err
	}
	removed, left := bs.host.Sweep(ctx)
	return &readyBackend{backend, choice, removed, left}, nil
}

func (bs *backends) openImages(ctx context.Context) (*store.Store, error) {
	if bs.environ.cacheDir() == "" {
		return nil, newFailure(exitConfig, nil, "there is no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path", "Set HOME, or XDG_CACHE_HOME.")
	}
	opened, err := bs.host.Images(ctx)
	if errors.As(err, new(*fs.PathError)) {
		return nil, newFailure(exitConfig, err, "the image store can't be opened: "+err.Error(), "Set XDG_CACHE_HOME to a directory that you can write.")
	}
	return opened, err
}

func (bs *backends) close() {
	_ = bs.host.Close() // connections to engines
}

// valueOf returns what p points to, or the zero value for nil.
func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// lateBackend chooses a backend when the first sandbox is needed. It is safe for
// concurrent use.
type lateBackend struct {
	choose func(ctx context.Context) (sandbox.Creator, error)

	// turn holds one value during a choice. Sessions of a server share a backend: a
	// cancelled one must not wait for another's engine.
	turn   chan struct{}
	chosen sandbox.Creator
}

func newLateBackend(choose func(ctx context.Context) (sandbox.Creator, error)) *lateBackend {
	return &lateBackend{choose: choose, turn: make(chan struct{}, 1)}
}

// Create makes the sandbox. The first call chooses the backend.
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

// mountsOverlays reports whether the backend can mount overlays of a workspace. Only an
// engine on another machine can't, and auto never chooses one. An engine that doesn't
// answer counts as able: choosing it fails with the reason.
func (bs *backends) mountsOverlays(ctx context.Context) bool {
	if *bs.conf.Backend != docker.Name {
		return true
	}
	b, err := bs.host.Backend(docker.Name)
	if err != nil {
		return true
	}
	ctx, cancel := context.WithTimeoutCause(ctx, engineTime, errors.New("the engine does not answer"))
	defer cancel()
	info, err := b.Check(ctx)
	return err != nil || info.Local
}

// findBackend chooses one session's backend and removes what dead owners left. If a
// sandbox may not be needed, the first call that needs one chooses. If choosing fails,
// such calls fail.
func (bs *backends) findBackend(ctx context.Context, u reporter, needed bool) (*readyBackend, error) {
	if !needed {
		return bs.chooseLate("nothing that may be called needs one", func(ctx context.Context) (sandbox.Creator, error) {
			b, _, err := bs.host.Choose(ctx, *bs.conf.Backend, u.recordWarning)
			return b, err
		}), nil
	}
	ready, err := bs.choose(ctx, u)
	if err == nil || ctx.Err() != nil {
		return ready, err
	}
	return bs.chooseLate(noneCanStart+err.Error(), func(context.Context) (sandbox.Creator, error) { return nil, err }), nil
}

// noneCanStart begins the reason for a failed choice.
const noneCanStart = "none can start: "

// chooseLate returns a backend that the first call that needs it chooses.
func (bs *backends) chooseLate(why string, choose func(ctx context.Context) (sandbox.Creator, error)) *readyBackend {
	return &readyBackend{backend: newLateBackend(choose), choice: record.BackendChoice{Asked: *bs.conf.Backend, Why: why}}
}

// mountPoint returns where the container has the workspace. It may look up the image's
// WORKDIR.
func (bs *backends) mountPoint(ctx context.Context, image images.Reference) (string, error) {
	target, err := bs.host.MountPoint(ctx, image, *bs.conf.Workdir)
	if errors.Is(err, sandbox.ErrInvalid) {
		return "", newFailure(exitInput, err, "the workspace can't be mounted: "+err.Error(), "Change --workdir, or workdir in the configuration, to a path such as /app.")
	}
	return target, err
}

// openMounts opens the user's directories, once.
func (s *sessionBuilder) openMounts(target string) error {
	list, err := s.conf.UserMounts()
	if err != nil || s.mounts != nil {
		return err
	}
	list = append(list, s.moreMounts...)
	if s.mounts, err = runner.OpenMounts(list, s.workspace, target, sandbox.WorkspaceMode(*s.conf.Mode), s.environ.protectedDirs()); err != nil {
		return s.conf.MountError(err)
	}
	return nil
}

// absentWarnings warns about programs that the image lacks. It ignores an image that
// can't be read: the backend reports that.
func (s *sessionBuilder) absentWarnings(ctx context.Context, image images.Reference) []string {
	absent, err := s.host.FindAbsentPrograms(ctx, image, s.workspace.Path)
	if err != nil {
		return nil
	}
	return s.describeAbsent(absent)
}

// describeAbsent makes one warning at most: people who know about it see it in every
// run.
func (s *sessionBuilder) describeAbsent(absent []host.Absent) []string {
	switch {
	case len(absent) == 0:
		return nil
	case len(absent) > 1:
		text := fmt.Sprintf("image %s lacks programs that are on your PATH, in %d directories", *s.conf.Image, len(absent))
		if !s.forClients {
			text += ": caisson doctor lists them"
		}
		return []string{text}
	case s.forClients || len(absent[0].Toolchains) == 0:
		return []string{absent[0].String()}
	}
	return []string{absent[0].String() + ". The configuration shows it with " + s.toolchainLine(absent[0].Toolchains)}
}
