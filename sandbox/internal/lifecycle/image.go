package lifecycle

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
)

// sandboxImage is a sandbox's image. It sets Preparation.Image, Config and Env.
type sandboxImage struct {
	prep    *Preparation
	store   images.Source // may be nil
	host    host.Options  // without UID and GID
	release func()        // lets the store prune the image; may be nil
}

// fetchImage gets an image that is not local, and keeps the store from pruning
// it until releaseImage. It sets no deadline.
func (i *sandboxImage) fetchImage(ctx context.Context, c Container) error {
	ref := i.prep.Spec.Image
	if isLocal(ref) {
		return nil
	}
	fetched, err := c.FetchImage(ctx)
	if fetched || err != nil {
		i.prep.Env = sandbox.Environment(i.prep.Config.Env, nil)
		return err
	}
	if i.store == nil {
		return noStoreError(ref)
	}
	fetch := i.store.RootFS
	if i.prep.Spec.Root == sandbox.RootEphemeral { // other users than root may write to it
		fetch = i.store.OwnedRootFS
	}
	root, release, err := fetch(ctx, ref)
	if err != nil {
		return sandbox.ImageError(err)
	}
	i.release = release
	i.setRoot(root)
	return i.findAccount()
}

func (i *sandboxImage) findAccount() error {
	if i.prep.Spec.User != sandbox.UserImage {
		return nil
	}
	root := i.prep.Image
	files, err := images.ReadAccountFiles(root, root.Config.User)
	if err != nil {
		return i.prep.accountError(err)
	}
	return i.prep.SetAccount(files, func(name string) (bool, error) { return root.HasDir(name), nil })
}

// isLocal reports whether an image is described anew for each container.
func isLocal(ref images.Reference) bool {
	return ref.Scheme == images.SchemeHost || ref.Scheme == images.SchemeRootFS
}

func noStoreError(ref images.Reference) error {
	return fmt.Errorf("image %s: %w: this backend has no store of images: use host or rootfs:DIR", ref, sandbox.ErrUnsupported)
}

// describeImage describes a local image for the commands' identity.
func (i *sandboxImage) describeImage(ctx context.Context, id Identity) error {
	ref := i.prep.Spec.Image
	if !isLocal(ref) {
		return nil // fetchImage set it
	}
	var root *images.RootFS
	var err error
	if ref.Scheme == images.SchemeRootFS {
		root, err = host.Directory(ctx, ref.Value)
	} else {
		o := i.host
		o.UID, o.GID, o.Workspace = id.CommandUID, id.CommandGID, i.prep.Spec.Workspace.Path
		if !id.SingleUID && !id.Root {
			o.Accounts = sandbox.IdentityAccounts(id.CommandUID, id.CommandGID)
		}
		root, err = host.RootFS(ctx, o)
	}
	if err != nil {
		return sandbox.ImageError(err)
	}
	i.setRoot(root)
	return nil
}

func (i *sandboxImage) setRoot(root *images.RootFS) {
	i.prep.Image, i.prep.Config, i.prep.Env = root, root.Config, sandbox.Environment(root.Config.Env, root.Path)
	for _, w := range root.Warnings {
		i.prep.Log.Info("image", zap.String("warning", w))
	}
}

func (i *sandboxImage) releaseImage() {
	if i.release != nil {
		i.release()
	}
}
