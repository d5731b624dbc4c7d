package oci

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// checkImage refuses a reference that this backend can't resolve.
func (b *Backend) checkImage(ref images.Reference) error {
	switch ref.Scheme {
	case images.SchemeHost, images.SchemeRootFS:
	case images.SchemeName, images.SchemeLayout, images.SchemeArchive, images.SchemeBuild:
		if b.options.Images == nil {
			return fmt.Errorf("image %s: this backend was given no store of images: use host or rootfs:DIR: %w", ref, sandbox.ErrUnsupported)
		}
	default:
		return fmt.Errorf("no image named: %w", sandbox.ErrInvalid)
	}
	return nil
}

// fetch gets an image that has to be fetched or unpacked first, and keeps it
// from being pruned until the container is gone. It takes the time that it
// takes, as long as ctx: it is no part of the start that StartTime bounds.
func (c *container) fetch(ctx context.Context, ref images.Reference) error {
	if ref.Scheme == images.SchemeHost || ref.Scheme == images.SchemeRootFS {
		return nil
	}
	root, release, err := c.backend.options.Images.RootFS(ctx, ref)
	if err != nil {
		return sandbox.ImageError(err)
	}
	c.plan.image, c.release = root, release
	return nil
}

// resolve gives the root filesystem that was fetched, or describes the host's
// or a folder's, for commands with an identity.
func (c *container) resolve(ctx context.Context, ref images.Reference, id identity) error {
	var err error
	switch ref.Scheme {
	case images.SchemeRootFS:
		c.plan.image, err = host.Directory(ctx, ref.Value)
	case images.SchemeHost:
		o := c.backend.options.Host
		o.UID, o.GID = id.commandUID, id.commandGID
		c.plan.image, err = host.RootFS(ctx, o)
	}
	if err != nil {
		return sandbox.ImageError(err)
	}
	var taken []string
	for _, t := range harden.TmpfsMounts(c.plan.resources, id.commandUID, id.commandGID) {
		taken = append(taken, t.Path)
	}
	if c.plan.volumes, err = harden.VolumeMounts(c.plan.image.Volumes, taken, id.commandUID, id.commandGID); err != nil {
		return fmt.Errorf("image %s: %w: %w", ref, sandbox.ErrUnsupported, err)
	}
	return nil
}

// releaseImage lets the image be pruned again, once.
func (c *container) releaseImage() {
	if c.release != nil {
		c.release()
		c.release = nil
	}
}
