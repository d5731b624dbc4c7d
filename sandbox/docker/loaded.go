package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/docker/docker/api/types/filters"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
)

// loadedName is the name of images that Caisson loaded into an engine: for an
// engine on another machine, which can't mount our directories, or for a
// writable root. The tag is the image's ID in the store.
const loadedName = "caisson/image"

// loadedTag returns the name for the store's image with an ID. An engine with a
// containerd image store knows it by another ID, so the name is how it is found
// again.
func loadedTag(id string) string { return loadedName + ":" + strings.TrimPrefix(id, "sha256:") }

// loadedTime is how long a loaded or built image is kept after it got its name.
const loadedTime = 7 * 24 * time.Hour

// loadedImage returns an image of the store, loading it into the engine if
// necessary.
func (b *Backend) loadedImage(ctx context.Context, r *remote, f facts, ref images.Reference) (rootImage, error) {
	known, err := b.lifecycle.Images.Resolve(ctx, ref)
	if err != nil {
		return rootImage{}, sandbox.ImageError(err)
	}
	id, err := r.findLoaded(ctx, known.ID)
	if errors.Is(err, sandbox.ErrNotFound) {
		id, err = r.loadImage(ctx, b.lifecycle.Images, ref)
	}
	if err != nil {
		return rootImage{}, err
	}
	made, err := engineImage(ctx, r, f, images.Reference{Scheme: images.SchemeName, Value: id})
	made.reference, made.digest = ref.String(), known.Digest
	return made, err
}

// findLoaded returns the engine's ID for an image of the store, which it may have
// under the store's own ID or under the name that Caisson gave it.
func (r *remote) findLoaded(ctx context.Context, id string) (string, error) {
	found, err := r.findImage(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) {
		found, err = r.findImage(ctx, loadedTag(id))
	}
	return found.ID, err
}

// loadImage sends an image to the engine, names it, and returns the engine's ID
// for it, which with a containerd image store is not the digest of the
// configuration.
func (r *remote) loadImage(ctx context.Context, source images.Source, ref images.Reference) (string, error) {
	ctx, cancel := withDeadline(ctx, r.transfer)
	defer cancel()
	var stored, loaded string
	sendErr, err := lifecycle.Pipe(func(w io.Writer) (err error) {
		stored, err = source.Archive(ctx, ref, w)
		return err
	}, func(archive io.Reader) error {
		answer, err := r.engine.ImageLoad(ctx, archive)
		if err != nil {
			return err
		}
		loaded, err = loadedID(answer.Body)
		return errors.Join(err, closeBody(answer.Body))
	})
	switch {
	case sendErr != nil:
		return "", sandbox.ImageError(sendErr)
	case err != nil:
		return "", classifyError(ctx, "load image "+ref.String(), err)
	}
	loaded = cmp.Or(loaded, stored)
	return loaded, callNoResult(ctx, r.ask, "name image "+ref.String(), func(ctx context.Context) error {
		return r.engine.ImageTag(ctx, loaded, loadedTag(stored))
	})
}

func loadedID(body io.Reader) (string, error) {
	var id string
	err := eachLine(body, sandbox.ErrUnavailable, func(l line) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l.Stream), "Loaded image ID: "); ok && imageID().MatchString(rest) {
			id = rest
		}
	})
	return id, err
}

// pruneImages removes images that were loaded or built longer ago than unused
// and that no container uses, and returns their number. The engine does not
// record when an image was last used, so the time when it got its name must do.
func pruneImages(ctx context.Context, r *remote, unused time.Duration) (int, error) {
	list, err := r.listImages(ctx, filters.Arg("reference", loadedName), filters.Arg("reference", builtName))
	if err != nil {
		return 0, err
	}
	removed := 0
	var errs []error
	for _, i := range list {
		found, err := r.findImage(ctx, i.ID)
		if errors.Is(err, sandbox.ErrNotFound) {
			continue
		}
		if err != nil || time.Since(found.Metadata.LastTagTime) < unused {
			errs = append(errs, err)
			continue
		}
		for _, name := range found.RepoTags {
			if !strings.HasPrefix(name, loadedName+":") && !strings.HasPrefix(name, builtName+":") {
				continue // the user's own name
			}
			gone, err := r.removeImage(ctx, name, true)
			if gone {
				removed++
			}
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// Prune removes what Caisson put on the engine and no container uses:
// skeletons, and images that were loaded or built longer ago than unused. It
// returns the number of images.
func (e *ImageEngine) Prune(ctx context.Context, unused time.Duration) (int, error) {
	r, err := e.connect(ctx)
	if err != nil {
		return 0, err
	}
	n, err := pruneImages(ctx, r, unused)
	skeletons, skeletonErr := pruneSkeletons(ctx, r, unused)
	if err := errors.Join(err, skeletonErr); err != nil {
		return n + skeletons, fmt.Errorf("prune the engine's images: %w", err)
	}
	return n + skeletons, nil
}
