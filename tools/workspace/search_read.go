package workspace

import (
	"context"
	"errors"
	"path"
)

type openedDir struct {
	handle *dirHandle
	names  []dirName
	more   bool
}

// openNames opens the directory rel, which is name in above, and reads its names.
// If above is nil, it opens what rel leads to. The caller releases the handle.
func (r *Reader) openNames(ctx context.Context, above *dirHandle, rel, name string) (openedDir, error) {
	if len(rel) > MaxPathBytes {
		return openedDir{}, &Error{Kind: KindInvalid, Path: abbreviatePath(rel), Detail: "the path is too long"}
	}
	capacity := Capacity{Entries: maxDirNames, Bytes: min(r.options.maxTextBytes, searchDirText)}
	h := newDirHandle()
	opened, err := runGuarded(ctx, r.guard, rel, func(ctx context.Context) (o openedDir, err error) {
		if !h.acquire() {
			return o, errGivenUp
		}
		defer h.release()
		if above != nil {
			if !above.acquire() {
				return o, errGivenUp
			}
			defer above.release()
		}
		if r.remote != nil {
			var entries []Entry
			entries, o.more, err = r.remote.ReadDir(ctx, rel, above == nil, capacity)
			o.names = namesOf(entries)
			return o, r.newError(rel, err)
		}
		err = h.openDir(r.tree, above, rel, name)
		if err == nil {
			o.names, o.more, err = h.readNames(capacity.Bytes)
		}
		return o, r.newError(rel, err)
	})
	if err != nil {
		h.release()
		return openedDir{}, err
	}
	opened.handle = h
	return opened, nil
}

func namesOf(entries []Entry) []dirName {
	names := make([]dirName, len(entries))
	for i, e := range entries {
		names[i] = dirName{name: path.Base(e.Path), typ: e.Type}
	}
	return names
}

// readFiles reads files in the directory h, whose path is dir, into buf, and calls
// each with the file or its error. A file of more than most bytes gets no data. It
// returns the buffer to use next, and an error if nothing more can be read.
func (r *Reader) readFiles(ctx context.Context, h *dirHandle, dir string, names []string, most int64, buf []byte, each func(i int, f File, err error)) ([]byte, error) {
	if r.remote != nil {
		return buf, r.readRemoteFiles(ctx, dir, names, most, each)
	}
	for i, name := range names {
		rel := joinPath(dir, name)
		into := buf
		f, err := runGuarded(ctx, r.guard, rel, func(ctx context.Context) (File, error) {
			if !h.acquire() {
				return File{}, errGivenUp
			}
			defer h.release()
			return r.readWhole(ctx, h, dir, name, most, into)
		})
		if cap(f.Data) > cap(buf) {
			buf = f.Data[:cap(f.Data)]
		}
		if err != nil {
			buf = make([]byte, searchBuffer) // a call that was given up may still write to the old one
			if !errors.As(err, new(*Error)) {
				return buf, err
			}
		}
		if f.Path = rel; f.Size > most {
			f.Data = nil
		}
		each(i, f, err)
	}
	return buf, nil
}

// readRemoteFiles is readFiles for a [Remote], which returns by itself at the
// deadline.
func (r *Reader) readRemoteFiles(ctx context.Context, dir string, names []string, most int64, each func(i int, f File, err error)) error {
	for first := 0; first < len(names); {
		call, cancel := context.WithTimeoutCause(ctx, r.guard.deadline, errGivenUp)
		n, err := r.remote.ReadFiles(call, dir, names[first:], most, func(i int, f File, err error) {
			f.Path = joinPath(dir, names[first+i])
			each(first+i, f, r.newError(f.Path, err))
		})
		late := call.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err != nil && late:
			return r.guard.timeoutError(dir)
		case err != nil:
			return withCause(ctx, dir, r.newError(dir, err))
		}
		first += n
	}
	return nil
}

// readWhole reads one file into buf, or into a new buffer if that is too small.
func (r *Reader) readWhole(ctx context.Context, h *dirHandle, dir, name string, most int64, buf []byte) (File, error) {
	n, info, err := h.openFile(name)
	if err != nil {
		return File{}, r.newError(joinPath(dir, name), err)
	}
	defer n.close()
	f := File{Info: info}
	if info.Size > most {
		return f, nil
	}
	if int64(len(buf)) <= info.Size {
		buf = make([]byte, min(2*info.Size, most+1))
	}
	return f, r.newError(joinPath(dir, name), f.readFrom(ctx, n, buf, int64(len(buf))))
}
