package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/images"
)

// Result describes an unpacked tree.
type Result struct {
	Entries int   // created in the tree
	Bytes   int64 // of the files' content
	Skipped []string
	// SkippedMore is the number of skipped entries that are not in Skipped.
	SkippedMore int
}

const maxSkipped = 20

// Unpack unpacks layers, the lowest first, into the empty directory dir. Layers
// are hostile: nothing outside dir is created, changed or read, and their cost
// is bounded. A layer that tries is refused with an [*Error]; dir must be
// discarded then.
//
// It omits what a root filesystem for untrusted commands doesn't need: owners
// and groups (the caller owns everything), the bits setuid, setgid and sticky,
// extended attributes including file capabilities, devices, pipes and sockets.
// Files become readable for all and writable only for their owner, and
// directories get mode 0755, so that commands can read them and the cache can
// always be removed. Files keep their modification times.
//
// With owners, for a root that several users write to, it keeps the layers'
// owners, groups and permission bits, and directories' sticky bits. If the
// caller is not root, it still owns everything, and may always read files and
// write to directories.
func Unpack(ctx context.Context, dir string, layers []Layer, limits Limits, owners bool, report func(l Layer, done int64)) (Result, error) {
	t, err := openTree(dir, limits)
	if err != nil {
		return Result{}, err
	}
	defer t.closeDirs()
	u := unpacker{tree: t, limits: limits, owners: owners, isRoot: os.Geteuid() == 0, buffer: make([]byte, 256<<10), seed: maphash.MakeSeed()}
	for i, l := range layers {
		u.touched = nil
		if i > 0 {
			u.touched = map[uint64]struct{}{}
		}
		if err := u.applyLayer(ctx, l, report); err != nil {
			return Result{}, err
		}
	}
	return u.done, nil
}

type unpacker struct {
	tree    *tree
	limits  Limits
	owners  bool
	isRoot  bool // and can set owners
	buffer  []byte
	done    Result
	read    int64 // bytes of the archives so far
	entries int   // in the archives so far
	// touched has the hashes of the real paths that the layer has written, and
	// their parents. Its whiteouts hide only lower layers (image-spec), so not
	// these. It is nil in the first layer, which has none below.
	touched map[uint64]struct{}
	seed    maphash.Seed
}

func (u *unpacker) hashPath(path string) uint64 { return maphash.String(u.seed, path) }

func (u *unpacker) markTouched(path string) {
	if u.touched == nil {
		return
	}
	for path != "" {
		h := u.hashPath(path)
		if _, ok := u.touched[h]; ok {
			return
		}
		u.touched[h] = struct{}{}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
}

func (u *unpacker) isTouched(path string) bool {
	_, ok := u.touched[u.hashPath(path)]
	return ok
}

func (u *unpacker) applyLayer(ctx context.Context, l Layer, report func(l Layer, done int64)) error {
	r, err := openLayer(ctx, l, u.limits, u.limits.Bytes-u.read, func(done int64) { report(l, done) })
	if err != nil {
		return err
	}
	err = u.applyArchive(r)
	u.read += r.archiveBytes + r.holeBytes
	return errors.Join(err, r.Close())
}

func (u *unpacker) applyArchive(r *layerReader) error {
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return r.verifyDigests()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // applyEntry checks names itself
			return r.classifyError("", err)
		}
		if err := u.applyEntry(r, archive, h); err != nil {
			return u.classifyError(r, h.Name, err)
		}
	}
}

func (u *unpacker) classifyError(r *layerReader, entry string, err error) error {
	if reason, ok := errors.AsType[refusal](err); ok {
		return &Error{Layer: r.layer.Digest, Entry: entry, Reason: string(reason), Err: images.ErrRefused}
	}
	for _, e := range []error{syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR, syscall.EMLINK, syscall.EINVAL, syscall.EILSEQ} {
		if errors.Is(err, e) {
			return &Error{Layer: r.layer.Digest, Entry: entry, Reason: "cannot be created", Err: fmt.Errorf("%w: %w", images.ErrRefused, err)}
		}
	}
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isLink := errors.AsType[*os.LinkError](err)
	if isPath || isLink {
		return fmt.Errorf("unpack layer %s: %w", r.layer.Digest, err)
	}
	return r.classifyError(entry, err)
}

func (u *unpacker) applyEntry(r *layerReader, archive io.Reader, h *tar.Header) error {
	if u.entries++; u.entries > u.limits.Entries {
		return refusal(fmt.Sprintf("more than %d entries", u.limits.Entries))
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, reason := splitName(h.Name, u.limits)
	if reason != "" {
		return refusal(reason)
	}
	mark, hidden, reason := parseWhiteout(parts)
	switch {
	case reason != "":
		return refusal(reason)
	case mark == aufsMetadata:
		return nil
	case mark == opaqueDirectory:
		return u.applyWhiteout(parts[:len(parts)-1])
	case mark == removedEntry:
		return u.applyWhiteout(append(slices.Clone(parts[:len(parts)-1]), hidden))
	case len(parts) == 0:
		if h.Typeflag != tar.TypeDir {
			return refusal("the root as something other than a directory")
		}
		return nil
	}
	return u.placeEntry(r, archive, h, parts)
}

func (u *unpacker) applyWhiteout(parts []string) error {
	if u.touched == nil {
		return nil
	}
	if len(parts) == 0 {
		u.tree.closeBelow(0)
		return removeHidden(u.tree.held[0].dir, ".", "", u.isTouched)
	}
	s, err := u.tree.resolvePath(parts, false, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if !u.isTouched(s.fullPath()) {
		return u.tree.removeEntry(s)
	}
	info, err := s.dir.Lstat(s.base)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the layer's own entry was removed again, or was a device
		return nil
	case err != nil || !info.IsDir():
		return err
	}
	return u.tree.hideContents(s, u.isTouched)
}

// placeEntry creates an entry, replacing any other at its path. A directory
// keeps an existing one.
func (u *unpacker) placeEntry(r *layerReader, archive io.Reader, h *tar.Header, parts []string) error {
	if u.owners && (h.Uid < 0 || h.Uid > math.MaxInt32 || h.Gid < 0 || h.Gid > math.MaxInt32) {
		return refusal(fmt.Sprintf("the owner %d:%d", h.Uid, h.Gid))
	}
	var from location
	if h.Typeflag == tar.TypeLink {
		var err error
		if from, err = u.resolveHardlink(h.Linkname); err != nil {
			return err
		}
	}
	s, err := u.tree.resolvePath(parts, true, u.markTouched)
	if err != nil {
		return err
	}
	u.markTouched(s.fullPath())
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(h, s)
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		return u.writeFile(r, archive, h, s)
	case tar.TypeSymlink:
		return u.makeSymlink(h, s)
	case tar.TypeLink:
		return u.makeHardlink(from.fullPath(), s)
	}
	// A device, pipe, socket or unknown type is not created but still replaces
	// an existing entry.
	if len(u.done.Skipped) < maxSkipped {
		u.done.Skipped = append(u.done.Skipped, "/"+s.fullPath())
	} else {
		u.done.SkippedMore++
	}
	return u.tree.removeEntry(s)
}

func (u *unpacker) makeDir(h *tar.Header, s location) error {
	if info, err := s.dir.Lstat(s.base); err != nil || !info.IsDir() {
		if err := u.tree.removeEntry(s); err != nil {
			return err
		}
		u.done.Entries++
		if err := u.tree.makeDir(s); err != nil {
			return err
		}
	}
	if !u.owners {
		return nil
	}
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Mode&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	if !u.isRoot {
		return s.dir.Chmod(s.base, mode|0o700)
	}
	if err := s.dir.Lchown(s.base, h.Uid, h.Gid); err != nil {
		return err
	}
	return s.dir.Chmod(s.base, mode)
}

// writeFile creates a file with the archive's next h.Size bytes.
func (u *unpacker) writeFile(r *layerReader, archive io.Reader, h *tar.Header, s location) error {
	if h.Size > u.limits.FileBytes {
		return refusal(fmt.Sprintf("a file of %d bytes: want at most %d", h.Size, u.limits.FileBytes))
	}
	f, err := u.tree.createFile(s)
	if err != nil {
		return err
	}
	n, err := u.copyContent(r, f, archive)
	mode := plainMode(h.Mode)
	if u.owners {
		mode = fs.FileMode(h.Mode & 0o777)
		if !u.isRoot {
			mode |= 0o400
		} else if err == nil {
			err = f.Chown(h.Uid, h.Gid)
		}
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	u.done.Entries++
	u.done.Bytes += n
	at := plainTime(h.ModTime)
	return s.dir.Chtimes(s.base, at, at)
}

// copyContent writes a file's content. A sparse file's holes count.
func (u *unpacker) copyContent(r *layerReader, f *os.File, archive io.Reader) (total int64, err error) {
	for {
		if r.ctx.Err() != nil {
			return total, context.Cause(r.ctx) // storedReader checks too, but doesn't see holes
		}
		before := r.archiveBytes
		n, err := archive.Read(u.buffer)
		if holes := int64(n) - (r.archiveBytes - before); holes > 0 {
			if bomb := r.checkExpansion(holes); bomb != nil {
				return total, bomb
			}
		}
		if _, werr := f.Write(u.buffer[:n]); werr != nil {
			return total, werr
		}
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		} else if err != nil {
			return total, err
		}
	}
}

func (u *unpacker) makeSymlink(h *tar.Header, s location) error {
	target := h.Linkname
	switch {
	case target == "":
		return refusal("a symlink without a target")
	case len(target) > u.limits.PathBytes:
		return refusal(fmt.Sprintf("a symlink target of %d bytes: want at most %d", len(target), u.limits.PathBytes))
	case strings.ContainsRune(target, 0):
		return refusal("a symlink target containing a NUL")
	}
	if err := u.tree.removeEntry(s); err != nil {
		return err
	}
	if err := u.tree.countEntry(); err != nil {
		return err
	}
	u.done.Entries++
	if err := s.dir.Symlink(target, s.base); err != nil || !u.owners || !u.isRoot {
		return err
	}
	return s.dir.Lchown(s.base, h.Uid, h.Gid)
}

// resolveHardlink returns the location of a hard link's target, which must be a
// regular file in the tree.
func (u *unpacker) resolveHardlink(name string) (location, error) {
	parts, reason := splitName(name, u.limits)
	if reason != "" || len(parts) == 0 {
		return location{}, refusal("a hard link to " + reason)
	}
	s, err := u.tree.resolvePath(parts, false, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return location{}, refusal("a hard link to a missing file")
	} else if err != nil {
		return location{}, err
	}
	return s, requireRegular(s.dir, s.base)
}

func requireRegular(dir *os.Root, name string) error {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refusal("a hard link to a missing file")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return refusal("a hard link to something other than a regular file")
	}
	return nil
}

func (u *unpacker) makeHardlink(from string, s location) error {
	if from == s.fullPath() {
		return nil
	}
	if err := u.tree.removeEntry(s); err != nil {
		return err
	}
	root := u.tree.held[0].dir
	if err := requireRegular(root, from); err != nil { // removeEntry may have removed it
		return err
	}
	if err := u.tree.countEntry(); err != nil {
		return err
	}
	u.done.Entries++
	return root.Link(from, s.fullPath())
}

func plainMode(mode int64) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

// plainTime returns t, or the epoch if some file system can't store it.
func plainTime(t time.Time) time.Time {
	if s := t.Unix(); s < 0 || s > math.MaxInt32 {
		return time.Unix(0, 0)
	}
	return t
}
