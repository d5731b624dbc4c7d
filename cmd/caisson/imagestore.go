package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
)

// engineTime bounds the question whether an engine answers, which is asked
// before it is asked for images: without one, they come from registries.
const engineTime = 2 * time.Second

// imageStore is the user's store of images, opened when it is first needed: no
// folder is made and no engine is asked for a run on the host's programs. It is
// the source of images that backends are given.
type imageStore struct {
	chooser *chooser
	// report is told how fetching goes on; nil is nobody.
	report func(store.Progress)

	mu     sync.Mutex
	opened *store.Store
	engine *docker.ImageEngine // nil where none answers
}

var _ images.Source = (*imageStore)(nil)

// open opens the store, and finds the engine and the builders that it may use.
func (s *imageStore) open(ctx context.Context) (*store.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened != nil {
		return s.opened, nil
	}
	c := s.chooser
	dir := c.environ.imageDir()
	if dir == "" {
		return nil, &runner.Error{Status: runner.ExitConfig, Problem: record.Problem{
			Cause: "there is no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path",
			Mend:  "Set HOME, or XDG_CACHE_HOME.",
		}}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, &runner.Error{Status: runner.ExitConfig, Err: err, Problem: record.Problem{
			Cause: "the cache folder can't be made: " + err.Error(), Mend: "Set XDG_CACHE_HOME to a folder that you can write.",
		}}
	}
	o := store.Options{
		Dir: dir, PlainHTTP: c.conf.Images.PlainHTTP, Accounts: imageAccounts(os.Geteuid(), os.Getegid()),
		Progress: func(p store.Progress) {
			if s.report != nil {
				s.report(p)
			}
		},
		Buildctl: c.optional(c.conf.Programs.Buildctl, "buildctl"), Buildah: c.optional(c.conf.Programs.Buildah, "buildah"),
		BuilderEnv: c.environ.builder(),
	}
	s.engine = c.imageEngine(ctx)
	if s.engine != nil {
		o.Engine = s.engine
	}
	var err error
	if s.opened, err = store.New(o); err != nil {
		return nil, err
	}
	return s.opened, nil
}

// imageAccounts are the identities that commands may have: the sandbox's own,
// and that of the user where the engine can't map ids.
func imageAccounts(uid, gid int) []store.Account {
	list := []store.Account{{Name: "agent", UID: sandbox.CommandUID, GID: sandbox.CommandGID, Home: sandbox.HomeDir}}
	if uid > 0 && uid != sandbox.CommandUID {
		list = append(list, store.Account{Name: "runner", UID: uid, GID: gid, Home: sandbox.HomeDir})
	}
	return list
}

// imageEngine is the engine that images come from too, nil where there is none
// or the administrator does not allow one.
func (c *chooser) imageEngine(ctx context.Context) *docker.ImageEngine {
	if !c.conf.Allowed("docker") {
		return nil
	}
	e, err := docker.NewImageEngine(value(c.conf.Docker.Host), c.environ.get)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, engineTime, errors.New("no answer in time"))
	defer cancel()
	if e.Check(ctx) != nil {
		_ = e.Close()
		return nil
	}
	return e
}

// optional is a program's path, or "" where the machine lacks it.
func (c *chooser) optional(configured *string, name string) string {
	path, err := c.programs.Find(configured, name)
	if err != nil {
		return ""
	}
	return path
}

// builder is the environment of a builder: where it finds programs, its own
// folders and its daemon, and the proxies. No key and no other secret.
func (e environ) builder() []string {
	var out []string
	for _, name := range []string{
		"PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "BUILDKIT_HOST",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	} {
		if v := e.get(name); v != "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// close ends the connection to the engine.
func (s *imageStore) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != nil {
		_ = s.engine.Close()
	}
}

// Resolve implements images.Source.
func (s *imageStore) Resolve(ctx context.Context, ref images.Reference) (images.Image, error) {
	store, err := s.open(ctx)
	if err != nil {
		return images.Image{}, err
	}
	return store.Resolve(ctx, ref)
}

// RootFS implements images.Source.
func (s *imageStore) RootFS(ctx context.Context, ref images.Reference) (*images.RootFS, func(), error) {
	store, err := s.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	return store.RootFS(ctx, ref)
}

// Archive implements images.Source.
func (s *imageStore) Archive(ctx context.Context, ref images.Reference, w io.Writer) (string, error) {
	store, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	return store.Archive(ctx, ref, w)
}

// reference reads the image setting. A folder or file is relative to the
// working folder.
func reference(text string) (images.Reference, error) {
	for _, scheme := range []images.Scheme{images.SchemeRootFS, images.SchemeLayout, images.SchemeArchive, images.SchemeBuild} {
		path, ok := strings.CutPrefix(text, string(scheme)+":")
		if !ok || filepath.IsAbs(path) {
			continue
		}
		if path == "" {
			break // what is missing is said there
		}
		dir, err := os.Getwd()
		if err != nil {
			return images.Reference{}, err
		}
		// Not cleaned: what follows the path belongs to the reference.
		text = string(scheme) + ":" + dir + string(filepath.Separator) + path
	}
	return images.ParseReference(text)
}

// imageFailure turns an error of package images into what people read.
func imageFailure(err error) error {
	if _, ok := errors.AsType[*runner.Error](err); ok || explained(err) != nil {
		return err
	}
	for _, class := range []struct {
		err    error
		status int
		mend   string
	}{
		{images.ErrUnauthorized, runner.ExitAuth, "Log in with docker login: Caisson takes the credentials from there."},
		{images.ErrUnreachable, runner.ExitFailed, "Check the name, the network and the proxies; caisson images ls shows what is there without a network."},
		{images.ErrDigest, runner.ExitFailed, "Try again; if it stays, the registry or something on the way changes content: ask who runs it."},
		{images.ErrRefused, runner.ExitInput, "Use an image that you trust, or ask who made this one."},
		{images.ErrInUse, runner.ExitFailed, "End the session that uses it: caisson sandbox ls shows it."},
		{images.ErrNotFound, runner.ExitInput, "Check the name or path; caisson images ls lists what is there."},
		{images.ErrUnsupported, runner.ExitInput, "Use an image for this machine, from a source that works here: see docs/images.md."},
		{images.ErrInvalid, runner.ExitInput, "Images are host, rootfs:DIR, oci-layout:DIR, docker-archive:FILE, build:DIR, or a name such as debian:bookworm-slim."},
	} {
		if errors.Is(err, class.err) {
			return &runner.Error{Status: class.status, Err: err, Problem: record.Problem{Cause: err.Error(), Mend: class.mend}}
		}
	}
	return err
}
