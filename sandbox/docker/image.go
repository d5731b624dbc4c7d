package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// rootImage is what a container runs on.
type rootImage struct {
	reference string
	// id is the engine's id of the image, which is also the digest that is
	// attested for images of the engine.
	id, digest string
	binds      []images.Bind
	masks      []string
	// volumes are the folders that the image declares as VOLUME: each gets a
	// small tmpfs, so that the engine makes no volume on the host's disk.
	volumes  []string
	warnings []string
}

// The label and name of an imported skeleton. The digest is the whole of it:
// the same skeleton is imported once, whoever needs it.
const (
	labelSkeleton = "io.caisson.skeleton"
	skeletonName  = "caisson/skeleton"
)

// resolveImage finds or imports what the reference names. Commands have the
// identity uid:gid.
func (b *Backend) resolveImage(ctx context.Context, r *remote, f facts, ref images.Reference, uid, gid int) (rootImage, error) {
	switch ref.Scheme {
	case images.SchemeName:
		return engineImage(ctx, r, f, ref)
	case images.SchemeHost:
		if !b.endpoint.local() {
			return rootImage{}, fmt.Errorf("image host: %w: %w: name an image that the engine at %s has",
				sandbox.ErrUnavailable, ErrNotShared, b.endpoint.host)
		}
		o := b.options.HostImage
		o.UID, o.GID = uid, gid
		root, err := images.Host(ctx, o)
		return b.skeletonImage(ctx, r, root, err)
	case images.SchemeFolder:
		root, err := images.Folder(ctx, ref.Value)
		return b.skeletonImage(ctx, r, root, err)
	}
	return rootImage{}, fmt.Errorf("image %s: %w: source %q", ref, sandbox.ErrUnsupported, ref.Scheme)
}

// engineImage looks an image up. It never pulls: what runs is the user's
// decision, and its content is named by the id.
func engineImage(ctx context.Context, r *remote, f facts, ref images.Reference) (rootImage, error) {
	found, err := r.image(ctx, ref.Value)
	if errors.Is(err, sandbox.ErrNotFound) {
		return rootImage{}, fmt.Errorf("image %s: %w on the engine: docker pull %s, or use image host", ref.Value, sandbox.ErrNotFound, ref.Value)
	}
	if err != nil {
		return rootImage{}, err
	}
	if found.Os != "linux" || !sameArchitecture(found.Architecture, f.info.Architecture) {
		return rootImage{}, fmt.Errorf("image %s: %w: it is for %s/%s and the engine runs linux/%s: pull it for that platform",
			ref.Value, sandbox.ErrUnsupported, found.Os, found.Architecture, f.info.Architecture)
	}
	made := rootImage{reference: ref.Value, id: found.ID, digest: found.ID}
	if found.Config != nil {
		made.volumes = slices.Sorted(maps.Keys(found.Config.Volumes))
	}
	return made, nil
}

// sameArchitecture compares an image's word (amd64) with an engine's (x86_64).
func sameArchitecture(image, engine string) bool {
	words := map[string]string{"x86_64": "amd64", "aarch64": "arm64"}
	if w, ok := words[engine]; ok {
		engine = w
	}
	return image == engine
}

// skeletonImage makes the engine have the skeleton of a root that consists of
// binds: a few empty folders and small files, imported once.
func (b *Backend) skeletonImage(ctx context.Context, r *remote, root *images.RootFS, err error) (rootImage, error) {
	if err != nil {
		return rootImage{}, imageFault(err)
	}
	made := rootImage{
		reference: root.Reference.String(), digest: root.Digest, binds: root.Binds, masks: root.Masks, warnings: root.Warnings,
	}
	hex, ok := strings.CutPrefix(root.Digest, "sha256:")
	if !ok || len(hex) != 64 {
		return rootImage{}, fmt.Errorf("image %s: %w: digest %q", made.reference, sandbox.ErrUnavailable, root.Digest)
	}
	name := skeletonName + ":" + hex
	if made.id, err = skeletonID(ctx, r, name, root.Digest); err == nil || !errors.Is(err, sandbox.ErrNotFound) {
		return made, err
	}
	unlock, err := b.lockImport(ctx)
	if err != nil {
		return rootImage{}, err
	}
	defer unlock()
	if made.id, err = skeletonID(ctx, r, name, root.Digest); err == nil || !errors.Is(err, sandbox.ErrNotFound) {
		return made, err
	}
	if err := importSkeleton(ctx, r, root, name); err != nil {
		return rootImage{}, err
	}
	made.id, err = skeletonID(ctx, r, name, root.Digest)
	return made, err
}

// lockImport keeps two imports apart, in this process and between processes:
// the second would leave an image without a name behind.
func (b *Backend) lockImport(ctx context.Context) (func(), error) {
	b.importing.Lock()
	lock := flock.New(filepath.Join(b.options.StateDir, "docker-import.lock"))
	if _, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		b.importing.Unlock()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("wait for another import: %w", err)
	}
	return func() {
		lock.Close()
		b.importing.Unlock()
	}, nil
}

// skeletonID returns the id of an image that is what its name says.
func skeletonID(ctx context.Context, r *remote, name, digest string) (string, error) {
	found, err := r.image(ctx, name)
	if err != nil {
		return "", err
	}
	if found.Config == nil || found.Config.Labels[labelSkeleton] != digest || len(found.Config.Volumes) > 0 {
		return "", fmt.Errorf("image %s: %w: it is not what Caisson imported: remove it (docker rmi %s)", name, sandbox.ErrUnavailable, name)
	}
	return found.ID, nil
}

func importSkeleton(ctx context.Context, r *remote, root *images.RootFS, name string) error {
	read, write := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		write.CloseWithError(root.SkeletonTar(write))
	}()
	err := r.importImage(ctx, read, name, "LABEL "+labelSkeleton+"="+root.Digest)
	read.Close()
	<-done
	return err
}

// imageFault turns an error of package images into one of the sandbox's.
func imageFault(err error) error {
	for from, to := range map[error]error{
		images.ErrInvalid: sandbox.ErrInvalid, images.ErrUnsupported: sandbox.ErrUnsupported, images.ErrNotFound: sandbox.ErrNotFound,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("resolve image: %w: %w", to, err)
		}
	}
	return fmt.Errorf("resolve image: %w", err)
}
