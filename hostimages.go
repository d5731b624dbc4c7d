package caisson

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner/buildnetwork"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
)

// engineTime bounds the check whether an engine answers, before it is asked for
// images: without one, they come from registries.
const engineTime = 2 * time.Second

// imageStore is the user's image store, opened when it is first needed: a run on the
// image host makes no directory and contacts no engine. It implements [images.Source].
type imageStore struct {
	host *Host

	mu     sync.Mutex
	opened *store.Store
	engine *docker.ImageEngine // nil if none answers

	report atomic.Pointer[func(store.Progress)]
}

// ReportPulls makes report get the progress of downloads and builds of images from now
// on; nil ends that.
func (h *Host) ReportPulls(report func(store.Progress)) {
	if report == nil {
		h.images.report.Store(nil)
		return
	}
	h.images.report.Store(&report)
}

// Images returns the host's image store, which belongs to it.
func (h *Host) Images(ctx context.Context) (*store.Store, error) {
	s := &h.images
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened != nil {
		return s.opened, nil
	}
	if h.o.CacheDir == "" {
		return nil, errors.New("no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path, and HostOptions.CacheDir is empty")
	}
	if err := os.MkdirAll(h.o.CacheDir, 0o700); err != nil {
		return nil, err
	}
	buildctl, _ := h.programs.Find(optional(h.o.Buildctl), "buildctl") // "" builds with another
	buildah, _ := h.programs.Find(optional(h.o.Buildah), "buildah")
	o := store.Options{
		Dir: filepath.Join(h.o.CacheDir, "images"), PlainHTTP: h.o.PlainHTTP, Accounts: imageAccounts(os.Geteuid(), os.Getegid()),
		Progress: s.reportProgress, Buildctl: buildctl, Buildah: buildah, BuilderEnv: builderEnviron(h.o.Environ),
	}
	s.engine = h.ImageEngine(ctx)
	if s.engine != nil {
		o.Engine = s.engine
	}
	if h.o.BuildNetwork != nil {
		o.BuildNetwork = h.openBuildNetwork
	}
	var err error
	s.opened, err = store.New(o)
	return s.opened, err
}

// openBuildNetwork opens the network of the commands of a build.
func (h *Host) openBuildNetwork(ctx context.Context, dir string) (*images.BuildNetwork, error) {
	backend, err := h.Backend(docker.Name)
	if err != nil {
		return nil, err
	}
	records := cmp.Or(h.o.BuildRecords, filepath.Join(h.o.StateDir, "builds"))
	return buildnetwork.Open(ctx, buildnetwork.Options{
		Egress: *h.o.BuildNetwork, Backend: backend, StateDir: h.o.StateDir, Records: records, Log: h.currentLogger(),
	}, dir)
}

func (s *imageStore) reportProgress(p store.Progress) {
	if report := s.report.Load(); report != nil {
		(*report)(p)
	}
}

// FindAbsentPrograms returns the programs on PATH that an image of this machine
// lacks, but for those beside this program and of workspace, which may be "". It
// returns none for other images.
func (h *Host) FindAbsentPrograms(ctx context.Context, ref images.Reference, workspace string) ([]host.Absent, error) {
	if ref.Scheme != images.SchemeHost {
		return nil, nil
	}
	return host.FindAbsent(ctx, h.hostImageFor(workspace))
}

// FindPrograms returns where commands on an image of this machine find programs, by
// their names. It returns none for other images.
func (h *Host) FindPrograms(ctx context.Context, ref images.Reference, workspace string, names []string) (map[string]string, error) {
	if ref.Scheme != images.SchemeHost {
		return nil, nil
	}
	return host.FindPrograms(ctx, h.hostImageFor(workspace), names)
}

// hostImageFor returns the options of the image host for a workspace, with the
// directories of PATH but this program's.
func (h *Host) hostImageFor(workspace string) host.Options {
	own := h.programs.OwnDir() // for Caisson: no command of the sandbox misses it
	path := slices.DeleteFunc(filepath.SplitList(h.getenv("PATH")), func(dir string) bool {
		resolved, err := filepath.EvalSymlinks(dir)
		return own != "" && err == nil && resolved == own
	})
	o := h.hostImage()
	o.Path, o.Workspace = strings.Join(path, string(filepath.ListSeparator)), workspace
	return o
}

// hostImage returns the options of the image host.
func (h *Host) hostImage() host.Options {
	return host.Options{Toolchains: h.o.Toolchains, Mask: h.o.Mask, Path: h.getenv("PATH"), Environ: h.o.Environ}
}

// MountPoint returns where a workspace is to be mounted in an image: target itself, or
// the image's own WORKDIR if target is "image". Its error wraps [sandbox.ErrInvalid]
// if the workspace can't be mounted there, as without a WORKDIR.
func (h *Host) MountPoint(ctx context.Context, ref images.Reference, target string) (string, error) {
	if target != "image" {
		return target, sandbox.CheckTarget(sandbox.Workspace{Target: target}.MountPoint())
	}
	config, err := h.imageConfig(ctx, ref)
	if err != nil {
		return "", sandbox.ImageError(fmt.Errorf("read the WORKDIR of image %s: %w", ref, err))
	}
	if config.WorkingDir == "" || config.WorkingDir == "/" {
		return "", fmt.Errorf("image %s: %w: it has no WORKDIR but /", ref, sandbox.ErrInvalid)
	}
	dir := config.WorkingDir
	if !slices.Contains(strings.Split(dir, "/"), "..") {
		dir = path.Clean(dir) // a slash at the end is usual
	}
	if err := sandbox.CheckTarget(dir); err != nil {
		return "", fmt.Errorf("image %s: its WORKDIR: %w", ref, err)
	}
	return dir, nil
}

// CheckUser returns an error if commands can't run as the user of a policy in an image,
// as far as its configuration shows: with sandbox.UserImage and a USER that is root. It
// wraps [sandbox.ErrInvalid] and an [images.UserError].
func (h *Host) CheckUser(ctx context.Context, ref images.Reference, user sandbox.UserPolicy) error {
	if user != sandbox.UserImage {
		return nil
	}
	config, err := h.imageConfig(ctx, ref)
	if err == nil {
		err = images.CheckUser(config.User)
	}
	if err != nil {
		return sandbox.ImageError(fmt.Errorf("read the USER of image %s: %w", ref, err))
	}
	return nil
}

// imageConfig returns the configuration of the image that a sandbox would run on: of
// the engine's, if it has one of the name, as backends do.
func (h *Host) imageConfig(ctx context.Context, ref images.Reference) (images.Config, error) {
	switch ref.Scheme {
	case images.SchemeHost, images.SchemeRootFS:
		return images.Config{}, nil
	case images.SchemeName:
		if e := h.ImageEngine(ctx); e != nil {
			config, err := e.ImageConfig(ctx, ref.Value)
			_ = e.Close() // nothing was changed
			if err == nil || !errors.Is(err, images.ErrNotFound) {
				return config, err
			}
		}
	}
	im, err := h.images.Resolve(ctx, ref)
	return im.Config, err
}

// imageAccounts returns the identities that commands may have: the sandbox's own, and
// the user's, for an engine that can't map ids.
func imageAccounts(uid, gid int) []images.Account {
	accounts := []images.Account{{Name: "agent", UID: sandbox.CommandUID, GID: sandbox.CommandGID, Home: sandbox.HomeDir}}
	if uid > 0 && uid != sandbox.CommandUID {
		accounts = append(accounts, images.Account{Name: "runner", UID: uid, GID: gid, Home: sandbox.HomeDir})
	}
	return append(accounts, sandbox.IdentityAccounts(sandbox.CommandUID, sandbox.CommandGID)...)
}

// ImageEngine returns the engine as a source of images, nil if none answers or docker
// is not allowed. The caller closes it.
func (h *Host) ImageEngine(ctx context.Context) *docker.ImageEngine {
	if !h.o.allowsBackend(docker.Name) {
		return nil
	}
	e, err := docker.NewImageEngine(h.o.DockerHost, h.getenv)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, engineTime, errors.New("no answer in time"))
	defer cancel()
	if e.Check(ctx) != nil {
		_ = e.Close() // it is not used
		return nil
	}
	return e
}

// builderEnviron returns what builders get of the environment: where they find
// programs, their directories and their daemon, and the proxies. No key.
func builderEnviron(environ []string) []string {
	var out []string
	for _, name := range []string{
		"PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "BUILDKIT_HOST",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	} {
		if v := getenv(environ, name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

func (s *imageStore) closeEngine() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	return s.engine.Close()
}

// Resolve implements [images.Source].
func (s *imageStore) Resolve(ctx context.Context, ref images.Reference) (images.Image, error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return images.Image{}, err
	}
	return opened.Resolve(ctx, ref)
}

// RootFS implements [images.Source].
func (s *imageStore) RootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return nil, nil, err
	}
	return opened.RootFS(ctx, ref)
}

// OwnedRootFS implements [images.Source].
func (s *imageStore) OwnedRootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return nil, nil, err
	}
	return opened.OwnedRootFS(ctx, ref)
}

// Archive implements [images.Source].
func (s *imageStore) Archive(ctx context.Context, ref images.Reference, w io.Writer) (string, error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return "", err
	}
	return opened.Archive(ctx, ref, w)
}
