package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// mergeLowers replaces the frozen layers by one with the same content. Files in
// it are hard links, since no frozen layer is written to; directories and
// whiteouts are new. Other sessions keep the layers that they use.
func mergeLowers(ctx context.Context, l *Layers) (err error) {
	before := l.lowers.Lowers
	name := newLayerName()
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("merge layers: %w", err), dropLower(l, name))
		}
	}()
	if err := makeFrozen(l, name); err != nil {
		return err
	}
	from, err := openLayers(l.Lowers())
	if err != nil {
		return err
	}
	defer from.close()
	upper := frozenPath(l, name, UpperDir)
	if err := os.Mkdir(upper, 0o700); err != nil {
		return err
	}
	to, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	m := merger{ctx: ctx}
	if err := m.mergeDirectory(".", from, to); err != nil {
		return err
	}
	if err := l.writeLowers([]string{name}); err != nil {
		return err
	}
	l.lowers.Lowers = []string{name}
	var all []error
	for _, old := range before {
		all = append(all, dropLower(l, old))
	}
	return errors.Join(all...)
}

// merger merges layers.
type merger struct {
	ctx                context.Context
	depth, descriptors int
}

// mergeDirectory makes the content of from in the open directory to, and then sets
// the metadata of the top layer.
func (m *merger) mergeDirectory(rel string, from stack, to int) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	if m.depth >= maxScanDepth || m.descriptors > maxStackDescriptors {
		return fmt.Errorf("%s is in too many directories", quote(rel))
	}
	m.depth++
	m.descriptors += len(from)
	defer func() { m.depth, m.descriptors = m.depth-1, m.descriptors-len(from) }()
	err := from.eachName(func(name string) error { return m.mergeEntry(join(rel, name), name, from, to) })
	if err != nil {
		return err
	}
	return copyDirectoryMetadata(to, from[0].fd)
}

// mergeEntry makes name in the open directory to.
func (m *merger) mergeEntry(rel, name string, from stack, to int) error {
	n, err := from.stat(name)
	if err == nil && n.typ == workspace.TypeDir {
		return m.mergeSubdirectory(rel, name, from, to)
	}
	if err == nil && n.whiteout { // the owner of another may not be allowed to link it
		err = overlayfs.MakeWhiteout(to, name)
	} else if err == nil {
		err = unix.Linkat(from.layer(n.layer).fd, name, to, name, 0)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", quote(rel), err)
	}
	return nil
}

// mergeSubdirectory makes the directory name in the open directory to.
func (m *merger) mergeSubdirectory(rel, name string, from stack, to int) error {
	below, hides, err := from.openDir(name)
	if err != nil {
		return fmt.Errorf("%s: %w", quote(rel), err)
	}
	defer below.close()
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return fmt.Errorf("%s: %w", quote(rel), err)
	}
	dir, err := (tree{to}).openDir(name)
	if err != nil {
		return fmt.Errorf("%s: %w", quote(rel), err)
	}
	defer unix.Close(dir)
	if hides {
		if err := unix.Fsetxattr(dir, overlayfs.OpaqueAttribute, []byte("y"), 0); err != nil {
			return fmt.Errorf("%s: %w", quote(rel), err)
		}
	}
	return m.mergeDirectory(rel, below, dir)
}

// overlayPrefix begins the names of the kernel's own attributes.
const overlayPrefix = "user.overlay."

// copyDirectoryMetadata copies owner, mode, times and attributes of one open
// directory to another, except the kernel's own attributes.
func copyDirectoryMetadata(to, from int) error {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	} else {
		_ = unix.Fchown(to, -1, int(st.Gid)) // fails unless it is one of the user's groups
	}
	if err := copyAttributes(to, from); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", to), times, 0)
}

// copyAttributes copies the user's extended attributes and the access control
// lists of a directory, as far as the file system has them.
func copyAttributes(to, from int) error {
	path := fmt.Sprintf("/proc/self/fd/%d", from) // it may be open by O_PATH
	buf := make([]byte, 64<<10)                   // the kernel's bound of both, XATTR_LIST_MAX and XATTR_SIZE_MAX
	n, err := unix.Listxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes: %w", err)
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") || strings.HasPrefix(name, overlayPrefix) {
			continue
		}
		n, err := unix.Getxattr(path, name, buf)
		if err == nil {
			err = unix.Fsetxattr(to, name, buf[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("copy attribute %q: %w", name, err)
		}
	}
	return nil
}
