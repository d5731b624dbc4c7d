package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// mapsImage reports whether the image's owners must be mapped to others in the
// container: both Caisson and its commands are root.
func (c *container) mapsImage() bool { return c.isRoot() && !c.backend.rootless && !c.hosted }

func (c *container) isRoot() bool { return c.prep.Spec.User == sandbox.UserRoot }

// setRoot sets the container's root: the skeleton, or the image itself below an
// ephemeral layer. If commands are root in a user namespace, root's files in
// the image belong to them.
func (c *container) setRoot() (err error) {
	p := c.prep
	if c.hosted && p.Spec.Root == sandbox.RootEphemeral { // gVisor's kernel has the layer
		c.plan.writable = true
		c.plan.rootfs, err = filepath.EvalSymlinks(p.Image.Dir)
		return err
	}
	shifted := c.mapsImage() && !c.plan.traits.ownKernel
	var owners *os.File
	if shifted {
		if owners, err = workmount.ShiftOwners(p.Guest.Path, workmount.OwnBase); err != nil {
			return err
		}
		defer func() { _ = owners.Close() }()
	}
	if p.Spec.Root == sandbox.RootEphemeral {
		o := workmount.RootOptions{Image: p.Image.Dir, Dir: p.Spec.Dir, Cleanup: p.Cleanup}
		if shifted {
			o.UserNamespace, o.UID, o.GID = owners, workmount.FirstID, workmount.FirstID
		}
		if c.backend.rootless {
			c.root, err = p.Mounts.PlanRoot(o, p.Guest.Path)
		} else {
			c.root, err = workmount.StageRoot(o)
		}
		if err != nil {
			return err
		}
		c.plan.writable = true
		c.plan.rootfs, err = filepath.EvalSymlinks(c.root.Path)
		if err == nil && shifted {
			c.plan.rootfs, err = c.private.AddWritable(c.plan.rootfs)
		}
		return err
	}
	// A runtime refuses a root file system whose path has symlinks.
	cache, err := filepath.EvalSymlinks(lifecycle.CacheDir(c.backend.options.StateDir))
	if err != nil {
		return err
	}
	c.plan.rootfs, err = skeletonFor(p.Image, cache)
	if err == nil && shifted {
		c.plan.rootfs, err = c.private.Add(c.plan.rootfs, owners)
	}
	if err == nil && c.mapsImage() {
		err = c.mapBinds(owners)
	}
	return err
}

// mapBinds replaces the image's binds by private mounts with these owners. For
// the image host in gVisor's kernel, it hides the owners, so that root reads
// only what all users may. A user namespace needs no mapping for that, and in
// gVisor's kernel other images need none.
func (c *container) mapBinds(owners *os.File) (err error) {
	isHost := c.plan.image.Reference.Scheme == images.SchemeHost
	if isHost != c.plan.traits.ownKernel {
		return nil
	}
	if isHost {
		if owners, err = workmount.HideOwners(c.prep.Guest.Path); err != nil {
			return err
		}
		defer func() { _ = owners.Close() }()
	}
	mapped := *c.plan.image
	mapped.Binds = slices.Clone(mapped.Binds)
	for i := range mapped.Binds {
		if mapped.Binds[i].Source, err = c.private.Add(mapped.Binds[i].Source, owners); err != nil {
			return err
		}
	}
	c.plan.image = &mapped
	return nil
}

// skeletonFor returns the container's root: the directory with an image's mount
// points, symlinks and synthetic files. It is mounted read-only and contains
// nothing of a session, so all containers with the same layout share it: making
// its forty entries takes longer than all other writes of a start. It is named
// by the hash of its content. Since it is renamed last, it is complete if it
// exists.
func skeletonFor(image *images.RootFS, dir string) (string, error) {
	sum := sha256.New()
	if err := host.WriteSkeletonTar(image, sum); err != nil {
		return "", err
	}
	name := filepath.Join(dir, "rootfs-"+hex.EncodeToString(sum.Sum(nil))[:32])
	if _, err := os.Stat(name); err == nil {
		state.MarkUsed(name)
		return name, nil
	}
	temp, err := os.MkdirTemp(dir, ".rootfs-*")
	if err != nil {
		return "", fmt.Errorf("make image skeleton: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // renamed, unless an error is returned
	// Other users enter the container's root, too.
	if err := errors.Join(os.Chmod(temp, 0o755), host.WriteSkeleton(image, temp)); err != nil {
		return "", err
	}
	if err := os.Rename(temp, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make image skeleton: %w", err)
	}
	return name, nil
}
