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

// unpacked says what unpacking layers did, besides the tree.
type Result struct {
	Entries int   // that the tree was made of
	Bytes   int64 // content of files
	Skipped []string
	// SkippedMore counts what Skipped has no room for.
	SkippedMore int
}

// maxSkipped bounds unpacked.Skipped.
const maxSkipped = 20

// unpack puts layers, the lowest first, into the empty folder dir. Layers are
// hostile: nothing outside of dir is made, changed or read, whatever they hold,
// and what they may cost is bounded. A layer that tries to is refused with a
// [*Error], and what dir holds then is worthless.
//
// What a root filesystem for untrusted commands has no use for is left out:
// owners and groups (everything belongs to the caller), the bits setuid, setgid
// and sticky, extended attributes with file capabilities among them, devices,
// pipes and sockets. Files become readable for everybody and writable for their
// owner alone, folders 0755, so that the commands' identity can read them and
// the cache can always be removed. Modification times of files are kept.
func Unpack(ctx context.Context, dir string, layers []Layer, limits Limits, report func(l Layer, done int64)) (Result, error) {
	t, err := openTree(dir, limits)
	if err != nil {
		return Result{}, err
	}
	defer t.closeDirs()
	u := unpacker{tree: t, limits: limits, buffer: make([]byte, 256<<10), seed: maphash.MakeSeed()}
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

// unpacker puts one layer after the other into a tree.
type unpacker struct {
	tree    *tree
	limits  Limits
	buffer  []byte
	done    Result
	read    int64 // bytes of the archives so far
	entries int   // entries of the archives so far
	// touched are the hashes of the real paths that the layer has put
	// something at, or above: its own whiteouts don't hide these (image-spec:
	// they hide lower layers only). Nil in the first layer, which has none below.
	touched map[uint64]struct{}
	seed    maphash.Seed
}

func (u *unpacker) hashPath(path string) uint64 { return maphash.String(u.seed, path) }

// touch notes a real path and those above it.
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

// apply puts one layer over what is there.
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
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are judged below
			return r.classifyError("", err)
		}
		if err := u.applyEntry(r, archive, h); err != nil {
			return u.classifyError(r, h.Name, err)
		}
	}
}

// fault tells the layer's faults from the machine's.
func (u *unpacker) classifyError(r *layerReader, entry string, err error) error {
	reason := refusal("")
	if errors.As(err, &reason) {
		return &Error{Layer: r.layer.Digest, Entry: entry, Reason: string(reason), Err: images.ErrRefused}
	}
	for _, e := range []error{syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR, syscall.EMLINK, syscall.EINVAL, syscall.EILSEQ} {
		if errors.Is(err, e) {
			return &Error{Layer: r.layer.Digest, Entry: entry, Reason: "it can't be made", Err: fmt.Errorf("%w: %w", images.ErrRefused, err)}
		}
	}
	disk := (*fs.PathError)(nil)
	link := (*os.LinkError)(nil)
	if errors.As(err, &disk) || errors.As(err, &link) {
		return fmt.Errorf("unpack layer %s: %w", r.layer.Digest, err)
	}
	return r.classifyError(entry, err)
}

// entry puts one entry into the tree.
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
			return refusal("the root as something else than a folder")
		}
		return nil
	}
	return u.placeEntry(r, archive, h, parts)
}

// hide takes away what lower layers have at parts, and below.
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
	case errors.Is(err, fs.ErrNotExist): // what the layer put there is gone again, or was a device
		return nil
	case err != nil || !info.IsDir():
		return err
	}
	return u.tree.hideContents(s, u.isTouched)
}

// put makes an entry in place of whatever is there, but for a folder in place
// of a folder, which is the same one.
func (u *unpacker) placeEntry(r *layerReader, archive io.Reader, h *tar.Header, parts []string) error {
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
		return u.makeDir(s)
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse:
		return u.writeFile(r, archive, h, s)
	case tar.TypeSymlink:
		return u.makeSymlink(h.Linkname, s)
	case tar.TypeLink:
		return u.makeHardlink(from.fullPath(), s)
	}
	// A device, pipe or socket, or what no one knows: what it stands in place
	// of goes all the same.
	if len(u.done.Skipped) < maxSkipped {
		u.done.Skipped = append(u.done.Skipped, "/"+s.fullPath())
	} else {
		u.done.SkippedMore++
	}
	return u.tree.removeEntry(s)
}

func (u *unpacker) makeDir(s location) error {
	if info, err := s.dir.Lstat(s.base); err == nil && info.IsDir() {
		return nil
	}
	if err := u.tree.removeEntry(s); err != nil {
		return err
	}
	u.done.Entries++
	return u.tree.makeDir(s)
}

// file makes a file of the archive's next h.Size bytes.
func (u *unpacker) writeFile(r *layerReader, archive io.Reader, h *tar.Header, s location) error {
	if h.Size > u.limits.FileBytes {
		return refusal(fmt.Sprintf("a file of %d bytes, at most %d", h.Size, u.limits.FileBytes))
	}
	f, err := u.tree.createFile(s)
	if err != nil {
		return err
	}
	n, err := u.copyContent(r, f, archive)
	if err == nil {
		err = f.Chmod(plainMode(h.Mode))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	u.done.Entries++
	u.done.Bytes += n
	at := plainTime(h.ModTime)
	return s.dir.Chtimes(s.base, at, at)
}

// copy writes a file's content. Holes of a sparse file count as content.
func (u *unpacker) copyContent(r *layerReader, f *os.File, archive io.Reader) (total int64, err error) {
	for {
		if r.ctx.Err() != nil {
			return total, context.Cause(r.ctx) // holes are not read from the source, which looks too
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

func (u *unpacker) makeSymlink(target string, s location) error {
	switch {
	case target == "":
		return refusal("a link without a target")
	case len(target) > u.limits.PathBytes:
		return refusal(fmt.Sprintf("a link's target of %d bytes, at most %d", len(target), u.limits.PathBytes))
	case strings.ContainsRune(target, 0):
		return refusal("a link's target with a NUL")
	}
	if err := u.tree.removeEntry(s); err != nil {
		return err
	}
	if err := u.tree.countEntry(); err != nil {
		return err
	}
	u.done.Entries++
	return s.dir.Symlink(target, s.base)
}

// linked finds what a hard link names: a regular file that the tree has.
func (u *unpacker) resolveHardlink(name string) (location, error) {
	parts, reason := splitName(name, u.limits)
	if reason != "" || len(parts) == 0 {
		return location{}, refusal("a hard link to " + reason)
	}
	s, err := u.tree.resolvePath(parts, false, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return location{}, refusal("a hard link to what is not there")
	} else if err != nil {
		return location{}, err
	}
	return s, requireRegular(s.dir, s.base)
}

func requireRegular(dir *os.Root, name string) error {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refusal("a hard link to what is not there")
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return refusal("a hard link to what is no regular file")
	}
	return nil
}

// link makes a hard link to the file at the real path from.
func (u *unpacker) makeHardlink(from string, s location) error {
	if from == s.fullPath() {
		return nil
	}
	if err := u.tree.removeEntry(s); err != nil {
		return err
	}
	root := u.tree.held[0].dir
	if err := requireRegular(root, from); err != nil { // it may have been below what was cleared
		return err
	}
	if err := u.tree.countEntry(); err != nil {
		return err
	}
	u.done.Entries++
	return root.Link(from, s.fullPath())
}

// plainMode is the mode of a file whose archive says mode.
func plainMode(mode int64) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

// plainTime is a time that every file system can hold.
func plainTime(t time.Time) time.Time {
	if s := t.Unix(); s < 0 || s > math.MaxInt32 {
		return time.Unix(0, 0)
	}
	return t
}
