package programs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-run/caisson/limits/state"
)

const maxProgramBytes = 512 << 20

// Embedded returns the names of the embedded programs. Only a release build has
// any.
func Embedded() []string {
	sums, err := readSums(files)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(sums))
	for _, s := range sums {
		names = append(names, s.name)
	}
	return names
}

var files fs.FS

type programSum struct{ sum, name string }

func readSums(from fs.FS) ([]programSum, error) {
	if from == nil {
		return nil, nil
	}
	text, err := fs.ReadFile(from, "files/SHA256SUMS")
	if err != nil {
		return nil, err
	}
	var sums []programSum
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 2 || len(f[0]) != hex.EncodedLen(sha256.Size) {
			return nil, fmt.Errorf("SHA256SUMS: invalid line %q", line)
		}
		sums = append(sums, programSum{f[0], f[1]})
	}
	return sums, nil
}

// UnpackError reports an embedded program that could not be unpacked.
type UnpackError struct {
	Name string
	Err  error
}

func (e *UnpackError) Error() string { return "unpack " + e.Name + ": " + e.Err.Error() }

func (e *UnpackError) Unwrap() error { return e.Err }

// unpackProgram returns the path of an embedded program in the cache, and
// unpacks it if it is missing or changed. It returns "" if this build does not
// embed it. The directory is named by the program's sum, which is verified
// before the file gets its name.
func (f *Finder) unpackProgram(name string) (string, error) {
	sums, err := readSums(files)
	if err != nil {
		return "", err
	}
	for _, s := range sums {
		if s.name != name {
			continue
		}
		if f.Cache == "" {
			return "", errors.New("no cache directory: neither HOME nor XDG_CACHE_HOME is an absolute path")
		}
		dir := filepath.Join(f.Cache, s.sum)
		path := filepath.Join(dir, name)
		if err := makePrivateDir(dir); err != nil {
			return "", err
		}
		if isIntact(path, s.sum) {
			return path, nil
		}
		return path, writeProgram(files, s, path)
	}
	return "", nil
}

// unpackedTime is an unpacked program's modification time. Hashing the program
// at each start would take a tenth of a second; writing to it changes its time.
var unpackedTime = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// isIntact reports whether an unpacked program is as [writeProgram] left it. If
// its time differs, it is read: not all file systems and backups keep times.
func isIntact(path, sum string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o222 != 0 || state.UnsafeReason(info) != "" {
		return false
	}
	if info.ModTime().Equal(unpackedTime) {
		return true
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil || hex.EncodeToString(h.Sum(nil)) != sum {
		return false
	}
	_ = os.Chtimes(path, unpackedTime, unpackedTime) // if that fails, it is read again
	return true
}

func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range []string{filepath.Dir(dir), dir} {
		info, err := os.Lstat(d)
		if err != nil {
			return err
		}
		if !info.IsDir() || state.UnsafeReason(info) != "" {
			return fmt.Errorf("%s: not a directory that only its owner, the calling user, can write", d)
		}
	}
	return nil
}

// writeProgram writes a program beside path and renames it, so that processes
// that unpack at the same time never see half a file.
func writeProgram(from fs.FS, s programSum, path string) (err error) {
	packed, err := from.Open("files/" + s.name + ".zst")
	if err != nil {
		return err
	}
	defer func() { _ = packed.Close() }() // only read
	r, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer r.Close()
	out, err := os.CreateTemp(filepath.Dir(path), s.name+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(out.Name()))
		}
	}()
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, h), io.LimitReader(r, maxProgramBytes))
	if err == nil && hex.EncodeToString(h.Sum(nil)) != s.sum {
		err = errors.New("its checksum differs: this build is damaged")
	}
	if err == nil {
		err = out.Chmod(0o555) // commands in the sandbox are other users
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	_ = os.Chtimes(out.Name(), unpackedTime, unpackedTime) // if that fails, isIntact reads it
	return os.Rename(out.Name(), path)
}
