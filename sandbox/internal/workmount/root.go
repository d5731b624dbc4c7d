package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// RootOptions configures [StageRoot]. Image, Dir and Cleanup are required.
type RootOptions struct {
	// Image is the directory of the unpacked image, which is not written to.
	Image string
	// Dir is the session's own directory, below the state directory.
	Dir string
	// Cleanup is the session's cleanup list. Directories and mounts are added
	// to it before they are made.
	Cleanup *ownership.CleanupList
	// UserNamespace maps the ids of the image's files into the container's user
	// namespace; nil maps none. UID and GID own the root directory: the
	// container's root, as this process sees its ids.
	UserNamespace *os.File
	UID, GID      int
}

func (o RootOptions) newCleanup() (*cleanup, error) {
	dir, err := os.OpenFile(o.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open session directory: %w", err)
	}
	return &cleanup{list: o.Cleanup, base: o.Dir, dir: dir}, nil
}

// Directories of an ephemeral root, below RootOptions.Dir.
const (
	rootLayersDir = "root"
	rootMountsDir = "root-mounts"
)

// imageMountsDir contains the mounts of an image's binds, below the session's
// directory.
const imageMountsDir = "image-mounts"

// Root is a container's ephemeral root: an overlay of an image's directory and
// a writable layer. The caller of [StageRoot] must call [Root.Close].
type Root struct {
	// Path is the staged root. Layer is the directory that receives all writes.
	Path, Layer string

	cleanup *cleanup
	opened  []*os.File // layers of an overlay that is mounted later
}

// StageRoot mounts an ephemeral root below o.Dir. After an error nothing is
// left. It returns ErrUnsupported if this process or the file system can't
// mount an overlay.
func StageRoot(o RootOptions) (_ *Root, err error) {
	image, err := os.OpenFile(o.Image, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	defer func() { _ = image.Close() }()
	c, err := o.newCleanup()
	if err != nil {
		return nil, err
	}
	r := &Root{cleanup: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	layers, err := r.makeLayers(o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = layers.Close() }()
	if err := r.mountLayers(o, image, layers); err != nil {
		return nil, rootError(o, err)
	}
	return r, nil
}

// makeLayers makes the layer's directories, after adding them to the cleanup
// list.
func (r *Root) makeLayers(o RootOptions) (*os.File, error) {
	base, err := r.cleanup.makeDir(rootLayersDir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("make layer of root: %w", err)
	}
	r.Layer = filepath.Join(base, upperName)
	for _, name := range []string{r.Layer, filepath.Join(base, workName)} {
		if err := os.Mkdir(name, 0o700); err != nil {
			return nil, fmt.Errorf("make layer of root: %w", err)
		}
	}
	// It becomes the container's root directory.
	if err := errors.Join(os.Chmod(r.Layer, 0o755), os.Chown(r.Layer, o.UID, o.GID)); err != nil {
		return nil, fmt.Errorf("make layer of root: %w", err)
	}
	f, err := openBelow(r.cleanup.dir, rootLayersDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open layer of root: %w", err)
	}
	if err := (&overlayLayers{path: base, dir: f}).probeFileSystem(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("root: %w: the file system of %s can't hold an overlay's layer (%w): "+
			"use a state directory (XDG_STATE_HOME) on a local disk, such as ext4, xfs or btrfs", sandbox.ErrUnsupported, base, err)
	}
	return f, nil
}

// mountLayers mounts the overlay and attaches it. Only the image's mount is
// id-mapped: written files have the ids of the container's user namespace on
// the disk too, so none belongs to the host's root.
func (r *Root) mountLayers(o RootOptions, image, layers *os.File) error {
	s := &stager{cleanup: r.cleanup, userns: o.UserNamespace}
	if err := s.makeMountsDir(rootMountsDir, overlayMounts+1); err != nil {
		return err
	}
	merged, source, err := s.stageLayers([]*os.File{image}, layers, nil)
	if err != nil {
		return err
	}
	r.Path = source
	return merged.Close()
}

// rootError adds a hint to an error of mounting a root.
func rootError(o RootOptions, err error) error {
	switch {
	case errors.Is(err, errNoMounts), errors.Is(err, errNoIDMap):
		return fmt.Errorf("root: %w: this process may not mount an overlay of the image (%w): run as root, or use the docker backend", sandbox.ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EREMOTE), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EROFS):
		return fmt.Errorf("root: %w: no overlay can be made of the image %s and a layer in %s (%w): "+
			"keep both on a local disk (XDG_CACHE_HOME, XDG_STATE_HOME), or use the docker backend", sandbox.ErrUnsupported, o.Image, o.Dir, err)
	}
	return fmt.Errorf("mount root: %w", err)
}

// RemoveStaging removes the staged mount. Call it once the container runs and
// has its own mount. A second call does nothing.
func (r *Root) RemoveStaging() error { return r.cleanup.removeStaging() }

// Close removes the mount and the layer with all its files. Call it when the
// container is gone. It is idempotent. After an error it may be called again,
// and anything left stays in the cleanup list.
func (r *Root) Close() error {
	closeAll(r.opened...)
	r.opened = nil
	if err := r.cleanup.closeAll(context.Background()); err != nil {
		return fmt.Errorf("remove root: %w", err)
	}
	return nil
}

// ImageBinds are mounts of an image's files with other owners, for an engine
// that mounts them by path. The caller of [StageImage] must call
// [ImageBinds.Close].
type ImageBinds struct {
	// Paths are the paths of the mounts.
	Paths []string

	cleanup *cleanup
}

// StageImage attaches a read-only mount of each source below o.Dir, id-mapped
// by o.UserNamespace. After an error nothing is left.
func StageImage(o RootOptions, sources []string) (_ *ImageBinds, err error) {
	c, err := o.newCleanup()
	if err != nil {
		return nil, err
	}
	b := &ImageBinds{cleanup: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	s := &stager{cleanup: c}
	if err := s.makeMountsDir(imageMountsDir, len(sources)); err != nil {
		return nil, err
	}
	for _, source := range sources {
		f, err := os.OpenFile(source, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, fmt.Errorf("mount image: %w", err)
		}
		path, err := s.stageClone(f, true, o.UserNamespace)
		_ = f.Close()
		if err != nil {
			return nil, ownersError(source, err)
		}
		b.Paths = append(b.Paths, path)
	}
	return b, nil
}

// RemoveStaging removes the mounts. Call it once the container runs and has its
// own mounts. A second call does nothing.
func (b *ImageBinds) RemoveStaging() error { return b.cleanup.removeStaging() }

// Close removes the mounts. It is idempotent. After an error it may be called
// again, and anything left stays in the cleanup list.
func (b *ImageBinds) Close() error {
	if err := b.cleanup.closeAll(context.Background()); err != nil {
		return fmt.Errorf("remove image mounts: %w", err)
	}
	return nil
}
