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

// engineTime bounds the wait for an engine before images come from registries
// instead.
const engineTime = 2 * time.Second

// imageStore is the user's image store. It is opened on first use, so that a run on
// the host image makes no directory and contacts no engine. It implements
// [images.Source].
type imageStore struct {
	host *Host

	mu     sync.Mutex
	opened *store.Store
	engine *docker.ImageEngine // nil if none answers

	report atomic.Pointer[func(store.Progress)]
}

// ReportPulls sets the receiver of the progress of image downloads and builds; nil
// unsets it.
func (h *Host) ReportPulls(report func(store.Progress)) {
	h.images.report.Store(&report)
}

// Images returns the image store, which the host owns.
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
	buildctl, _ := h.programs.Find(optional(h.o.Buildctl), "buildctl") // "" means that it isn't used
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
	if report := s.report.Load(); report != nil && *report != nil {
		(*report)(p)
	}
}

// FindAbsentPrograms returns the programs on PATH that the host image lacks, except
// those in this program's directory and in workspace, which may be "". For other
// images it returns nil.
func (h *Host) FindAbsentPrograms(ctx context.Context, ref images.Reference, workspace string) ([]host.Absent, error) {
	if ref.Scheme != images.SchemeHost {
		return nil, nil
	}
	return host.FindAbsent(ctx, h.hostImageFor(workspace))
}

// FindPrograms returns the paths of the named programs in the host image. For other
// images it returns nil.
func (h *Host) FindPrograms(ctx context.Context, ref images.Reference, workspace string, names []string) (map[string]string, error) {
	if ref.Scheme != images.SchemeHost {
		return nil, nil
	}
	return host.FindPrograms(ctx, h.hostImageFor(workspace), names)
}

// hostImageFor returns the host image's options for a workspace. Its PATH excludes
// this program's directory.
func (h *Host) hostImageFor(workspace string) host.Options {
	own := h.programs.OwnDir() // commands don't need Caisson's own programs
	path := slices.DeleteFunc(filepath.SplitList(h.getenv("PATH")), func(dir string) bool {
		resolved, err := filepath.EvalSymlinks(dir)
		return own != "" && err == nil && resolved == own
	})
	o := h.hostImage()
	o.Path, o.Workspace = strings.Join(path, string(filepath.ListSeparator)), workspace
	return o
}

func (h *Host) hostImage() host.Options {
	return host.Options{Toolchains: h.o.Toolchains, Mask: h.o.Mask, Path: h.getenv("PATH"), Environ: h.o.Environ}
}

// MountPoint returns the path at which an image mounts the workspace: target, or the
// image's WORKDIR if target is "image". If that is no valid mount point, or the image
// has no WORKDIR, the error wraps [sandbox.ErrInvalid].
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
		dir = path.Clean(dir) // a trailing slash is usual
	}
	if err := sandbox.CheckTarget(dir); err != nil {
		return "", fmt.Errorf("image %s: its WORKDIR: %w", ref, err)
	}
	return dir, nil
}

// CheckUser returns an error if the image's configuration shows that commands can't
// run as the policy's user: with sandbox.UserImage, if USER is root. The error wraps
// [sandbox.ErrInvalid] and an [images.UserError].
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

// imageConfig returns the configuration of the image that a sandbox would use. Like
// the backends, it prefers the engine's image of that name.
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

// imageAccounts returns the identities that commands may have: the sandbox's, and the
// user's for engines that can't map IDs.
func imageAccounts(uid, gid int) []images.Account {
	accounts := []images.Account{{Name: "agent", UID: sandbox.CommandUID, GID: sandbox.CommandGID, Home: sandbox.HomeDir}}
	if uid > 0 && uid != sandbox.CommandUID {
		accounts = append(accounts, images.Account{Name: "runner", UID: uid, GID: gid, Home: sandbox.HomeDir})
	}
	return append(accounts, sandbox.IdentityAccounts(sandbox.CommandUID, sandbox.CommandGID)...)
}

// ImageEngine returns the engine as a source of images. It returns nil if docker is
// not allowed or doesn't answer. The caller closes it.
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
		_ = e.Close() // nothing was changed
		return nil
	}
	return e
}

// builderEnviron returns the environment for image builders. It holds no keys.
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

func (s *imageStore) Resolve(ctx context.Context, ref images.Reference) (images.Image, error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return images.Image{}, err
	}
	return opened.Resolve(ctx, ref)
}

func (s *imageStore) RootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return nil, nil, err
	}
	return opened.RootFS(ctx, ref)
}

func (s *imageStore) OwnedRootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return nil, nil, err
	}
	return opened.OwnedRootFS(ctx, ref)
}

func (s *imageStore) Archive(ctx context.Context, ref images.Reference, w io.Writer) (string, error) {
	opened, err := s.host.Images(ctx)
	if err != nil {
		return "", err
	}
	return opened.Archive(ctx, ref, w)
}
