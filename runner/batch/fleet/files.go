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
	"github.com/caisson-run/caisson/tools/workspace"
)

type archiveBounds struct {
	// Bounds apply to the unpacked files.
	archive.Bounds
	// packed bounds the archive's size in bytes. S3 accepts 5 GiB in one request.
	packed int64
	// result and patch bound the files that are read whole, in bytes.
	result, patch int64
}

var bounds = archiveBounds{Bounds: archive.Bounds{Entries: 1_000_000, Bytes: 32 << 30, Steps: archive.MaxSteps}, packed: 5 << 30, result: 16 << 20, patch: 256 << 20}

// transferTime bounds moving one archive.
const transferTime = 30 * time.Minute

var errTransferTime = fmt.Errorf("moving an archive took longer than %s", transferTime)

// damageError means that a result can never be read.
type damageError struct{ err error }

func (e *damageError) Error() string { return e.err.Error() }
func (e *damageError) Unwrap() error { return e.err }

type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// faultReader keeps its reader's error, to tell a failing store from a damaged archive.
type faultReader struct {
	r   io.Reader
	err error
}

func (f *faultReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// packTrial writes a finished trial's directory as a compressed archive and returns its
// size. It leaves out special files and files that can't be opened. It reads the archive as
// the coordinator does, in scratch, which it makes. If that is refused, it removes what the
// agent left, part by part, and at last packs only the result: what an agent leaves must
// cost it neither its result nor what is known of it. missing names what is not packed.
func packTrial(out *os.File, dir, scratch string, b archiveBounds) (size int64, missing string, err error) {
	refused := true
	for _, part := range []string{"", batch.StateFile, batch.ArtifactsDir, batch.AgentDir} {
		if part != "" {
			missing = "its " + part
			err = removePart(dir, part)
		}
		if err == nil {
			err = rewind(out)
		}
		if err != nil {
			return 0, missing, err
		}
		err = pack(&archive.BoundedWriter{W: out, Left: b.packed}, dir, ".", b.Bounds)
		refused = isRefused(err)
		if err == nil {
			refused, err = isUnreadable(out, scratch, b)
		}
		if !refused {
			break
		}
	}
	if refused {
		missing = "all but its result"
		err = rewind(out)
		if err == nil {
			err = pack(out, filepath.Join(dir, batch.ResultFile), batch.ResultFile, archive.Bounds{Bytes: b.result})
		}
	}
	if err == nil {
		size, err = out.Seek(0, io.SeekEnd)
	}
	return size, missing, err
}

func rewind(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// removePart removes a part of a trial's directory and of its steps'. It keeps the
// trajectory, which Caisson writes.
func removePart(dir, part string) error {
	steps, err := filepath.Glob(filepath.Join(dir, batch.StepsDir, "*"))
	if err != nil {
		return err
	}
	for _, d := range append(steps, dir) {
		path, kept := filepath.Join(d, part), filepath.Join(d, batch.TrajectoryFile)
		moved := os.Rename(filepath.Join(path, batch.TrajectoryFile), kept) == nil
		if err := workspace.RemoveTree(path); err != nil {
			return err
		}
		if moved {
			if err := errors.Join(os.Mkdir(path, 0o755), os.Rename(kept, filepath.Join(path, batch.TrajectoryFile))); err != nil {
				return err
			}
		}
	}
	return nil
}

// isUnreadable reports whether the coordinator would refuse an archive. It returns false if
// this can't be found out here, for example on a full disk: then the coordinator finds out.
func isUnreadable(in *os.File, scratch string, b archiveBounds) (bool, error) {
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if os.Mkdir(scratch, 0o700) != nil {
		return false, nil
	}
	_, err := readTrial(in, scratch, b)
	_, refused := errors.AsType[*damageError](err)
	return refused, workspace.RemoveTree(scratch)
}

// pack writes a file or directory as a compressed archive, named name.
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

// readTrial unpacks a trial's archive into an empty directory and returns its result.
// The worker may be broken or hostile: the content is bounded and stays in the
// directory, and no symlink leads out of it. The error is a [damageError], a
// [storeError], or one of writing here.
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
	if n, err := io.CopyN(io.Discard, z, 1); n > 0 || !errors.Is(err, io.EOF) { // gzip's checksum is at the end
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

func isRefused(err error) bool {
	return errors.Is(err, archive.ErrMalformed) || errors.Is(err, archive.ErrEntry) || errors.Is(err, archive.ErrBound)
}

// checkSizes returns an error if a file that is read whole is too large or not regular.
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

// mayLink reports whether a name in a trial's directory belongs to what agents and
// verifiers leave. Their symlinks that lead out are left out. Workers make none
// elsewhere.
func mayLink(name string) bool {
	if rest, ok := strings.CutPrefix(name, batch.StepsDir+"/"); ok {
		_, name, _ = strings.Cut(rest, "/")
	}
	name = strings.TrimPrefix(name, batch.ControlDir+"/")
	dir, _, below := strings.Cut(name, "/")
	return below && (dir == batch.ArtifactsDir || dir == batch.AgentDir || dir == batch.VerifierDir)
}
