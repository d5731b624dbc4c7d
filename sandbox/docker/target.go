package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// checkTargets returns an error if a mount point in an engine's image, or a
// directory above it, is a symlink. An engine follows it when it mounts, so
// that mount points for other mounts would be made in the user's workspace. The
// image is examined through a container without mounts that is never started,
// which takes some 50 ms. An empty file in the cache records the result.
func (c *engineContainer) checkTargets(ctx context.Context) error {
	if c.prep.Image != nil { // a skeleton, checked when it was made
		return nil
	}
	workspace := c.prep.Spec.Workspace.MountPoint()
	targets := c.asked.targets(workspace)
	sum := sha256.Sum256([]byte(c.image.id + "\x00" + strings.Join(targets, "\x00")))
	checked := filepath.Join(lifecycle.CacheDir(c.backend.options.StateDir), lifecycle.TargetPrefix+hex.EncodeToString(sum[:16]))
	if _, err := os.Stat(checked); err == nil {
		state.MarkUsed(checked)
		return nil
	}
	err := c.withUnstarted(ctx, c.asked.withoutMounts(targets), func() error {
		if err := c.remote.checkPaths(ctx, c.id, targets, workspace); err != nil {
			return fmt.Errorf("image %s: %w", c.image.reference, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_ = os.WriteFile(checked, nil, 0o600) // otherwise the next start examines it again
	return nil
}

// targets returns a request's mount points in the image, not in the workspace
// or a kernel file system.
func (r request) targets(workspace string) []string {
	list := slices.Collect(maps.Keys(r.host.Tmpfs))
	for _, m := range r.host.Mounts {
		list = append(list, m.Target)
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(target string) bool {
		return slices.ContainsFunc([]string{workspace, "/dev", "/proc", "/sys"}, func(dir string) bool { return strings.HasPrefix(target, dir+"/") })
	})
}

// withoutMounts returns a request for a container to examine without starting
// it. Its targets, among them the image's VOLUMEs, are tmpfs mounts, so that
// the engine makes no volume.
func (r request) withoutMounts(targets []string) request {
	host := *r.host
	host.Mounts, host.Tmpfs = nil, maps.Clone(host.Tmpfs)
	for _, t := range targets {
		host.Tmpfs[t] = ""
	}
	r.host = &host
	return r
}

// checkPaths returns an error if one of the paths in a container, or a
// directory above it, is a symlink, or if the workspace's is not a directory. A
// path need not exist.
func (r *remote) checkPaths(ctx context.Context, id string, paths []string, workspace string) error {
	missing, seen := "", map[string]bool{}
	for _, path := range paths {
		for i := 1; i <= len(path); i++ {
			at := path[:i]
			if i < len(path) && path[i] != '/' || seen[at] {
				continue
			}
			if missing != "" && strings.HasPrefix(at, missing+"/") {
				break
			}
			seen[at] = true
			stat, err := r.statPath(ctx, id, at)
			switch {
			case errors.Is(err, sandbox.ErrNotFound):
				missing = at
			case err != nil:
				return err
			case stat.Mode&os.ModeSymlink != 0:
				return &sandbox.MountError{Err: fmt.Errorf("%w: nothing can be mounted at %s: %s is a symlink to %.200q in the image",
					sandbox.ErrInvalid, path, at, strings.ToValidUTF8(stat.LinkTarget, "?"))}
			case !stat.Mode.IsDir() && (at == workspace || i < len(path)):
				return &sandbox.MountError{Err: fmt.Errorf("%w: nothing can be mounted at %s: %s is not a directory in the image", sandbox.ErrInvalid, path, at)}
			}
		}
	}
	return nil
}
