package layer

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
)

// Layer is a layer of an image, wherever it is stored.
type Layer struct {
	Digest string // of the stored, possibly compressed form
	DiffID string // of the uncompressed archive
	Size   int64  // bytes of the stored form
	// Known is false if no manifest has the Digest: a docker archive names its
	// layers only by DiffID.
	Known bool
	Open  func(ctx context.Context) (io.ReadCloser, error)
}

// maxWindow bounds a zstd layer's memory: the decompressor's own default limit
// (2^27, zstd --long).
const maxWindow = 128 << 20

// layerReader reads a layer's uncompressed archive, counts and hashes the
// stored and the uncompressed bytes, and enforces the limits.
type layerReader struct {
	ctx    context.Context // for one read of one layer
	layer  Layer
	limits Limits

	source io.ReadCloser
	plain  io.Reader
	closer func()

	storedSum, contentSum     hash.Hash
	storedBytes, archiveBytes int64 // read from source, and returned
	bytesLeft                 int64 // may still be returned
	holeBytes                 int64 // of holes, which the archive doesn't contain
	report                    func(done int64)
}

// openLayer opens l to read at most left uncompressed bytes. The caller checks
// the digests by verifyDigests and closes the reader.
func openLayer(ctx context.Context, l Layer, limits Limits, left int64, report func(done int64)) (*layerReader, error) {
	source, err := l.Open(ctx)
	if err != nil {
		return nil, err
	}
	r := &layerReader{
		ctx: ctx, layer: l, limits: limits, source: source, bytesLeft: left, report: report,
		storedSum: sha256.New(), contentSum: sha256.New(), closer: func() {},
	}
	if err := r.detectCompression(); err != nil {
		return nil, errors.Join(r.classifyError("", err), r.Close())
	}
	return r, nil
}

// detectCompression chooses the decompressor by the first bytes, because media
// types in manifests are often wrong.
func (r *layerReader) detectCompression() error {
	in := bufio.NewReaderSize(storedReader{r}, 64<<10)
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
		err = fmt.Errorf("%w: compressed with neither gzip nor zstd", images.ErrRefused)
	default:
		r.plain, err = in, nil
	}
	return err
}

// storedReader reads the layer's stored form.
type storedReader struct{ r *layerReader }

func (s storedReader) Read(p []byte) (int, error) {
	r := s.r
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	n, err := r.source.Read(p)
	r.storedBytes += int64(n)
	r.storedSum.Write(p[:n])
	if (r.layer.Known || r.layer.Size > 0) && r.storedBytes > r.layer.Size {
		return n, fmt.Errorf("%w: longer than the %d bytes of its manifest", images.ErrDigest, r.layer.Size)
	}
	if r.report != nil && n > 0 {
		r.report(r.storedBytes)
	}
	return n, err
}

func (r *layerReader) Read(p []byte) (int, error) {
	n, err := r.plain.Read(p)
	r.archiveBytes += int64(n)
	r.contentSum.Write(p[:n])
	if err == nil || errors.Is(err, io.EOF) {
		if bomb := r.checkExpansion(0); bomb != nil {
			return n, bomb
		}
	}
	return n, err
}

// checkExpansion counts more bytes of holes and returns an error if the layer
// exceeds a limit.
func (r *layerReader) checkExpansion(more int64) error {
	r.holeBytes += more
	all := r.archiveBytes + r.holeBytes
	switch {
	case all > r.bytesLeft:
		return fmt.Errorf("%w: the image has more than %d bytes uncompressed", images.ErrRefused, r.limits.Bytes)
	case all > r.limits.RatioFloor && all/r.limits.Ratio > r.storedBytes:
		return fmt.Errorf("%w: it expands to more than %d times its %d bytes", images.ErrRefused, r.limits.Ratio, r.storedBytes)
	}
	return nil
}

// verifyDigests reads the bytes after the archive's end and checks both
// digests.
func (r *layerReader) verifyDigests() error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return r.classifyError("", err)
	}
	if _, err := io.Copy(io.Discard, storedReader{r}); err != nil {
		return r.classifyError("", err)
	}
	if got := digest.OfHash(r.storedSum); r.layer.Known && got != r.layer.Digest {
		return fmt.Errorf("layer %s: %w: its content has digest %s", r.layer.Digest, images.ErrDigest, got)
	}
	if got := digest.OfHash(r.contentSum); got != r.layer.DiffID {
		return fmt.Errorf("layer %s: %w: its archive has digest %s, the image's configuration %s", r.layer.Digest, images.ErrDigest, got, r.layer.DiffID)
	}
	return nil
}

func (r *layerReader) Close() error {
	r.closer()
	return r.source.Close()
}

// classifyError returns err as an error of the layer at entry. A cancellation,
// a digest mismatch and an [*Error] keep their class; any other error is the
// layer's fault.
func (r *layerReader) classifyError(entry string, err error) error {
	if r.ctx.Err() != nil {
		return fmt.Errorf("unpack layer %s: %w", r.layer.Digest, context.Cause(r.ctx))
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	// Unreadable content may also not match its digest, which is the better
	// error.
	if r.layer.Known && !errors.Is(err, images.ErrDigest) {
		if _, rest := io.Copy(io.Discard, storedReader{r}); rest == nil && digest.OfHash(r.storedSum) != r.layer.Digest {
			return fmt.Errorf("layer %s: %w: its content has digest %s", r.layer.Digest, images.ErrDigest, digest.OfHash(r.storedSum))
		}
	}
	if errors.Is(err, images.ErrRefused) || errors.Is(err, images.ErrDigest) || errors.Is(err, images.ErrUnreachable) {
		return &Error{Layer: r.layer.Digest, Entry: entry, Reason: "stopped", Err: err}
	}
	return &Error{Layer: r.layer.Digest, Entry: entry, Reason: "unreadable", Err: fmt.Errorf("%w: %w", images.ErrRefused, err)}
}

// Error says why a layer was refused. It wraps [images.ErrRefused] or the error
// that interrupted reading.
type Error struct {
	Layer  string // digest of the stored form
	Entry  string // name in the archive; may be empty
	Reason string // such as "a hard link to something other than a regular file"
	Err    error  // never nil
}

func (e *Error) Error() string {
	text := "layer " + e.Layer + ": "
	if e.Entry != "" {
		name := e.Entry
		if len(name) > 200 {
			name = name[:200] + "…"
		}
		text += fmt.Sprintf("entry %q: ", name)
	}
	return text + e.Reason + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Limits bound the cost of unpacking an image: a layer of a few kilobytes can
// claim terabytes. A zero field means its default. A layer that exceeds a limit
// is refused with an [*Error].
type Limits struct {
	// Bytes is the uncompressed size of an image's layers; zero is 32 GiB,
	// three times the largest toolchain images in common use.
	Bytes int64
	// FileBytes is a file's size, including holes; zero is 8 GiB.
	FileBytes int64
	// Entries is the number of entries in all layers; zero is 1,000,000.
	Entries int
	// Ratio is the compression ratio of a layer larger than RatioFloor; zero is
	// 200. Files of zeros compress by up to 1,000.
	Ratio int64
	// RatioFloor is the size in bytes up to which Ratio doesn't apply; zero is
	// 256 MiB.
	RatioFloor int64
	// PathBytes is the length of a name or of a symlink's target; zero is 4096,
	// Linux's PATH_MAX.
	PathBytes int
	// Depth is the number of directories above an entry; zero is 256.
	Depth int
	// Layers is the number of layers per image; zero is 512. Docker's limit is
	// 127.
	Layers int
	// Top is the number of entries in the root directory; zero is 128. Each
	// costs a container a mount.
	Top int
	// MetadataBytes is the size of a manifest, index or configuration; zero is
	// 8 MiB. Registries accept 4 MiB.
	MetadataBytes int64
}

// WithDefaults returns l with the defaults for zero fields.
func (l Limits) WithDefaults() Limits {
	return Limits{
		Bytes:         cmp.Or(l.Bytes, 32<<30),
		FileBytes:     cmp.Or(l.FileBytes, 8<<30),
		Entries:       cmp.Or(l.Entries, 1_000_000),
		Ratio:         cmp.Or(l.Ratio, 200),
		RatioFloor:    cmp.Or(l.RatioFloor, 256<<20),
		PathBytes:     cmp.Or(l.PathBytes, 4096),
		Depth:         cmp.Or(l.Depth, 256),
		Layers:        cmp.Or(l.Layers, 512),
		Top:           cmp.Or(l.Top, 128),
		MetadataBytes: cmp.Or(l.MetadataBytes, 8<<20),
	}
}
