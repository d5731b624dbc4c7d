package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/caisson-run/caisson/images"
	dockerfiles "github.com/caisson-run/caisson/images/dockerfile"
)

// Bounds of a build's context. Something larger is usually a mistake: a home
// directory, a disk image.
const (
	maxContextBytes   = 4 << 30
	maxContextEntries = 500_000
	maxIgnoreBytes    = 1 << 20
)

// The files of a context that the builder itself reads; no pattern excludes
// them.
const (
	dockerfile = "Dockerfile"
	ignoreFile = ".dockerignore"
)

// buildContext is the directory of a Dockerfile, sent to a builder. It is read
// through an os.Root: a symlink is sent as a symlink, and nothing outside the
// directory is opened.
type buildContext struct {
	root   *os.Root
	ignore *patternmatcher.PatternMatcher
	left   int64 // bytes that may still be sent
	// dockerfile is the Dockerfile's content, sent as it was checked.
	dockerfile []byte
}

// openContext opens the directory and reads its ignore file. Without a
// Dockerfile it fails with images.ErrNotFound. The caller must close the
// context.
func openContext(dir string) (*buildContext, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no directory %s", images.ErrNotFound, dir)
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", images.ErrInvalid, err)
	}
	c := &buildContext{root: root, left: maxContextBytes}
	if err := c.openDir(dir); err != nil {
		_ = root.Close() // only read
		return nil, err
	}
	return c, nil
}

func (c *buildContext) openDir(dir string) error {
	info, err := c.root.Stat(dockerfile)
	switch {
	case err != nil:
		return fmt.Errorf("%w: the directory %s has no %s", images.ErrNotFound, dir, dockerfile)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: its %s is no file", images.ErrInvalid, dockerfile)
	}
	if c.dockerfile, err = dockerfiles.ReadFile(c.root, dockerfile, dockerfiles.MaxBytes); err != nil {
		return fmt.Errorf("%w: its %s: %w", images.ErrInvalid, dockerfile, err)
	}
	patterns, err := c.readPatterns()
	if err == nil {
		c.ignore, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return fmt.Errorf("%w: its %s: %w", images.ErrInvalid, ignoreFile, err)
	}
	return nil
}

func (c *buildContext) readPatterns() ([]string, error) {
	text, err := dockerfiles.ReadFile(c.root, ignoreFile, maxIgnoreBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return ignorefile.ReadAll(bytes.NewReader(text))
}

func (c *buildContext) close() { _ = c.root.Close() }

// writeTar sends the directory's files, directories and links as a tar archive,
// owned by root, without what .dockerignore names. It skips devices, sockets
// and pipes.
func (c *buildContext) writeTar(ctx context.Context, w io.Writer) error {
	tw := tar.NewWriter(w)
	entries := 0
	err := fs.WalkDir(c.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case name == ".":
			return nil
		}
		if entries++; entries > maxContextEntries {
			return fmt.Errorf("%w: more than %d entries: leave some out by a %s", images.ErrInvalid, maxContextEntries, ignoreFile)
		}
		ignored, err := c.isIgnored(name)
		if err != nil {
			return err
		}
		if ignored {
			if e.IsDir() && !c.ignore.Exclusions() {
				return fs.SkipDir
			}
			return nil
		}
		return c.addEntry(tw, name)
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return fmt.Errorf("read the build's directory: %w", err)
	}
	return nil
}

func (c *buildContext) isIgnored(name string) (bool, error) {
	if slices.Contains([]string{dockerfile, ignoreFile}, name) {
		return false, nil
	}
	ignored, err := c.ignore.MatchesOrParentMatches(name)
	if err != nil {
		return false, fmt.Errorf("%w: %s: %w", images.ErrInvalid, ignoreFile, err)
	}
	return ignored, nil
}

func (c *buildContext) addEntry(tw *tar.Writer, name string) error {
	if name == dockerfile {
		return c.addDockerfile(tw)
	}
	info, err := c.root.Lstat(name)
	if err != nil {
		return err
	}
	target := ""
	switch info.Mode().Type() {
	case fs.ModeSymlink:
		if target, err = c.root.Readlink(name); err != nil {
			return err
		}
	case fs.ModeDir:
	case 0:
		return c.addFile(tw, name, info)
	default:
		return nil
	}
	h, err := tarHeader(name, target, info)
	if err != nil {
		return err
	}
	return tw.WriteHeader(h)
}

// addDockerfile sends the Dockerfile that was checked, even if the file has
// changed.
func (c *buildContext) addDockerfile(tw *tar.Writer) error {
	info, err := c.root.Stat(dockerfile)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: dockerfile, Mode: int64(info.Mode().Perm()), Size: int64(len(c.dockerfile)), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = tw.Write(c.dockerfile)
	return err
}

// addFile sends a file. If the file is replaced while it is read, it returns an
// error instead of sending another file's content.
func (c *buildContext) addFile(tw *tar.Writer, name string, seen fs.FileInfo) error {
	f, err := c.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || !os.SameFile(seen, info) {
		return fmt.Errorf("%w: %s was replaced while it was read", images.ErrInvalid, name)
	}
	if c.left -= info.Size(); c.left < 0 {
		return fmt.Errorf("%w: more than %d GiB: leave some out by a %s", images.ErrInvalid, maxContextBytes>>30, ignoreFile)
	}
	h, err := tarHeader(name, "", info)
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(tw, f, info.Size()); err != nil {
		return fmt.Errorf("%s became shorter while it was read: %w", name, err)
	}
	return nil
}

// tarHeader describes an entry without its owner: in an image, everything
// copied belongs to root.
func tarHeader(name, target string, info fs.FileInfo) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(plain{info}, target)
	if err != nil {
		return nil, err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	h.AccessTime, h.ChangeTime = h.ModTime, h.ModTime
	h.Format = tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	return h, nil
}

// plain hides what fs.FileInfo adds for the system, such as owners and device
// numbers.
type plain struct{ fs.FileInfo }

func (plain) Sys() any { return nil }
