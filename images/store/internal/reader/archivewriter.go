package reader

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
)

// WriteArchive writes an image as a docker archive.
func WriteArchive(ctx context.Context, im *Image, w io.Writer) error {
	core := &archiveImage{ctx: ctx, Image: im}
	if err := core.buildManifest(); err != nil {
		return err
	}
	docker, err := partial.CompressedToImage(core)
	if err != nil {
		return err
	}
	// A reference by digest adds no tag to the archive.
	ref, err := name.NewDigest("caisson/image@" + im.ID)
	if err != nil {
		return err
	}
	if err := tarball.Write(ref, docker, w); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// archiveImage adapts an image to go-containerregistry.
type archiveImage struct {
	ctx context.Context // for one write
	*Image
	dockerManifest []byte
}

// buildManifest builds a docker manifest. The image may have none, or one with
// media types that engines' archives don't know.
func (a *archiveImage) buildManifest() error {
	id, err := v1.NewHash(a.ID)
	if err != nil {
		return err
	}
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.DockerManifestSchema2,
		Config: v1.Descriptor{MediaType: types.DockerConfigJSON, Digest: id, Size: int64(len(a.Config))},
	}
	for _, l := range a.Layers {
		h, err := v1.NewHash(l.Digest)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, v1.Descriptor{MediaType: types.DockerLayer, Digest: h, Size: l.Size})
	}
	a.dockerManifest, err = json.Marshal(m)
	return err
}

// Implementation of partial.CompressedImageCore.
func (a *archiveImage) RawConfigFile() ([]byte, error)      { return a.Config, nil }
func (a *archiveImage) RawManifest() ([]byte, error)        { return a.dockerManifest, nil }
func (a *archiveImage) MediaType() (types.MediaType, error) { return types.DockerManifestSchema2, nil }

func (a *archiveImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	for _, l := range a.Layers {
		if l.Digest == h.String() {
			return archiveLayer{a.ctx, l, h}, nil
		}
	}
	return nil, fmt.Errorf("%w: layer %s", images.ErrNotFound, h)
}

type archiveLayer struct {
	ctx   context.Context // for one write
	layer layer.Layer
	hash  v1.Hash
}

// Implementation of partial.CompressedLayer.
func (l archiveLayer) Digest() (v1.Hash, error)            { return l.hash, nil }
func (l archiveLayer) Size() (int64, error)                { return l.layer.Size, nil }
func (l archiveLayer) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }

func (l archiveLayer) Compressed() (io.ReadCloser, error) {
	r, err := l.layer.Open(l.ctx)
	if err != nil {
		return nil, err
	}
	return &verifyingReader{r: contextReader{l.ctx, r}, closer: r, layer: l.layer, sum: sha256.New()}, nil
}

// verifyingReader reads a layer and fails at the end if it doesn't match its
// digest. A docker archive's layers have only a DiffID, which the engine
// checks.
type verifyingReader struct {
	r      io.Reader
	closer io.Closer
	layer  layer.Layer
	sum    hash.Hash
}

func (v *verifyingReader) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && v.layer.Known {
		if got := digest.OfHash(v.sum); got != v.layer.Digest {
			return n, fmt.Errorf("layer %s: %w: its content has digest %s", v.layer.Digest, images.ErrDigest, got)
		}
	}
	return n, err
}

func (v *verifyingReader) Close() error { return v.closer.Close() }
