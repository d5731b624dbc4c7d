package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Volume is an overlay for an engine to mount. The engine must be root and see
// this process and its mounts.
type Volume struct {
	// Options are the mount's flags and overlayfs options, separated by commas.
	// They name the layers by this process's descriptors, which, unlike paths,
	// can't be swapped and need no quoting.
	Options string

	lowers      []*os.File // the top one first
	upper, work *os.File
	root        node // the upper layer, which the mount's root shows
}

func (p *Mounts) engineVolume() (_ *Volume, err error) {
	v := &Volume{lowers: append(slices.Clone(p.cleanup.layers.frozen), p.cleanup.workspace)}
	defer func() {
		if err != nil {
			v.closeLayers()
		}
	}()
	for name, file := range map[string]**os.File{upperName: &v.upper, workName: &v.work} {
		if *file, err = openBelow(p.cleanup.layers.dir, name, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return nil, err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(v.upper.Fd()), &st); err != nil {
		return nil, fmt.Errorf("examine layers: %w", err)
	}
	v.root = node{st.Dev, st.Ino}
	options := []string{"nosuid", "nodev"}
	for _, l := range []struct {
		key   string
		files []*os.File
	}{{"lowerdir", v.lowers}, {"upperdir", []*os.File{v.upper}}, {"workdir", []*os.File{v.work}}} {
		var paths []string
		for _, f := range l.files {
			paths = append(paths, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()))
		}
		options = append(options, l.key+"="+strings.Join(paths, ":"))
	}
	v.Options = strings.Join(append(options, overlayfs.Settings()...), ",")
	return v, nil
}

func (v *Volume) closeLayers() {
	closeAll(v.upper, v.work)
}

// Clean removes the engine kernel's directory in the work directory, and
// reports whether nothing is left. Call it when nothing is mounted any more.
// The directory belongs to root: its parent's owner can remove it if it is
// empty. If commands removed files, it contains a whiteout, which only the next
// mount removes.
func (v *Volume) Clean() bool {
	err := unix.Unlinkat(int(v.work.Fd()), workName, unix.AT_REMOVEDIR)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// Check returns an error unless the mounted overlay consists of the open
// directories: an engine in another PID namespace could take another process's
// descriptors for ours. It compares the top level's names, types, sizes and
// modification times, and inodes if the layers are on one file system and the
// kernel is the host's.
func (v *Volume) Check(ctx context.Context, view workspace.View, ownKernel bool) error {
	want, sameFS, err := v.expectedEntries(ctx)
	if err != nil {
		return fmt.Errorf("examine layers: %w", err)
	}
	got, err := view.List(ctx, ".", 1)
	if err != nil {
		return fmt.Errorf("look at the overlay: %w", err)
	}
	for _, e := range got.Entries {
		w, ok := want[e.Path]
		switch {
		case !ok, w.Type != e.Type, w.Size != e.Size, !w.ModTime.Equal(e.ModTime) && e.Type == workspace.TypeFile,
			// The upper bits, if used (xino), distinguish layers.
			sameFS && !ownKernel && w.Inode != 0 && uint32(w.Inode) != uint32(e.Inode):
			return v.otherOverlayError(e.Path)
		}
		delete(want, e.Path)
	}
	for name := range want {
		if !got.Truncated {
			return v.otherOverlayError(name)
		}
	}
	return nil
}

func (v *Volume) otherOverlayError(name string) error {
	return fmt.Errorf("%w: the engine mounted another overlay than was asked for, or the workspace was changed meanwhile (%q differs): "+
		"try again, use the gvisor backend, or bind mode", sandbox.ErrUnavailable, name)
}

// expectedEntries returns what the overlay's top level must contain.
func (v *Volume) expectedEntries(ctx context.Context) (_ map[string]workspace.Entry, sameFS bool, err error) {
	var lower unix.Stat_t
	if err := unix.Fstat(int(v.lowers[len(v.lowers)-1].Fd()), &lower); err != nil {
		return nil, false, err
	}
	want := map[string]workspace.Entry{}
	for i, layer := range slices.Backward(append([]*os.File{v.upper}, v.lowers...)) {
		original := i == len(v.lowers)
		r, err := workspace.NewReader(layer, workspace.ReaderOptions{})
		if err != nil {
			return nil, false, err
		}
		list, err := r.List(ctx, ".", 1)
		if err != nil {
			return nil, false, err
		}
		for _, e := range list.Entries {
			if !original {
				e.Inode = 0 // the overlay may show the lower file's instead
			}
			want[e.Path] = e
			if original || e.Type != workspace.TypeDevice {
				continue
			}
			var st unix.Stat_t
			err := unix.Fstatat(int(layer.Fd()), e.Path, &st, unix.AT_SYMLINK_NOFOLLOW)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, false, err
			}
			if st.Rdev == 0 { // a whiteout
				delete(want, e.Path)
			}
		}
	}
	return want, lower.Dev == v.root.dev, nil
}
