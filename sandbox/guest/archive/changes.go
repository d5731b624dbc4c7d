package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// namesDir is the directory in an archive of [PackChanges] with a file for each
// changed directory. It contains the names in the directory, each followed by a
// NUL, or by a slash and a NUL if it is a directory. Real directories with this
// name are left out.
const namesDir = ".caisson-names"

// PackChanges writes the changes in the directories since a time to w, as an
// archive for [UnpackOptions.Changes]. Names of entries are absolute paths
// without the first slash. Entries have owners, and directories their
// set-group-ID and sticky bits. PackOptions.Name is unused. Missing directories
// are left out. No directory is left for another file system, so mounts below
// dirs must be in dirs too.
//
// A file has changed if the kernel has touched its inode since (st_ctime),
// which programs can't fake unless they may set the clock. The kernel's time
// may be 10 ms early, so since must be that much before the first change. The
// entry of a changed directory comes with the names in it, which reveal removed
// files.
//
// In an overlay, a change first copies the directories above it to the upper
// layer, where their inodes are new. So directories of an overlay that have not
// changed since PackOptions.LayerSince are not entered.
func PackChanges(w io.Writer, dirs []string, since time.Time, o PackOptions) error {
	p := packer{tar: NewWriter(w), o: o, budget: budget{Bounds: o.Bounds}, linked: map[fileID]string{}, owners: true}
	p.budget.entries = 1 // so that the first entry is not special
	for _, dir := range dirs {
		dir = filepath.Clean(dir)
		info, err := os.Lstat(dir)
		if os.IsNotExist(err) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = &fs.PathError{Op: "pack", Path: dir, Err: ErrNoDirectory}
		}
		if err == nil {
			p.top = identifyFile(info)
			p.pruned = isOverlay(dir)
			err = p.addChanges(dir, info, since)
		}
		if err != nil {
			return fmt.Errorf("pack changes: %w", err)
		}
	}
	if err := p.tar.Close(); err != nil {
		return fmt.Errorf("pack changes: %w", err)
	}
	return nil
}

// addChanges adds a directory if it has changed, and the changes below it.
func (p *packer) addChanges(dir string, info fs.FileInfo, since time.Time) error {
	changed := changedSince(info, since)
	if p.pruned && !changed && (p.o.LayerSince.IsZero() || !changedSince(info, p.o.LayerSince)) {
		return nil
	}
	name := changeName(dir)
	if changed {
		if err := p.addNames(dir, name, info); err != nil {
			return p.unlessUnreadable(name, err)
		}
	}
	return p.unlessUnreadable(name, readDirectory(dir, func(e fs.DirEntry) error {
		file := filepath.Join(dir, e.Name())
		if e.Name() == namesDir { // or its entries would be read as names
			return nil
		}
		if p.o.Skip != nil && p.o.Skip(file) {
			return nil
		}
		info, err := os.Lstat(file)
		switch {
		case os.IsNotExist(err):
		case err != nil:
			err = p.leaveOut(changeName(file), err)
		case info.IsDir():
			if identifyFile(info).device == p.top.device {
				err = p.addChanges(file, info, since)
			}
		case changedSince(info, since):
			err = p.addEntry(file, changeName(file), info)
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}))
}

// addNames adds a directory without its content, and the names in it.
func (p *packer) addNames(dir, name string, info fs.FileInfo) error {
	var names strings.Builder
	err := readDirectory(dir, func(e fs.DirEntry) error {
		names.WriteString(e.Name())
		if e.IsDir() {
			names.WriteByte('/')
		}
		names.WriteByte(0)
		if names.Len() > maxNames {
			return fmt.Errorf("%w: %s has more than %d bytes of names", ErrBound, dir, maxNames)
		}
		return nil
	})
	if err == nil {
		h := p.newHeader(name+"/", info)
		h.Typeflag = tar.TypeDir
		err = p.addHeader(h)
	}
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(namesDir, name, "names"), Mode: 0o644, Size: int64(names.Len()), Format: tar.FormatPAX}
	if err := p.addHeader(h); err != nil {
		return err
	}
	_, err = io.WriteString(p.tar, names.String())
	return err
}

// ChangedDirectory returns the directory whose names an entry of a
// [PackChanges] archive contains, or "" for other entries.
func ChangedDirectory(entry string) string {
	if rest, ok := strings.CutPrefix(entry, namesDir+"/"); ok {
		return path.Dir(rest)
	}
	return ""
}

// changeName returns the name of a clean absolute path in an archive of
// changes.
func changeName(file string) string {
	name := strings.TrimPrefix(file, "/")
	if name == "" {
		return "."
	}
	return name
}

// maxNames bounds the names of one directory, in bytes.
const maxNames = 64 << 20

// removeOthers removes what a directory contains besides the names in content,
// which belongs to the entry called name.
func (u *unpacker) removeOthers(name string, size int64, content io.Reader) error {
	dir := ChangedDirectory(name)
	if size > maxNames {
		return fmt.Errorf("%w: %.60q has %d bytes of names", ErrEntry, dir, size)
	}
	text, err := io.ReadAll(content)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	isDir := map[string]bool{}
	for n := range strings.SplitSeq(string(text), "\x00") {
		base, slash := strings.CutSuffix(n, "/")
		isDir[base] = slash
	}
	if err := u.enterDirectory(dir); err != nil {
		return err
	}
	entries, err := fs.ReadDir(u.dir.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if wantDir, kept := isDir[e.Name()]; kept && wantDir == e.IsDir() {
			continue
		}
		err := u.dir.RemoveAll(e.Name())
		if errors.Is(err, fs.ErrPermission) && e.IsDir() && openDirectories(u.dir, e.Name()) == nil {
			err = u.dir.RemoveAll(e.Name())
		}
		if err != nil && !errors.Is(err, syscall.EBUSY) { // a mount point, which only this sandbox has
			return err
		}
	}
	return nil
}

// openDirectories lets its owner write to a directory and all directories in
// it.
func openDirectories(in *os.Root, name string) error {
	if err := in.Chmod(name, 0o700); err != nil {
		return err
	}
	dir, err := in.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	entries, err := fs.ReadDir(dir.FS(), ".")
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, openDirectories(dir, e.Name()))
		}
	}
	return err
}
