package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-run/caisson/images"
)

// tagAnnotation has an image's tag in a layout's index (image-spec v1.1).
const tagAnnotation = "org.opencontainers.image.ref.name"

// OpenLayout opens the image that ref names in an OCI image layout. It reads
// only regular files, through an os.Root that stays open until the image is
// closed.
func OpenLayout(ctx context.Context, ref images.Reference, o *Options) (*Image, error) {
	root, err := os.OpenRoot(ref.Path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w: no such directory", ref, images.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("image %s: %w: %w", ref, images.ErrInvalid, err)
	}
	l := ociLayout{root: root, limit: o.Limits.MetadataBytes}
	im, err := l.readImage(ctx, ref, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", ref, err), root.Close())
	}
	im.Close = func() { _ = root.Close() } // only read
	return im, nil
}

type ociLayout struct {
	root  *os.Root
	limit int64
}

func (l ociLayout) readImage(ctx context.Context, ref images.Reference, o *Options) (*Image, error) {
	index, err := l.readFile("index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: not an OCI image layout: no index.json", images.ErrInvalid)
	} else if err != nil {
		return nil, err
	}
	d, err := ParseDocument(index)
	if err != nil {
		return nil, err
	}
	first, err := l.selectEntry(d.Manifests, ref, o.Platform)
	if err != nil {
		return nil, err
	}
	raw, err := l.readBlob(ctx, first)
	if err != nil {
		return nil, err
	}
	manifest, d, err := SelectManifest(ctx, raw, o.Platform, l.readBlob)
	if err != nil {
		return nil, err
	}
	return FromManifest(ctx, ref, manifest, d, o, l.readBlob, l.openBlob)
}

// selectEntry returns the index entry that ref names by digest or tag, or the
// only one for the platform.
func (l ociLayout) selectEntry(list []v1.Descriptor, ref images.Reference, platform string) (v1.Descriptor, error) {
	var tags []string
	var left []v1.Descriptor
	for _, d := range list {
		tag := d.Annotations[tagAnnotation]
		if tag != "" && !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
		if (ref.Digest() == "" || d.Digest.String() == ref.Digest()) && (ref.Tag() == "" || tag == ref.Tag()) {
			left = append(left, d)
		}
	}
	switch {
	case len(left) == 0 && ref.Digest() != "" && ref.Tag() == "":
		// The digest may be a manifest's below an entry.
		hash, err := v1.NewHash(ref.Digest())
		if err != nil {
			return v1.Descriptor{}, fmt.Errorf("%w: %w", images.ErrInvalid, err)
		}
		return v1.Descriptor{Digest: hash}, nil
	case len(left) == 0:
		return v1.Descriptor{}, fmt.Errorf("%w in the layout: it has the tags %s", images.ErrNotFound, strings.Join(tags, ", "))
	case len(left) == 1:
		return left[0], nil
	}
	// Several entries may be one image on several platforms.
	for _, d := range left[1:] {
		if d.Annotations[tagAnnotation] != left[0].Annotations[tagAnnotation] {
			return v1.Descriptor{}, fmt.Errorf("%w: the layout has several images: name one by its tag (oci-layout:DIR:TAG), %s", images.ErrInvalid, strings.Join(tags, ", "))
		}
	}
	return selectPlatform(left, platform)
}

func (l ociLayout) readFile(name string) ([]byte, error) {
	f, err := OpenRegular(l.root, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return readAtMost(f, l.limit)
}

// readBlob is a [DocumentReader].
func (l ociLayout) readBlob(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	r, err := l.openBlob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	return ReadDocument(r, d, l.limit)
}

// openBlob is a [BlobOpener].
func (l ociLayout) openBlob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%w: digest %s: want sha256", images.ErrUnsupported, d.Digest)
	}
	f, err := OpenRegular(l.root, "blobs/sha256/"+d.Digest.Hex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the layout lacks the blob %s", images.ErrNotFound, d.Digest)
	}
	return f, err
}
