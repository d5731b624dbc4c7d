package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Unpack reads an archive from r and writes its entries below the directory
// dir. If that is not a directory, the error wraps [ErrNoDirectory], and
// nothing was read.
//
//   - Existing directories are entered. Other existing names are replaced by new
//     files once these are whole. No existing file is written to, and nothing is
//     written through a symlink. Directories and files don't replace each other.
//   - Only files, directories, symlinks, and hard links to files of the same
//     archive are allowed. Anything else, an absolute name, a name with ".." or
//     below a symlink is an error that wraps [ErrEntry]. Symlinks keep their
//     targets.
//   - Permission bits and modification times are restored. Owners, set-user-ID,
//     set-group-ID and sticky bits, extended attributes and access control lists
//     are not ([UnpackOptions.Changes] restores some).
//   - Blocks of zeros become holes.
//   - An archive with millions of entries may need more memory than is allowed.
//     The error then wraps [ErrBound].
//
// Unpack stops at the first error and leaves what it wrote. If the archive is
// cut off or broken, the error wraps [ErrMalformed]. An archive that ends
// between two entries counts as complete: only the caller's source can tell.
func Unpack(r io.Reader, dir string, bounds Bounds) error {
	return UnpackWith(r, dir, UnpackOptions{Bounds: bounds})
}

// UnpackOptions configures [UnpackWith].
type UnpackOptions struct {
	Bounds
	// Name is the name that was asked for: of the first entry and, if that is a
	// directory, above all others. "." means a directory's content. Any other
	// entry is an error that wraps [ErrEntry]. "" allows all names.
	Name string
	// KeepExisting keeps the modes and times of directories that exist already.
	KeepExisting bool
	// Links decides which symlinks stay. They are made at the end, once the
	// archive is whole. Nil keeps all.
	Links *LinkRule
	// Changes unpacks an archive of [PackChanges]. It also removes names that a
	// changed directory no longer had, or that changed between directory and
	// other file. If only a file in a directory changed, the directory's
	// modification time is not restored. Set-group-ID and sticky bits of
	// directories are restored, and if the caller is root, owners, as far as
	// its user namespace has them. The owner and mode of dir itself stay: the
	// archive doesn't decide who may replace others' files there. The archive
	// is untrusted as usual, and nothing outside dir is removed.
	Changes bool
	// Done, if not nil, ends unpacking with an error when it is closed.
	Done <-chan struct{}
}

// UnpackWith is [Unpack] with options.
func UnpackWith(r io.Reader, dir string, o UnpackOptions) error {
	u := unpacker{o: o, budget: budget{Bounds: o.Bounds}, written: map[fileID]struct{}{}, links: map[string]symlink{}, isRoot: filepath.Clean(dir) == "/", owners: o.Changes && os.Geteuid() == 0}
	root, err := os.OpenRoot(dir + "/.") // unlike opening a pipe, this doesn't wait
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("unpack: %w: %w", ErrNoDirectory, err)
	}
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	u.root, u.dir, u.at = root, root, "."
	err = u.unpackAll(tar.NewReader(r))
	if err == nil {
		err = u.makeLinks()
	}
	if err = errors.Join(err, u.leaveDirectory()); err == nil {
		_, err = io.CopyN(io.Discard, r, maxPadding) // so that the sender can write it
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err = errors.Join(err, u.finishDirectories()); err != nil {
		err = fmt.Errorf("unpack: %w", err)
	}
	return errors.Join(err, u.leaveDirectory(), root.Close())
}

// takeSteps counts the parts of a path to look up.
func (u *unpacker) takeSteps(name string) error {
	if u.budget.steps += 1 + strings.Count(name, "/"); u.budget.Steps > 0 && u.budget.steps > u.budget.Steps {
		return fmt.Errorf("%w: more than %d names in the paths of directories and in the targets of links", ErrBound, u.budget.Steps)
	}
	select {
	case <-u.o.Done:
		return errors.New("stopped")
	default:
		return nil
	}
}

// maxPadding bounds what is read after the end of an archive.
const maxPadding = 1 << 20

type unpacker struct {
	o      UnpackOptions
	root   *os.Root
	isRoot bool // root is /
	budget budget
	below  bool // o.Name is a directory
	// at is the directory of the last entry, and dir the same, open.
	at  string
	dir *os.Root
	// directories are the archive's, with their final modes and times.
	directories []directory
	// written are the files and directories made for the archive. links are its
	// symlinks by name, if o.Links decides about them. remembered is about how
	// many bytes these take, with directories.
	written    map[fileID]struct{}
	links      map[string]symlink
	remembered int
	block      []byte
	owners     bool // owners are restored
}

type directory struct {
	name     string
	mode     fs.FileMode
	modified time.Time
	owner    owner
}

type symlink struct {
	target string
	owner  owner
}

type owner struct{ uid, gid int }

func (u *unpacker) unpackAll(in *tar.Reader) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // comments, as git writes them
		}
		if err := u.addEntry(h, in); err != nil {
			return err
		}
	}
}

func (u *unpacker) addEntry(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	size := int64(0)
	if h.Typeflag == tar.TypeReg { // copySparse counts the rest
		size = h.Size / zerosPerByte
	}
	if err := u.budget.takeEntry(size); err != nil {
		return err
	}
	if err := u.checkName(name, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	if u.o.Changes && h.Typeflag == tar.TypeReg && strings.HasPrefix(name, namesDir+"/") {
		return u.removeOthers(name, h.Size, content)
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return fmt.Errorf("%w: the directory itself is no directory in the archive", ErrEntry)
		}
		return u.noteDirectory(name, h)
	}
	delete(u.links, name)
	if err := u.enterDirectory(path.Dir(name)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.addDirectory(name, h)
	case tar.TypeReg:
		return u.addFile(name, h, content)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxName || strings.ContainsRune(h.Linkname, 0) {
			return fmt.Errorf("%w: %.60q is a symlink with an invalid target", ErrEntry, name)
		}
		return u.addSymlink(name, symlink{h.Linkname, owner{h.Uid, h.Gid}})
	case tar.TypeLink:
		return u.addLink(name, h.Linkname)
	}
	return fmt.Errorf("%w: %.60q has type %q: %w", ErrEntry, name, h.Typeflag, ErrSpecial)
}

// checkName refuses an entry that was not asked for.
func (u *unpacker) checkName(name string, isDir bool) error {
	switch {
	case u.o.Name == "":
	case u.budget.entries == 1 && name == u.o.Name:
		u.below = isDir
	case u.below && name != "." && (u.o.Name == "." || strings.HasPrefix(name, u.o.Name+"/")):
	default:
		return fmt.Errorf("%w: %.60q was not asked for", ErrEntry, name)
	}
	return nil
}

// enterDirectory opens a directory, and makes it and those above if they are
// missing. It refuses symlinks.
func (u *unpacker) enterDirectory(name string) error {
	if name == u.at {
		return nil
	}
	if err := u.leaveDirectory(); err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	if err := u.takeSteps(name); err != nil {
		return err
	}
	for part := range strings.SplitSeq(name, "/") {
		below, made, err := u.openPlain(part, 0o755)
		if err != nil {
			return errors.Join(err, u.leaveDirectory())
		}
		if made {
			err = u.budget.takeEntry(0)
		}
		if err != nil {
			return errors.Join(err, below.Close(), u.leaveDirectory())
		}
		at := path.Join(u.at, part)
		if err := u.leaveDirectory(); err != nil {
			return errors.Join(err, below.Close())
		}
		u.at, u.dir = at, below
	}
	return nil
}

// leaveDirectory goes back to the top.
func (u *unpacker) leaveDirectory() error {
	var err error
	if u.dir != u.root {
		err = u.dir.Close()
	}
	u.at, u.dir = ".", u.root
	return err
}

// openPlain opens a directory in u.dir, or makes it. It refuses a symlink.
func (u *unpacker) openPlain(name string, mode fs.FileMode) (dir *os.Root, made bool, err error) {
	info, err := u.dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = u.dir.Mkdir(name, mode); err == nil {
			made = true
			if info, err = u.dir.Lstat(name); err == nil {
				err = u.noteWritten(info)
			}
		}
	}
	switch {
	case err != nil:
		return nil, made, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, made, fmt.Errorf("%w: %.60q is a symlink, and nothing is written through one", ErrEntry, name)
	case !info.IsDir():
		return nil, made, fmt.Errorf("%w: %.60q is not a directory", ErrEntry, name)
	case u.o.Changes && info.Mode()&0o700 != 0o700 && u.dir.Chmod(name, info.Mode().Perm()|0o700) == nil: // until finishDirectories
		u.directories = append(u.directories, directory{path.Join(u.at, name), info.Mode() & dirBits, info.ModTime(), ownerOf(info)})
		if err := u.remember(len(u.at) + len(name)); err != nil {
			return nil, made, err
		}
	}
	dir, err = u.dir.OpenRoot(name + "/.") // without the dot, it would wait for a new pipe
	return dir, made, err
}

// addDirectory makes a directory that its owner can write to until the end.
func (u *unpacker) addDirectory(name string, h *tar.Header) error {
	dir, _, err := u.openPlain(path.Base(name), 0o700)
	if err != nil {
		return err
	}
	return errors.Join(u.noteDirectory(name, h), dir.Close())
}

func (u *unpacker) noteDirectory(name string, h *tar.Header) error {
	if err := u.takeSteps(name); err != nil {
		return err
	}
	if u.o.Changes && name == "." {
		return nil
	}
	if u.o.KeepExisting {
		if info, err := u.root.Lstat(name); err != nil || !u.wrote(info) {
			return nil
		}
	}
	mode := modeOf(h)
	if u.o.Changes && h.Mode&setgidBit != 0 {
		mode |= fs.ModeSetgid
	}
	if u.o.Changes && h.Mode&stickyBit != 0 {
		mode |= fs.ModeSticky
	}
	u.directories = append(u.directories, directory{name, mode, h.ModTime, owner{h.Uid, h.Gid}})
	return u.remember(len(name))
}

// maxRemembered bounds the memory for what an archive contains, in bytes.
var maxRemembered = 256 << 20

// remember counts an entry with a text that is kept until the end.
func (u *unpacker) remember(text int) error {
	if u.remembered += text + 96; u.remembered > maxRemembered {
		return fmt.Errorf("%w: too many files, directories and symlinks in one archive", ErrBound)
	}
	return nil
}

// finishDirectories sets the modes and times of directories, innermost first.
func (u *unpacker) finishDirectories() error {
	slices.SortStableFunc(u.directories, func(a, b directory) int { return strings.Compare(b.name, a.name) })
	var errs []error
	for i, d := range u.directories {
		if i+1 < len(u.directories) && u.directories[i+1].name == d.name {
			continue // the archive has it again
		}
		if info, err := u.root.Lstat(d.name); err != nil || !info.IsDir() {
			errs = append(errs, err)
			continue
		}
		if d.mode&fs.ModeSetgid != 0 { // the kernel lets only a process with the group set it
			errs = append(errs, u.setOwner(u.root, d.name, owner{d.owner.uid, os.Getegid()}))
		}
		errs = append(errs, u.setTime(u.root, d.name, d.modified), u.root.Chmod(d.name, d.mode), u.setOwner(u.root, d.name, d.owner))
	}
	return errors.Join(errs...)
}

// setOwner sets a name's owner and group, if owners are restored. It ignores
// ids that this user namespace or the mount doesn't have.
func (u *unpacker) setOwner(in *os.Root, name string, to owner) error {
	if !u.owners {
		return nil
	}
	err := in.Lchown(name, to.uid, to.gid)
	for _, absent := range []error{syscall.EINVAL, syscall.EOVERFLOW, syscall.EPERM, errors.ErrUnsupported} {
		if errors.Is(err, absent) {
			return nil
		}
	}
	return err
}

// addFile writes a regular file. It gets its name once it is whole, so an
// archive that is cut off neither damages the old file nor overtakes another
// archive that is unpacked at the same time.
func (u *unpacker) addFile(name string, h *tar.Header, content io.Reader) error {
	last, part := path.Base(name), fmt.Sprintf(".caisson-%016x.part", rand.Uint64())
	if info, err := u.dir.Lstat(last); err == nil && info.IsDir() {
		return fmt.Errorf("%w: %.60q is a directory", ErrEntry, name)
	}
	f, err := u.dir.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = u.copySparse(f, content, h.Size)
	if err == nil {
		err = f.Chmod(modeOf(h))
	}
	if info, statErr := f.Stat(); statErr == nil && err == nil {
		err = u.noteWritten(info)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = errors.Join(u.setTime(u.dir, part, h.ModTime), u.setOwner(u.dir, part, owner{h.Uid, h.Gid}))
	}
	if err == nil {
		err = u.dir.Rename(part, last)
	}
	if err != nil {
		return errors.Join(err, u.dir.Remove(part))
	}
	return nil
}

// noteWritten records a file or directory that was made.
func (u *unpacker) noteWritten(info fs.FileInfo) error {
	u.written[writtenID(info)] = struct{}{}
	return u.remember(0)
}

// wrote reports whether a file or directory was made for the archive.
func (u *unpacker) wrote(info fs.FileInfo) bool {
	_, ok := u.written[writtenID(info)]
	return ok
}

// writtenID identifies a file without its number of names, which may change.
func writtenID(info fs.FileInfo) fileID {
	id := identifyFile(info)
	id.names = 0
	return id
}

// addLink makes another name for a file of the archive.
func (u *unpacker) addLink(name, target string) error {
	target, err := cleanName(target)
	if err = errors.Join(err, u.takeSteps(target+"/"+name)); err != nil {
		return err
	}
	if info, err := u.root.Lstat(target); target == name || err != nil || !info.Mode().IsRegular() || !u.wrote(info) {
		return fmt.Errorf("%w: %.60q is a hard link to %.60q, which is no file of the archive", ErrEntry, name, target)
	}
	return u.replaceName(name, func(string) error {
		return u.root.Link(target, name)
	})
}

// addSymlink makes a symlink, or leaves that to makeLinks if o.Links decides.
func (u *unpacker) addSymlink(name string, link symlink) error {
	if u.o.Links != nil {
		link.target = u.withoutFrom(name, link.target)
		if err := u.takeSteps(name); err != nil {
			return err
		}
		u.links[name] = link
		return u.remember(len(name) + len(link.target))
	}
	return u.makeLink(name, link)
}

func (u *unpacker) makeLink(name string, link symlink) error {
	return u.replaceName(name, func(last string) error {
		return cmp.Or(u.dir.Symlink(link.target, last), u.setOwner(u.dir, last, link.owner))
	})
}

// replaceName makes a name that may exist, except as a directory.
func (u *unpacker) replaceName(name string, make func(last string) error) error {
	last := path.Base(name)
	switch info, err := u.dir.Lstat(last); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%w: %.60q is a directory", ErrEntry, name)
	default:
		if err := u.dir.Remove(last); err != nil {
			return err
		}
	}
	return make(last)
}

// copySparse copies size bytes to a new file. Whole blocks of zeros become
// holes.
func (u *unpacker) copySparse(f *os.File, content io.Reader, size int64) error {
	if u.block == nil {
		u.block = make([]byte, blockSize)
	}
	hole := false
	for left := size; left > 0; {
		b := u.block[:min(left, blockSize)]
		if _, err := io.ReadFull(content, b); err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		left -= int64(len(b))
		if hole = isZero(b); hole {
			if _, err := f.Seek(int64(len(b)), io.SeekCurrent); err != nil {
				return err
			}
			continue
		}
		if err := u.budget.takeBytes(int64(len(b) - len(b)/zerosPerByte)); err != nil {
			return err
		}
		if _, err := f.Write(b); err != nil {
			return err
		}
	}
	if hole {
		return f.Truncate(size)
	}
	return nil
}

// zerosPerByte is how many bytes of zeros count as one of [Bounds].
const zerosPerByte = 16

// blockSize is the unit of holes.
const blockSize = 64 << 10

func isZero(b []byte) bool { return len(b) == 0 || b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

// dirBits are the mode bits that [UnpackOptions.Changes] restores for
// directories.
const dirBits = fs.ModePerm | fs.ModeSetgid | fs.ModeSticky

func modeOf(h *tar.Header) fs.FileMode { return fs.FileMode(h.Mode) & fs.ModePerm }

// setTime sets the modification time, unless some file system couldn't hold it.
func (u *unpacker) setTime(in *os.Root, name string, t time.Time) error {
	if s := t.Unix(); s < 0 || s > math.MaxUint32 {
		return nil
	}
	return in.Chtimes(name, time.Time{}, t)
}
