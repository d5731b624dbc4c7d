package images

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
)

// layer is one layer of an image, wherever it is stored.
type layer struct {
	digest string // of what open gives, which may be compressed
	diffID string // of the archive, uncompressed
	size   int64  // of what open gives
	// known is false for a layer whose digest nobody has told: the layers of a
	// docker archive, which are named by their diffID alone.
	known bool
	open  func(ctx context.Context) (io.ReadCloser, error)
}

// maxWindow is the memory that a zstd layer may ask for: zstd's own bound for
// decompression without being told otherwise (2^27, zstd --long).
const maxWindow = 128 << 20

// layerReader reads a layer's archive, uncompressed, counts and hashes both
// sides, and stops at the limits.
type layerReader struct {
	ctx    context.Context //nolint:containedctx // lives as long as one read of one layer
	layer  layer
	limits Limits

	source io.ReadCloser
	plain  io.Reader
	closer func()

	stored, content hash.Hash
	in, out         int64 // bytes read from the source, and given out
	left            int64 // of the bytes that may still be given out
	extra           int64 // bytes that the archive stands for and doesn't hold: holes
	report          func(done int64)
}

// openLayer opens l for one read. left are the bytes that it may hold. Whoever
// opens it closes it; the digests are checked by finish.
func openLayer(ctx context.Context, l layer, limits Limits, left int64, report func(done int64)) (*layerReader, error) {
	source, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	r := &layerReader{
		ctx: ctx, layer: l, limits: limits, source: source, left: left, report: report,
		stored: sha256.New(), content: sha256.New(), closer: func() {},
	}
	if err := r.decompress(); err != nil {
		return nil, errors.Join(r.fault("", err), r.Close())
	}
	return r, nil
}

// decompress finds out how the layer is stored by its first bytes: what
// manifests say about it is often wrong.
func (r *layerReader) decompress() error {
	in := bufio.NewReaderSize(stored{r}, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		r.plain, err = gzip.NewReader(in)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var d *zstd.Decoder
		d, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
		if err == nil {
			r.plain, r.closer = d, d.Close
		}
	case bytes.HasPrefix(magic, []byte("BZh")), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X'}):
		err = fmt.Errorf("%w: compressed by neither gzip nor zstd", ErrRefused)
	default:
		r.plain, err = in, nil
	}
	return err
}

// stored is the layer as it is stored.
type stored struct{ r *layerReader }

func (s stored) Read(p []byte) (int, error) {
	r := s.r
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.source.Read(p)
	r.in += int64(n)
	r.stored.Write(p[:n])
	if (r.layer.known || r.layer.size > 0) && r.in > r.layer.size {
		return n, fmt.Errorf("%w: longer than the %d bytes that its manifest says", ErrDigest, r.layer.size)
	}
	if r.report != nil && n > 0 {
		r.report(r.in)
	}
	return n, err
}

// Read gives the archive, uncompressed.
func (r *layerReader) Read(p []byte) (int, error) {
	n, err := r.plain.Read(p)
	r.out += int64(n)
	r.content.Write(p[:n])
	if err == nil || errors.Is(err, io.EOF) {
		if bomb := r.expanded(0); bomb != nil {
			return n, bomb
		}
	}
	return n, err
}

// expanded counts bytes that the archive stands for without holding them, and
// says whether the layer has grown over a limit.
func (r *layerReader) expanded(more int64) error {
	r.extra += more
	all := r.out + r.extra
	switch {
	case all > r.left:
		return fmt.Errorf("%w: the image is over the limit of %d bytes uncompressed", ErrRefused, r.limits.Bytes)
	case all > r.limits.RatioFloor && all/r.limits.Ratio > r.in:
		return fmt.Errorf("%w: it is over %d times as large as what it was read from, %d bytes", ErrRefused, r.limits.Ratio, r.in)
	}
	return nil
}

// finish reads what follows the archive's end and checks both digests.
func (r *layerReader) finish() error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return r.fault("", err)
	}
	if _, err := io.Copy(io.Discard, stored{r}); err != nil {
		return r.fault("", err)
	}
	if got := digestOf(r.stored); r.layer.known && got != r.layer.digest {
		return fmt.Errorf("layer %s: %w: its content has %s", r.layer.digest, ErrDigest, got)
	}
	if got := digestOf(r.content); got != r.layer.diffID {
		return fmt.Errorf("layer %s: %w: its archive has %s, and the image's configuration says %s", r.layer.digest, ErrDigest, got, r.layer.diffID)
	}
	return nil
}

// Close ends the read, finished or not.
func (r *layerReader) Close() error {
	r.closer()
	return r.source.Close()
}

// fault says what went wrong at an entry: a cancellation is itself, and so is
// what was met while the layer was fetched or written; anything else is the
// layer's own doing.
func (r *layerReader) fault(entry string, err error) error {
	if r.ctx.Err() != nil {
		return fmt.Errorf("unpack layer %s: %w", r.layer.digest, context.Cause(r.ctx))
	}
	made := &LayerError{}
	if errors.As(err, &made) {
		return err
	}
	// What can't be read is perhaps not what it should be.
	if r.layer.known && !errors.Is(err, ErrDigest) {
		if _, rest := io.Copy(io.Discard, stored{r}); rest == nil && digestOf(r.stored) != r.layer.digest {
			return fmt.Errorf("layer %s: %w: its content has %s", r.layer.digest, ErrDigest, digestOf(r.stored))
		}
	}
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrDigest) || errors.Is(err, ErrUnreachable) {
		return &LayerError{Layer: r.layer.digest, Entry: entry, Reason: "stopped", Err: err}
	}
	return &LayerError{Layer: r.layer.digest, Entry: entry, Reason: "it can't be read", Err: fmt.Errorf("%w: %w", ErrRefused, err)}
}
