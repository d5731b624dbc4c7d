package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/store/internal/reader"
)

type foundImage struct {
	record *record
	name   string // the record's
	fresh  bool   // must be saved
	// open makes the layers readable, by downloading them or exporting them
	// from the engine. The image is valid until close.
	open  func(ctx context.Context) (*reader.Image, error)
	close func()
}

// findImage finds the image that ref names, the pinned one unless refresh is
// set. The caller holds the shared fetch lock and closes the result.
func (s *Store) findImage(ctx context.Context, ref images.Reference, refresh bool) (*foundImage, error) {
	switch ref.Scheme {
	case images.SchemeName:
		return s.findByName(ctx, ref, refresh)
	case images.SchemeLayout:
		im, err := reader.OpenLayout(ctx, ref, &s.reading)
		return wrapImage(s, ref, originLocal, im, err)
	case images.SchemeArchive:
		im, err := reader.OpenArchive(ref, ref.Path(), &s.reading)
		return wrapImage(s, ref, originLocal, im, err)
	case images.SchemeBuild:
		return s.buildImage(ctx, ref)
	}
	return nil, fmt.Errorf("image %s: %w: a store does not handle this reference", ref, images.ErrUnsupported)
}

func wrapImage(s *Store, ref images.Reference, from origin, im *reader.Image, err error) (*foundImage, error) {
	if err != nil {
		return nil, err
	}
	return &foundImage{
		record: newRecord(s, from, ref, im), name: ref.String(), fresh: true, close: im.Close,
		open: func(context.Context) (*reader.Image, error) { return im, nil },
	}, nil
}

func newRecord(s *Store, from origin, ref images.Reference, im *reader.Image) *record {
	r := &record{
		Reference: ref.String(), Source: from, Platform: s.o.Platform, Digest: im.Digest, ID: im.ID, EngineID: im.EngineID,
		Tree: s.trees.treeKey(im.ID), Created: im.Parsed.Created.Time, Pulled: time.Now().UTC(),
		Config: im.Run, EnvDropped: im.EnvDropped,
	}
	if im.Manifest != nil && from == originRegistry {
		r.Blobs = []string{im.Digest, im.ID}
		for _, l := range im.Layers {
			r.Blobs = append(r.Blobs, l.Digest)
		}
	}
	return r
}

// findByName asks the engine, then looks for a pin, then asks the registry.
func (s *Store) findByName(ctx context.Context, ref images.Reference, refresh bool) (*foundImage, error) {
	if s.o.Engine != nil {
		id, err := s.o.Engine.ImageID(ctx, ref.Value)
		if err == nil {
			return s.findInEngine(ctx, ref, originEngine, id)
		}
		if !errors.Is(err, images.ErrNotFound) {
			return nil, fmt.Errorf("image %s: ask the engine: %w", ref, err)
		}
	}
	if digest.Valid(ref.Value) {
		return nil, fmt.Errorf("image %s: %w: no engine has an image with this id", ref, images.ErrNotFound)
	}
	reg, err := reader.OpenRegistry(ref, &s.reading)
	if err != nil {
		return nil, err
	}
	f := &foundImage{name: reg.Name(), close: func() {}}
	if f.record, err = s.records.loadRecord(originRegistry, f.name); err != nil {
		return nil, err
	}
	if f.record == nil || refresh {
		im, err := s.resolveImage(ctx, ref, reg, func(ctx context.Context) ([]byte, error) {
			raw, err := reg.FetchManifest(ctx)
			if want := ref.Digest(); err == nil && want != "" && want != digest.Of(raw) {
				err = fmt.Errorf("%w: the registry returned %s", images.ErrDigest, digest.Of(raw))
			}
			return raw, err
		})
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		f.record, f.fresh = newRecord(s, originRegistry, ref, im), true
	}
	f.open = func(ctx context.Context) (*reader.Image, error) { return s.openPinned(ctx, ref, reg, f.record) }
	return f, nil
}

// resolveImage reads an image's manifest and configuration from a registry
// within Options.ResolveTimeout, and stores both as blobs.
func (s *Store) resolveImage(ctx context.Context, ref images.Reference, reg *reader.Registry, first func(context.Context) ([]byte, error)) (*reader.Image, error) {
	s.reports.sendReport(Progress{Reference: ref, Phase: PhaseResolve})
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.ResolveTimeout,
		fmt.Errorf("%w: no answer within %s", images.ErrUnreachable, s.o.ResolveTimeout))
	defer cancel()
	raw, err := first(ctx)
	if err != nil {
		return nil, err
	}
	manifest, d, err := reader.SelectManifest(ctx, raw, s.o.Platform, reg.FetchDocument)
	if err != nil {
		return nil, err
	}
	im, err := reader.FromManifest(ctx, ref, manifest, d, &s.reading, reg.FetchDocument, s.blobs.openDescriptor)
	if err != nil {
		return nil, err
	}
	temp, remove, err := s.locks.makeTemp(ctx)
	if err != nil {
		return nil, err
	}
	return im, errors.Join(
		s.blobs.writeBlob(im.Digest, strings.NewReader(string(im.Manifest)), temp),
		s.blobs.writeBlob(im.ID, strings.NewReader(string(im.Config)), temp), remove())
}

// openPinned opens a record's image. It fetches missing parts again, by digest.
func (s *Store) openPinned(ctx context.Context, ref images.Reference, reg *reader.Registry, r *record) (*reader.Image, error) {
	im, err := s.openCached(ctx, ref, r)
	if err != nil {
		im, err = s.resolveImage(ctx, ref, reg, func(ctx context.Context) ([]byte, error) { return reg.FetchDigest(ctx, r.Digest) })
	}
	if err != nil {
		return nil, err
	}
	return im, s.downloadLayers(ctx, im, reg)
}

func (s *Store) openCached(ctx context.Context, ref images.Reference, r *record) (*reader.Image, error) {
	hash, err := v1.NewHash(r.Digest)
	if err != nil {
		return nil, err
	}
	get := func(_ context.Context, d v1.Descriptor) ([]byte, error) {
		return s.blobs.readBlob(d, s.o.Limits.MetadataBytes)
	}
	raw, err := get(ctx, v1.Descriptor{Digest: hash})
	if err != nil {
		return nil, err
	}
	d, err := reader.ParseDocument(raw)
	if err != nil || d.Manifests != nil {
		return nil, errors.Join(images.ErrInvalid, err)
	}
	return reader.FromManifest(ctx, ref, raw, d, &s.reading, get, s.blobs.openDescriptor)
}

// findInEngine finds an image in the engine by its ID. It exports nothing if
// one of its trees is intact, until the other is wanted.
func (s *Store) findInEngine(ctx context.Context, ref images.Reference, from origin, id string) (*foundImage, error) {
	r, err := s.records.loadRecord(from, ref.String())
	if err != nil {
		return nil, err
	}
	save := func(ctx context.Context) (*reader.Image, error) { return s.saveFromEngine(ctx, ref, id) }
	if r != nil && r.EngineID == id && (s.trees.isIntact(r.Tree) || s.trees.isIntact(ownedKey(r.Tree))) {
		f := &foundImage{record: r, name: ref.String()}
		var im *reader.Image
		f.close = func() {
			if im != nil {
				im.Close()
			}
		}
		f.open = func(ctx context.Context) (*reader.Image, error) {
			var err error
			im, err = save(ctx)
			return im, err
		}
		return f, nil
	}
	im, err := save(ctx)
	return wrapImage(s, ref, from, im, err)
}

func (s *Store) saveFromEngine(ctx context.Context, ref images.Reference, id string) (*reader.Image, error) {
	s.reports.sendReport(Progress{Reference: ref, Phase: PhaseSave})
	return s.openTemporary(ctx, func(temp string) (*reader.Image, error) {
		return s.saveArchive(ctx, ref, id, filepath.Join(temp, "image.tar"))
	})
}

// openTemporary opens an image with a temporary directory, which its Close
// removes.
func (s *Store) openTemporary(ctx context.Context, open func(temp string) (*reader.Image, error)) (*reader.Image, error) {
	temp, remove, err := s.locks.makeTemp(ctx)
	if err != nil {
		return nil, err
	}
	im, err := open(temp)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	inner := im.Close
	im.Close = func() { inner(); _ = remove() } // sweepOrphans would remove the rest
	return im, nil
}

func (s *Store) saveArchive(ctx context.Context, ref images.Reference, id, file string) (*reader.Image, error) {
	in, err := s.o.Engine.Save(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("image %s: export from the engine: %w", ref, err)
	}
	// The archive is a little larger than its content.
	limit := s.o.Limits.Bytes + s.o.Limits.Bytes/8
	err = errors.Join(spoolFile(ctx, file, in, limit), in.Close())
	if err != nil {
		return nil, fmt.Errorf("image %s: export from the engine: %w", ref, err)
	}
	im, err := reader.OpenArchive(ref, file, &s.reading)
	if err != nil {
		return nil, err
	}
	im.EngineID = id
	return im, nil
}

func spoolFile(ctx context.Context, file string, r io.Reader, limit int64) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(reader.NewContextReader(ctx, r), limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("%w: more than %d bytes", images.ErrRefused, limit)
	}
	return errors.Join(err, f.Close())
}

// buildImage builds every time: only the builder knows whether something has
// changed.
func (s *Store) buildImage(ctx context.Context, ref images.Reference) (*foundImage, error) {
	if info, err := os.Stat(ref.Path()); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("image %s: %w: no such directory", ref, images.ErrNotFound)
	}
	words := &lineWriter{line: func(text string) { s.reports.sendReport(Progress{Reference: ref, Phase: PhaseBuild, Text: text}) }}
	if s.o.Engine != nil {
		id, err := s.o.Engine.Build(ctx, ref.Path(), images.BuildOptions{Progress: words, Network: s.o.BuildNetwork})
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		return s.findInEngine(ctx, ref, originBuild, id)
	}
	if s.o.BuildNetwork != nil {
		return nil, fmt.Errorf("image %s: %w: only a Docker engine can build it with a network that is confined to rules", ref, images.ErrUnsupported)
	}
	im, err := s.openTemporary(ctx, func(temp string) (*reader.Image, error) {
		file, err := buildOutside(ctx, ref, &s.o, temp, words)
		if err != nil {
			return nil, err
		}
		return reader.OpenArchive(ref, file, &s.reading)
	})
	return wrapImage(s, ref, originBuild, im, err)
}
