package changes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"path"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of what a session keeps of its workspace's files as they were.
const (
	// maxFileStates bounds the files that are told apart: 32 bytes of memory each.
	maxFileStates = 500_000
	// keptFiles files of at most keptFileBytes each, together at most keptFilesBytes,
	// are kept whole, on the disk: what commands change in them can be shown.
	keptFiles      = 20_000
	keptFileBytes  = 256 << 10
	keptFilesBytes = 32 << 20
)

// stamp identifies one state of a file. Programs can't set the change time, so a
// file with new content but the old size and modification time is still noticed.
type stamp struct {
	kind   workspace.Type
	size   int64
	mode   uint32
	mtime  int64
	ctime  int64
	inode  uint64
	target string
}

func stampOf(st *workspace.ScanStat) stamp {
	return stamp{
		kind: st.Type, size: st.Size, mode: st.Mode, mtime: st.ModTime.UnixNano(), ctime: st.ChangeTime.UnixNano(),
		inode: st.Inode, target: st.Target,
	}
}

// FileStates are the files of a workspace as they were when a session began:
// a keyed hash of each path leads to a keyed hash of its [stamp]. Their paths,
// and the content of some, are in a scratch file. The zero value knows nothing.
// It is safe for concurrent use once it is made.
type FileStates struct {
	seed  maphash.Seed
	known map[uint64]fileState
	// content has the files that are kept whole, by their number.
	content map[uint32]extent
	scratch *scratch
	names   *scratch // each path behind its length, in the order of their numbers
	count   uint32
	// taken is a change time that none of the files has passed.
	taken time.Time
	// whole reports whether everything was looked at; cut reports whether there
	// were more than maxFileStates.
	whole, cut bool
}

// fileState is one file as it was.
type fileState struct {
	stamp  uint64
	mode   uint32
	number uint32 // from 0
}

// TakeFileStates looks at the files of a workspace. What lies in repositories is
// left out: other checks see to it. Scratch files are made in dir.
func TakeFileStates(ctx context.Context, r *workspace.Reader, dir string) (_ *FileStates, err error) {
	f := &FileStates{seed: maphash.MakeSeed(), known: map[uint64]fileState{}, content: map[uint32]extent{}, whole: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.scratch, err = newScratch(dir); err != nil {
		return nil, err
	}
	if f.names, err = newScratch(dir); err != nil {
		return nil, err
	}
	names := bufio.NewWriter(f.names.file)
	var failed error
	err = scanFiles(ctx, r, func(e *workspace.ScanEntry) {
		st, err := e.Stat()
		switch {
		case err != nil:
			f.whole = false
			return
		case f.count >= maxFileStates:
			f.cut = true
			return
		}
		p, number := e.Path(), f.count
		f.count++
		f.known[maphash.String(f.seed, p)] = fileState{stamp: maphash.Comparable(f.seed, stampOf(&st)), mode: st.Mode, number: number}
		if st.ChangeTime.After(f.taken) {
			f.taken = st.ChangeTime
		}
		if _, err := names.Write(append(binary.AppendUvarint(nil, uint64(len(p))), p...)); err != nil && failed == nil {
			failed = err
		}
		if err := f.keepContent(ctx, r, p, number, &st); err != nil && failed == nil {
			failed = err
		}
	}, func(string) { f.whole = false })
	return f, errors.Join(err, failed, names.Flush())
}

// scanFiles visits everything but directories, and what lies in repositories.
// It calls unread for directories that can't be read.
func scanFiles(ctx context.Context, r *workspace.Reader, visit func(e *workspace.ScanEntry), unread func(dir string)) error {
	return r.Scan(ctx, ".", workspace.ScanOptions{
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			switch {
			case string(e.Name()) == ".git":
			case e.Type == workspace.TypeDir:
				return 0, e.Path()
			default:
				visit(e)
			}
			return 0, ""
		},
		Unread: func(dir string, _ error) { unread(dir) },
	})
}

// keepContent keeps a file's content, within the bounds. A file that can't be read
// is not kept.
func (f *FileStates) keepContent(ctx context.Context, r *workspace.Reader, p string, number uint32, st *workspace.ScanStat) error {
	if st.Type != workspace.TypeFile || st.Size > keptFileBytes || len(f.content) >= keptFiles || f.scratch.size+st.Size > keptFilesBytes {
		return nil
	}
	file, err := r.ReadFile(ctx, p, 0, keptFileBytes)
	if err != nil || file.Truncated || int64(len(file.Data)) != st.Size {
		return ctx.Err()
	}
	at, err := f.scratch.appendText(file.Data)
	if err == nil {
		f.content[number] = at
	}
	return err
}

// isIncomplete reports whether there may have been files that are not known.
func (f *FileStates) isIncomplete() bool { return f.known == nil || !f.whole || f.cut }

// IsFresh reports whether the file at p is as it was, by its own metadata. Where that
// can't be known it is not.
func (f *FileStates) IsFresh(ctx context.Context, r *workspace.Reader, p string) bool {
	st, err := statEntry(ctx, r, p)
	return err == nil && f.isFresh(p, st)
}

// isFresh reports whether path, which st describes, or nil where there is
// nothing, is as it was.
func (f *FileStates) isFresh(p string, st *workspace.ScanStat) bool {
	was, ok := f.known[maphash.String(f.seed, p)]
	if st == nil {
		return !ok && !f.isIncomplete()
	}
	return ok && was.stamp == maphash.Comparable(f.seed, stampOf(st))
}

// contentBefore returns the former content of a file. known reports whether it is
// known, and absent whether there was no file.
func (f *FileStates) contentBefore(p string) (content []byte, absent, known bool) {
	if f.known == nil {
		return nil, false, false
	}
	was, ok := f.known[maphash.String(f.seed, p)]
	if !ok {
		return nil, true, !f.isIncomplete()
	}
	at, ok := f.content[was.number]
	if !ok {
		return nil, false, false
	}
	content, err := f.scratch.readExtent(at)
	return content, false, err == nil
}

// fileChange is one file that is not as it was.
type fileChange struct {
	path, change string
	// stat is the file's current state, nil if it is gone.
	stat *workspace.ScanStat
}

// compareFiles calls visit for each file that has changed, in no order. A file
// with the same content and mode has not changed, if its content is known. whole
// reports whether every file could be examined.
func (f *FileStates) compareFiles(ctx context.Context, r *workspace.Reader, visit func(fileChange)) (whole bool, _ error) {
	if f.known == nil {
		return false, nil
	}
	whole = true
	seen := make([]bool, f.count)
	err := scanFiles(ctx, r, func(e *workspace.ScanEntry) {
		st, err := e.Stat()
		if err != nil {
			whole = false
			return
		}
		p := e.Path()
		was, ok := f.known[maphash.String(f.seed, p)]
		switch {
		case ok && was.stamp == maphash.Comparable(f.seed, stampOf(&st)):
			seen[was.number] = true
		case ok:
			seen[was.number] = true
			if !f.isRewritten(ctx, r, p, was, &st) {
				visit(fileChange{path: p, change: "modified", stat: &st})
			}
		case !f.isIncomplete() || st.ChangeTime.After(f.taken):
			visit(fileChange{path: p, change: "added", stat: &st})
		}
	}, func(string) { whole = false })
	if err != nil {
		return false, err
	}
	return whole, f.visitMissing(ctx, r, seen, whole, visit)
}

// isRewritten reports whether a file was written again with the content and mode
// that it had.
func (f *FileStates) isRewritten(ctx context.Context, r *workspace.Reader, p string, was fileState, st *workspace.ScanStat) bool {
	at, ok := f.content[was.number]
	if !ok || st.Type != workspace.TypeFile || st.Mode != was.mode || st.Size != int64(at.length) {
		return false
	}
	file, err := r.ReadFile(ctx, p, 0, keptFileBytes)
	if err != nil || file.Truncated {
		return false
	}
	content, err := f.scratch.readExtent(at)
	return err == nil && bytes.Equal(content, file.Data)
}

// visitMissing calls visit for the files that were not seen. Where not
// everything could be looked at, it makes sure that they are gone.
func (f *FileStates) visitMissing(ctx context.Context, r *workspace.Reader, seen []bool, whole bool, visit func(fileChange)) error {
	names := bufio.NewReader(io.NewSectionReader(f.names.file, 0, 1<<62))
	for i := range seen {
		length, err := binary.ReadUvarint(names)
		if err != nil {
			return fmt.Errorf("read file names: %w", err)
		}
		if seen[i] {
			if _, err := names.Discard(int(length)); err != nil {
				return fmt.Errorf("read file names: %w", err)
			}
			continue
		}
		name := make([]byte, length)
		if _, err := io.ReadFull(names, name); err != nil {
			return fmt.Errorf("read file names: %w", err)
		}
		if !whole {
			_, err := r.StatEntry(ctx, string(name))
			if e, ok := errors.AsType[*workspace.Error](err); !ok || e.Kind != workspace.KindNotFound {
				continue
			}
		}
		visit(fileChange{path: string(name), change: "deleted"})
	}
	return nil
}

// Close removes the scratch files.
func (f *FileStates) Close() error {
	var all []error
	for _, s := range []*scratch{f.scratch, f.names} {
		if s != nil {
			all = append(all, s.close())
		}
	}
	return errors.Join(all...)
}

// statEntry returns what is at a path, nil where there is nothing.
func statEntry(ctx context.Context, r *workspace.Reader, p string) (*workspace.ScanStat, error) {
	st, err := r.StatEntry(ctx, path.Clean(p))
	if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &st, nil
}
