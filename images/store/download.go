package store

import (
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
)

// maxDownloads is the number of layers downloaded at once: one more than
// Docker's.
const maxDownloads = 4

// downloadLayers downloads the layers that the store lacks.
func (s *Store) downloadLayers(ctx context.Context, im *reader.Image, reg *reader.Registry) error {
	var missing []layer.Layer
	seen := map[string]bool{}
	var all int64
	for _, l := range im.Layers {
		if l.Size > s.o.Limits.Bytes-all { // no size is negative, and the sum can't overflow
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
