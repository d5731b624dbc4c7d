package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// leastSpace is what the cache of images should have free: an image of an
// ordinary toolchain, packed and unpacked.
const leastSpace = 4 << 30

// image checks the image that is set: whether it is there, and whether a start
// needs the network.
func (s *setup) image(ctx context.Context) finding {
	ref, err := reference(*s.conf.Image)
	if err != nil {
		return failed("image", err)
	}
	if !s.conf.AllowedImage(ref.String()) {
		return finding{
			Check: "image", Result: resultFailed, status: runner.ExitConfig, Detail: ref.String() + " is not allowed on this machine",
			Mend: "Choose what the administrator's file allows.",
		}
	}
	f := finding{Check: "image", Result: resultOK, Detail: *s.conf.Image}
	switch ref.Scheme {
	case images.SchemeHost:
		if warnings := s.backends.imageWarnings(ctx, ref); len(warnings) > 0 {
			f.Result, f.Detail = resultWarning, f.Detail+": "+strings.Join(firstSentences(warnings), "; ")
			f.Mend = "Add folders under host_image.toolchains in the configuration, or use an image that has them."
		}
	case images.SchemeRootFS:
		if info, err := os.Stat(ref.Path()); err != nil || !info.IsDir() {
			return failed("image", fmt.Errorf("%w: %s is no folder", sandbox.ErrNotFound, ref.Path()))
		}
	case images.SchemeLayout, images.SchemeArchive:
		if _, err := os.Stat(ref.Path()); err != nil {
			return absentImage(fmt.Sprintf("%s: %v", ref, err), "Name an image that is there: --image, or image in the configuration.")
		}
	case images.SchemeBuild:
		return s.buildImage(ctx, ref)
	case images.SchemeName:
		return s.namedImage(ctx, ref)
	}
	return f
}

// firstSentences leaves out what each says of its mend, which is the same.
func firstSentences(warnings []string) []string {
	var out []string
	for _, w := range warnings {
		first, _, _ := strings.Cut(w, ". ")
		out = append(out, strings.TrimSuffix(first, "."))
	}
	return out
}

func absentImage(detail, mend string) finding {
	return finding{Check: "image", Result: resultFailed, Detail: detail, Mend: mend, status: runner.ExitSandboxStart}
}

// buildImage says whether the folder can be built, and by what.
func (s *setup) buildImage(ctx context.Context, ref images.Reference) finding {
	if _, err := os.Stat(filepath.Join(ref.Path(), "Dockerfile")); err != nil {
		return absentImage(fmt.Sprintf("%s has no Dockerfile", ref), "Name the folder of a Dockerfile.")
	}
	builder := ""
	if e := s.backends.imageEngine(ctx); e != nil {
		_ = e.Close()
		builder = "the Docker engine"
	} else if path := s.backends.optional(s.conf.Programs.Buildctl, "buildctl"); path != "" {
		builder = path
	} else if path := s.backends.optional(s.conf.Programs.Buildah, "buildah"); path != "" {
		builder = path
	}
	if builder == "" {
		return absentImage(fmt.Sprintf("%s: nothing here can build it", ref), "Start a Docker engine, or install buildctl or buildah.")
	}
	return finding{Check: "image", Result: resultOK, Detail: fmt.Sprintf("%s, built by %s", ref, builder)}
}

// namedImage says where a name's image would come from.
func (s *setup) namedImage(ctx context.Context, ref images.Reference) finding {
	if e := s.backends.imageEngine(ctx); e != nil {
		defer func() { _ = e.Close() }() // only asked
		if id, err := e.ImageID(ctx, ref.Value); err == nil {
			return finding{Check: "image", Result: resultOK, Detail: fmt.Sprintf("%s is the engine's %s", ref, shortDigest(id))}
		}
	}
	missing := finding{
		Check: "image", Result: resultWarning, Detail: fmt.Sprintf("%s is not here: the first start fetches it, which needs the network", ref),
		Mend: fmt.Sprintf("caisson images pull %s fetches it now.", ref),
	}
	if _, err := os.Stat(s.environ.imageDir()); err != nil {
		return missing
	}
	store, err := s.backends.images.open(ctx)
	if err != nil {
		return failed("image", imageFailure(err))
	}
	list, err := store.List(ctx)
	if err != nil {
		return failed("image", imageFailure(err))
	}
	for _, i := range list {
		if i.Reference == ref {
			return finding{Check: "image", Result: resultOK, Detail: fmt.Sprintf("%s is pinned to %s, asked %s ago, and needs no network", ref, shortDigest(i.Digest), age(i.Pulled, time.Now()))}
		}
	}
	return missing
}

// imageStore checks the folder that images are kept in, without making it.
func (s *setup) imageStore() finding {
	const check = "image store"
	dir := s.environ.imageDir()
	if dir == "" {
		return finding{Check: check, Result: resultWarning, Detail: "no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path", Mend: "Set HOME, or XDG_CACHE_HOME."}
	}
	there := dir
	for {
		info, err := os.Stat(there)
		if err == nil && info.IsDir() {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || there == filepath.Dir(there) {
			return finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s can't be a folder: %s is in the way", dir, there), Mend: "Set XDG_CACHE_HOME to a folder that you can write."}
		}
		there = filepath.Dir(there)
	}
	if there == dir {
		if err := sessiondir.CheckStateDir(dir); err != nil {
			return finding{Check: check, Result: resultWarning, Detail: failure(err).Cause, Mend: "Make it a folder that you own and that nobody else can write, or set XDG_CACHE_HOME to one."}
		}
	}
	free, err := freeSpace(there)
	switch {
	case err != nil:
		return finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s: %v", there, err), Mend: "Set XDG_CACHE_HOME to a folder that you can write."}
	case free < leastSpace:
		return finding{Check: check, Result: resultWarning, Detail: fmt.Sprintf("%s has %s free", dir, ui.FormatSize(free)), Mend: "caisson images prune --all frees what no session uses; or set XDG_CACHE_HOME to a larger disk."}
	}
	return finding{Check: check, Result: resultOK, Detail: fmt.Sprintf("%s, %s free", dir, ui.FormatSize(free))}
}
