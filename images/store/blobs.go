package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
)

// blobs are files named by their digest, blobs/sha256/HEX, as in an OCI image
// layout.
type blobs struct{ dir string }

func (b blobs) blobPath(dgst string) string {
	return filepath.Join(b.dir, "blobs", "sha256", digest.Hex(dgst))
}

func (b blobs) hasBlob(dgst string) bool {
	_, err := os.Lstat(b.blobPath(dgst))
	return err == nil
}

// openBlob opens a blob without checking its content against the digest.
func (b blobs) openBlob(dgst string) (*os.File, error) {
	f, err := reader.OpenRegular(nil, b.blobPath(dgst))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: blob %s", images.ErrNotFound, dgst)
	}
	return f, err
}

func (b blobs) readBlob(d v1.Descriptor, limit int64) ([]byte, error) {
	if d.Digest.Algorithm != "sha256" {
		return nil, fmt.Errorf("%w: digest %s: want sha256", images.ErrUnsupported, d.Digest)
	}
	f, err := b.openBlob(d.Digest.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return reader.ReadDocument(f, d, limit)
}

// writeBlob writes a blob from r through a file in temp. Wrong or incomplete
// content never becomes visible.
func (b blobs) writeBlob(dgst string, r io.Reader, temp string) error {
	sum := sha256.New()
	return placeFile(temp, b.blobPath(dgst), io.TeeReader(r, sum), func() error {
		if got := digest.OfHash(sum); got != dgst {
			return fmt.Errorf("%w: blob %s has digest %s", images.ErrDigest, dgst, got)
		}
		return nil
	})
}

// openDescriptor is a [reader.BlobOpener].
func (b blobs) openDescriptor(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	return b.openBlob(d.Digest.String())
}

func (b blobs) dropDamaged(list []string) (any bool) {
	for _, dgst := range list {
		f, err := b.openBlob(dgst)
		if err != nil {
			continue
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err == nil && digest.OfHash(sum) != dgst && os.Remove(b.blobPath(dgst)) == nil {
			any = true
		}
	}
	return any
}

// maxDownloads bounds concurrent downloads of layers: one more than Docker's.
const maxDownloads = 4

func (s *Store) downloadLayers(ctx context.Context, im *reader.Image, reg *reader.Registry) error {
	var missing []layer.Layer
	seen := map[string]bool{}
	var all int64
	for _, l := range im.Layers {
		if l.Size > s.o.Limits.Bytes-all { // sizes are not negative, and the sum can't overflow
			return fmt.Errorf("image %s: %w: its layers have more than %d bytes", im.Ref, images.ErrRefused, s.o.Limits.Bytes)
		}
		all += l.Size
		if !seen[l.Digest] && !s.blobs.hasBlob(l.Digest) {
			missing = append(missing, l)
		}
		seen[l.Digest] = true
	}
	if len(missing) == 0 {
		return nil
	}
	temp, remove, err := s.locks.makeTemp(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxDownloads)
	for _, l := range missing {
		group.Go(func() error {
			hash, err := v1.NewHash(l.Digest)
			if err != nil {
				return err
			}
			at := Progress{Reference: im.Ref, Phase: PhaseDownload, Digest: l.Digest, Total: l.Size}
			s.reports.sendReport(at)
			write := func(r io.Reader) error { return s.blobs.writeBlob(l.Digest, r, temp) }
			return reg.DownloadBlob(ctx, v1.Descriptor{Digest: hash, Size: l.Size}, write, func(done int64) {
				at.Done = done
				s.reports.sendReport(at)
			})
		})
	}
	if err := errors.Join(group.Wait(), remove()); err != nil {
		return fmt.Errorf("image %s: download: %w", im.Ref, err)
	}
	return nil
}
