package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// leastSpace is the free space that the image store should have: for an
// ordinary toolchain, packed and unpacked.
const leastSpace = 4 << 30

// Image is the image to check.
type Image struct {
	Name      string // as the user wrote it
	Reference images.Reference
	// Absent returns the programs on PATH that image host lacks.
	Absent func(ctx context.Context) ([]host.Absent, error)
	// EngineID returns the ID of a name's image on a local engine, or "".
	EngineID func(ctx context.Context, name string) string
	// Builder returns the program that builds images here, or "".
	Builder func(ctx context.Context) string
	// Stored returns the images in the store.
	Stored func(ctx context.Context) ([]images.Image, error)
}

// CheckImage checks whether the image is present, and whether a start needs the
// network.
func CheckImage(ctx context.Context, i Image) Finding {
	ref := i.Reference
	f := Finding{Check: "image", Result: OK, Detail: i.Name}
	switch ref.Scheme {
	case images.SchemeHost:
		return i.checkHost(ctx)
	case images.SchemeRootFS:
		if info, err := os.Stat(ref.Path()); err != nil || !info.IsDir() {
			return failed("image", fmt.Errorf("%w: %s is not a directory", sandbox.ErrNotFound, ref.Path()))
		}
	case images.SchemeLayout, images.SchemeArchive:
		if _, err := os.Stat(ref.Path()); err != nil {
			return Finding{Check: "image", Result: Failed, Detail: fmt.Sprintf("%s: %v", ref, err), Advice: AdviseImage, Fault: FaultSandbox}
		}
	case images.SchemeBuild:
		return i.checkBuild(ctx)
	case images.SchemeName:
		return i.checkName(ctx)
	}
	return f
}

func (i Image) checkHost(ctx context.Context) Finding {
	absent, err := i.Absent(ctx)
	if err != nil {
		return Finding{Check: "image", Result: Failed, Err: err, Fault: FaultSandbox}
	}
	if len(absent) == 0 {
		return Finding{Check: "image", Result: OK, Detail: i.Name}
	}
	var texts, toolchains []string
	for _, a := range absent {
		texts = append(texts, a.String())
		for _, dir := range a.Toolchains {
			if !slices.Contains(toolchains, dir) {
				toolchains = append(toolchains, dir)
			}
		}
	}
	f := Finding{Check: "image", Result: Warning, Detail: i.Name + ": " + strings.Join(texts, "; "), Advice: AdviseOtherImage}
	if len(toolchains) > 0 {
		f.Advice, f.Subject = AdviseToolchains, strings.Join(toolchains, "\n")
	}
	return f
}

func missingImage(detail, hint string) Finding {
	return Finding{Check: "image", Result: Failed, Detail: detail, Hint: hint, Fault: FaultSandbox}
}

func (i Image) checkBuild(ctx context.Context) Finding {
	ref := i.Reference
	if _, err := os.Stat(filepath.Join(ref.Path(), "Dockerfile")); err != nil {
		return missingImage(fmt.Sprintf("%s has no Dockerfile", ref), "Name the directory of a Dockerfile.")
	}
	builder := i.Builder(ctx)
	if builder == "" {
		return missingImage(fmt.Sprintf("%s: nothing here can build it", ref), "Start a Docker engine, or install buildctl or buildah.")
	}
	return Finding{Check: "image", Result: OK, Detail: fmt.Sprintf("%s, built by %s", ref, builder)}
}

func (i Image) checkName(ctx context.Context) Finding {
	ref := i.Reference
	if id := i.EngineID(ctx, ref.Value); id != "" {
		return Finding{Check: "image", Result: OK, Detail: fmt.Sprintf("%s is the engine's %s", ref, ShortenDigest(id))}
	}
	list, err := i.Stored(ctx)
	if err != nil {
		return failed("image", err)
	}
	for _, stored := range list {
		if stored.Reference == ref {
			return Finding{Check: "image", Result: OK, Detail: fmt.Sprintf("%s is pinned to %s, asked %s ago, and needs no network", ref, ShortenDigest(stored.Digest), FormatAge(stored.Pulled, time.Now()))}
		}
	}
	return Finding{
		Check: "image", Result: Warning, Detail: fmt.Sprintf("%s is not here: the first start fetches it, which needs the network", ref),
		Advice: AdvisePull, Subject: ref.String(),
	}
}

// ShortenDigest returns the first 12 digits of a digest.
func ShortenDigest(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), 12)]
}

// CheckImageStore checks the directory of the image store, without creating it.
func CheckImageStore(dir string) Finding {
	const check = "image store"
	if dir == "" {
		return Finding{Check: check, Result: Warning, Detail: "no place for images: neither HOME nor XDG_CACHE_HOME is an absolute path", Hint: "Set HOME, or XDG_CACHE_HOME."}
	}
	there := dir
	for {
		info, err := os.Stat(there)
		if err == nil && info.IsDir() {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || there == filepath.Dir(there) {
			return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("%s can't be a directory: %s is in the way", dir, there), Hint: "Set XDG_CACHE_HOME to a directory that you can write."}
		}
		there = filepath.Dir(there)
	}
	if there == dir {
		if err := state.CheckDir(dir); err != nil {
			return Finding{Check: check, Result: Warning, Err: err, Hint: "Make it a directory that you own and that no other user can write, or set XDG_CACHE_HOME to one."}
		}
	}
	free, err := freeSpace(there)
	switch {
	case err != nil:
		return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("%s: %v", there, err), Hint: "Set XDG_CACHE_HOME to a directory that you can write."}
	case free < leastSpace:
		return Finding{Check: check, Result: Warning, Detail: fmt.Sprintf("%s has %s free", dir, limits.FormatSize(free)), Advice: AdvisePrune}
	}
	return Finding{Check: check, Result: OK, Detail: fmt.Sprintf("%s, %s free", dir, limits.FormatSize(free))}
}

// leastState is the free space that the state directory should have: for
// records, spilled output and the layers of overlay sessions.
const leastState = 1 << 30

// CheckState checks the state directory. temporary are directories that are
// emptied.
func CheckState(dir string, temporary []string) Finding {
	const check = "state directory"
	if err := state.CheckDir(dir); err != nil {
		return failed(check, err)
	}
	if err := programs.CheckExec(dir); err != nil {
		f := failed(check, err)
		f.Hint = runner.ProgramHint(err)
		return f
	}
	f := Finding{Check: check, Result: Warning, Detail: dir, Hint: "Set XDG_STATE_HOME to a directory that stays."}
	if why := findReplaceable(dir); why != "" {
		f.Detail = fmt.Sprintf("other users can replace %s, even while sessions use it: %s", dir, why)
		f.Hint = "Set XDG_STATE_HOME to a directory whose parents belong to you or root, and that other users can't write."
		return f
	}
	if temp := FindParent(dir, temporary); temp != "" {
		f.Detail = fmt.Sprintf("%s is below %s, which is emptied from time to time: records, approvals and kept changes are lost then", dir, temp)
		return f
	}
	free, err := freeSpace(dir)
	switch {
	case err != nil:
		f.Detail += ": " + err.Error()
		f.Hint = "Make it writable, or set XDG_STATE_HOME to another directory."
	case free < leastState:
		f.Detail += fmt.Sprintf(" has %s free", limits.FormatSize(free))
		f.Hint = "Make room there, or set XDG_STATE_HOME to a directory on a larger disk."
	default:
		f = Finding{Check: check, Result: OK, Detail: fmt.Sprintf("%s, %s free", dir, limits.FormatSize(free))}
	}
	return f
}

// freeSpace returns the number of bytes that this user can still write in a
// directory.
func freeSpace(dir string) (int64, error) {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return 0, fmt.Errorf("it can't be written: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("its free space is unknown: %w", err)
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil //nolint:unconvert // the types differ between systems
}
