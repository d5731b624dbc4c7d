package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// loadedName names what Caisson loaded into an engine on another machine, which
// can't be given directories of this one. The tag is the image's id in the store.
const loadedName = "caisson/image"

// loadedTag is the name of the image that the store has by id. An engine whose
// images are containerd's knows it by another id than the store, so that the
// name is how what was loaded is found again.
func loadedTag(id string) string { return loadedName + ":" + strings.TrimPrefix(id, "sha256:") }

// loadedTime is how long what was loaded or built is kept on the engine after
// it got its name.
const loadedTime = 7 * 24 * time.Hour

// loadedImage makes the engine have an image of the store.
func (b *Backend) loadedImage(ctx context.Context, r *remote, f facts, ref images.Reference) (rootImage, error) {
	known, err := b.life.Images.Resolve(ctx, ref)
	if err != nil {
		return rootImage{}, sandbox.ImageError(err)
	}
	id, err := r.findLoaded(ctx, known.ID)
	if errors.Is(err, sandbox.ErrNotFound) {
		id, err = r.loadImage(ctx, b.life.Images, ref)
	}
	if err != nil {
		return rootImage{}, err
	}
	made, err := engineImage(ctx, r, f, images.Reference{Scheme: images.SchemeName, Value: id})
	made.reference, made.digest = ref.String(), known.Digest
	return made, err
}

// findLoaded gives the id that the engine has an image of the store by: the
// store's own, or that of what was loaded under its name.
func (r *remote) findLoaded(ctx context.Context, id string) (string, error) {
	found, err := r.findImage(ctx, id)
	if errors.Is(err, sandbox.ErrNotFound) {
		found, err = r.findImage(ctx, loadedTag(id))
	}
	return found.ID, err
}

// loadImage sends an image to the engine and names it, and gives the id that the
// engine has it by. An engine whose images are containerd's has another than
// the digest of the configuration.
func (r *remote) loadImage(ctx context.Context, source images.Source, ref images.Reference) (string, error) {
	ctx, cancel := withDeadline(ctx, r.transfer)
	defer cancel()
	read, write := io.Pipe()
	type result struct {
		id  string
		err error
	}
	sent := make(chan result, 1)
	go func() {
		id, err := source.Archive(ctx, ref, write)
		write.CloseWithError(err)
		sent <- result{id, err}
	}()
	answer, err := r.engine.ImageLoad(ctx, read)
	var named string
	if err == nil {
		named, err = loadedID(answer.Body)
		err = errors.Join(err, closeBody(answer.Body))
	}
	read.CloseWithError(errUnread)
	got := <-sent
	switch {
	case got.err != nil && !errors.Is(got.err, errUnread):
		return "", sandbox.ImageError(got.err)
	case err != nil:
		return "", classifyError(ctx, "load image "+ref.String(), err)
	}
	id := got.id
	if named != "" {
		id = named
	}
	return id, callNoResult(ctx, r.ask, "name image "+ref.String(), func(ctx context.Context) error {
		return r.engine.ImageTag(ctx, id, loadedTag(got.id))
	})
}

// loadedID reads the engine's answer to a load: the id that it names, if any.
func loadedID(body io.Reader) (string, error) {
	var id string
	err := eachLine(body, sandbox.ErrUnavailable, func(l line) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l.Stream), "Loaded image ID: "); ok && imageID.MatchString(rest) {
			id = rest
		}
	})
	return id, err
}

// listOwnImages lists the images that Caisson made on the engine, but for skeletons:
// what it loaded and what it built.
func (r *remote) listOwnImages(ctx context.Context) ([]image.Summary, error) {
	return callWithin(ctx, r.ask, "list images", func(ctx context.Context) ([]image.Summary, error) {
		return r.engine.ImageList(ctx, image.ListOptions{Filters: filters.NewArgs(
			filters.Arg("reference", loadedName), filters.Arg("reference", builtName))})
	})
}

// pruneImages removes what was loaded or built more than unused ago and no
// container uses, and gives how many. The engine does not say when an image was
// used last; when it got its name comes closest.
func pruneImages(ctx context.Context, r *remote, unused time.Duration) (int, error) {
	list, err := r.listOwnImages(ctx)
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
				continue // the user's own name for it
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

// Prune removes from the engine what Caisson put there and no container uses:
// skeletons, and what was loaded or built more than unused ago. It gives how
// many images went.
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
