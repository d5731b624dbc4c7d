package fleet

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// archiveBounds bound the files of one trial.
type archiveBounds struct {
	// Bounds are of the unpacked files.
	archive.Bounds
	// packed is the size of the archive in bytes. S3 has 5 GiB for one request.
	packed int64
	// result and patch are the sizes of the files that are read whole, in bytes.
	result, patch int64
}

// bounds are those of all trials.
var bounds = archiveBounds{Bounds: archive.Bounds{Entries: 1_000_000, Bytes: 32 << 30, Steps: archive.MaxSteps}, packed: 5 << 30, result: 16 << 20, patch: 256 << 20}

// transferTime bounds bringing one archive to the store or from it.
const transferTime = 30 * time.Minute

var errTransferTime = fmt.Errorf("moving an archive took longer than %s", transferTime)

// damageError is a result that can't be read whenever it is read.
type damageError struct{ err error }

func (e *damageError) Error() string { return e.err.Error() }
func (e *damageError) Unwrap() error { return e.err }

// storeError is a fault of the store.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// faultReader keeps the error of its reader, to tell a store that fails from an archive that
// is damaged.
type faultReader struct {
	r   io.Reader
	err error
}

// Read reads from the reader.
func (f *faultReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// packTrial writes the directory of a finished trial as a compressed archive and returns its
// size. Special files, and what can't be opened, are left out. If the coordinator would refuse
// the files, the archive has the result alone, and whole is false: what an agent leaves must
// not take its result away.
func packTrial(out *os.File, dir string, b archiveBounds) (size int64, whole bool, err error) {
	err = pack(&archive.BoundedWriter{W: out, Left: b.packed}, dir, ".", b.Bounds)
	if err == nil {
		err = checkSizes(dir, b)
	}
	whole = err == nil
	if isRefused(err) {
		err = out.Truncate(0)
		if err == nil {
			_, err = out.Seek(0, io.SeekStart)
		}
		if err == nil {
			err = pack(out, filepath.Join(dir, batch.ResultFile), batch.ResultFile, archive.Bounds{Bytes: b.result})
		}
	}
	if err == nil {
		size, err = out.Seek(0, io.SeekCurrent)
	}
	return size, whole, err
}

// pack writes a file or directory as a compressed archive, in which it has a name.
func pack(out io.Writer, path, name string, b archive.Bounds) error {
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	leaveOut := func(_ string, err error) error {
		if errors.Is(err, archive.ErrSpecial) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENAMETOOLONG) {
			return nil
		}
		return err
	}
	return errors.Join(archive.Pack(z, path, archive.PackOptions{Name: name, Bounds: b, LeaveOut: leaveOut}), z.Close())
}

// readTrial unpacks the archive of a trial into an empty directory and returns its result. The
// archive may be of a worker that is broken or hostile: what it has is bounded and stays in
// the directory, and no symlink leads out of it. The error is
// a [damageError] or a [storeError], or one of writing here.
func readTrial(in io.Reader, dir string, b archiveBounds) (batch.Result, error) {
	source := &faultReader{r: in}
	r, err := unpackTrial(source, dir, b)
	if source.err != nil {
		err = &storeError{source.err}
	}
	return r, err
}

func unpackTrial(in io.Reader, dir string, b archiveBounds) (r batch.Result, err error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return r, &damageError{err}
	}
	content := &faultReader{r: z}
	var refused error
	err = archive.UnpackWith(content, dir, archive.UnpackOptions{Bounds: b.Bounds, Links: &archive.LinkRule{LeftOut: func(name, _ string) {
		if !mayLink(name) {
			refused = fmt.Errorf("%w: %q is a symlink", archive.ErrEntry, name)
		}
	}}})
	err = cmp.Or(err, refused)
	if err != nil && (content.err != nil || isRefused(err)) {
		return r, &damageError{err}
	}
	if err != nil {
		return r, err
	}
	if n, err := io.CopyN(io.Discard, z, 1); n > 0 || !errors.Is(err, io.EOF) { // the checksum of gzip is at the end
		return r, &damageError{errors.Join(errors.New("the archive does not end"), err)}
	}
	if err := checkSizes(dir, b); err != nil {
		return r, &damageError{err}
	}
	if r, err = batch.ReadResult(dir); err != nil {
		return r, &damageError{err}
	}
	return r, nil
}

// isRefused reports whether an error is that of an archive.
func isRefused(err error) bool {
	return errors.Is(err, archive.ErrMalformed) || errors.Is(err, archive.ErrEntry) || errors.Is(err, archive.ErrBound)
}

// checkSizes returns an error for a file that is read whole and too large, or is no file.
func checkSizes(dir string, b archiveBounds) error {
	for name, size := range map[string]int64{batch.ResultFile: b.result, batch.PatchFile: b.patch} {
		info, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("%w: %s is no file", archive.ErrEntry, name)
		case info.Size() > size:
			return fmt.Errorf("%w: %s has more than %d bytes", archive.ErrBound, name, size)
		}
	}
	return nil
}

// mayLink reports whether a name in the directory of a trial is of what agents and verifiers
// leave, of which a symlink that leads out is left out. Elsewhere no worker makes one.
func mayLink(name string) bool {
	if rest, ok := strings.CutPrefix(name, batch.StepsDir+"/"); ok {
		_, name, _ = strings.Cut(rest, "/")
	}
	name = strings.TrimPrefix(name, batch.ControlDir+"/")
	dir, _, below := strings.Cut(name, "/")
	return below && (dir == batch.ArtifactsDir || dir == batch.AgentDir || dir == batch.VerifierDir)
}
