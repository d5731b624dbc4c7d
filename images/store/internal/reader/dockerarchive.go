package reader

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
)

// maxArchiveFiles bounds a docker archive's entries; it has a few per layer.
const maxArchiveFiles = 16_384

// dockerArchive is the output of docker save: a tar archive with a
// manifest.json, configurations and layers. Files are indexed once and read in
// place. It has its own reader because the archive is as untrusted as its
// layers: metadata's size is checked before it is read, and finding a file does
// not read the archive again.
type dockerArchive struct {
	file  *os.File
	files map[string]archiveFile
	limit int64
}

type archiveFile struct {
	offset, size int64
	link         string
}

// OpenArchive opens the image that ref names in a docker archive.
func OpenArchive(ref images.Reference, file string, o *Options) (*Image, error) {
	f, err := OpenRegular(nil, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s: %w: no such file", ref, images.ErrNotFound)
	} else if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	a := dockerArchive{file: f, files: map[string]archiveFile{}, limit: o.Limits.MetadataBytes}
	im, err := a.readImage(ref, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image %s: %w", ref, err), f.Close())
	}
	im.Close = func() { _ = f.Close() } // only read
	return im, nil
}

func (a *dockerArchive) indexFiles() error {
	magic := make([]byte, 2)
	if _, err := a.file.ReadAt(magic, 0); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return fmt.Errorf("%w: the archive is compressed: use gunzip first", images.ErrUnsupported)
	}
	r := tar.NewReader(a.file)
	for range maxArchiveFiles {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are only looked up
			return fmt.Errorf("%w: not a docker archive: %w", images.ErrInvalid, err)
		}
		name := path.Clean(h.Name)
		if len(name) > 1024 {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := a.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.files[name] = archiveFile{offset: at, size: h.Size}
		case tar.TypeSymlink: // docker save before 25 links repeated layers
			a.files[name] = archiveFile{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			a.files[name] = archiveFile{link: path.Clean(h.Linkname)}
		}
	}
	return fmt.Errorf("%w: the archive has more than %d entries", images.ErrRefused, maxArchiveFiles)
}

func (a *dockerArchive) findFile(name string) (*io.SectionReader, error) {
	at := path.Clean(name)
	for range 8 {
		p, ok := a.files[at]
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: the archive lacks %q", images.ErrInvalid, name)
		case p.link == "":
			return io.NewSectionReader(a.file, p.offset, p.size), nil
		}
		at = p.link
	}
	return nil, fmt.Errorf("%w: %q is a chain of links", images.ErrInvalid, name)
}

func (a *dockerArchive) readFile(name string) ([]byte, error) {
	r, err := a.findFile(name)
	if err != nil {
		return nil, err
	}
	return readAtMost(r, a.limit)
}

type manifestEntry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (a *dockerArchive) readImage(ref images.Reference, o *Options) (*Image, error) {
	if err := a.indexFiles(); err != nil {
		return nil, err
	}
	raw, err := a.readFile("manifest.json")
	if err != nil {
		return nil, err
	}
	var list []manifestEntry
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%w: read its manifest.json: %w", images.ErrInvalid, err)
	}
	config, names, err := a.selectImage(list, ref)
	if err != nil {
		return nil, err
	}
	var layers []layer.Layer
	for _, name := range names {
		r, err := a.findFile(name)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer.Layer{Size: r.Size(), Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(r, 0, r.Size())), nil
		}})
	}
	im, err := newImage(ref, config, layers, o.Platform, o.Limits)
	if err != nil {
		return nil, err
	}
	for i := range im.Layers {
		im.Layers[i].Digest = im.Layers[i].DiffID
	}
	im.Digest = im.ID
	return im, nil
}

// selectImage returns the configuration and layer names of the image with ref's
// digest, or of the only one.
func (a *dockerArchive) selectImage(list []manifestEntry, ref images.Reference) (config []byte, layers []string, err error) {
	var tags []string
	for _, e := range list {
		if config, err = a.readFile(e.Config); err != nil {
			return nil, nil, err
		}
		if ref.Scheme == images.SchemeArchive && ref.Digest() == digest.Of(config) {
			return config, e.Layers, nil
		}
		layers, tags = e.Layers, append(tags, append(slices.Clone(e.RepoTags), digest.Of(config))...)
		if len(tags) > 100 {
			return nil, nil, fmt.Errorf("%w: the archive has more than 100 images and tags", images.ErrInvalid)
		}
	}
	switch {
	case ref.Scheme == images.SchemeArchive && ref.Digest() != "":
		return nil, nil, fmt.Errorf("%w: the archive has %s", images.ErrDigest, strings.Join(tags, ", "))
	case len(list) != 1:
		return nil, nil, fmt.Errorf("%w: the archive has %d images: name one by its digest (docker-archive:FILE@sha256:…), %s",
			images.ErrInvalid, len(list), strings.Join(tags, ", "))
	}
	return config, layers, nil
}
