package workspace

import (
	"context"
	"fmt"
)

// chunkBytes bounds one read(2), so that a call that was given up stops soon.
const chunkBytes = 4 << 20

// ReadFile reads at most most bytes of a regular file from offset on; most 0,
// or more than MaxFileBytes, means MaxFileBytes. What is allocated is bounded
// by the file's size and by most, whatever the file claims or does meanwhile.
// FIFOs, devices and sockets are refused without waiting and without a read.
func (r *Reader) ReadFile(ctx context.Context, path string, offset, most int64) (File, error) {
	if most == 0 || most > r.options.MaxFileBytes {
		most = r.options.MaxFileBytes
	}
	return r.read(ctx, path, offset, func(rest int64) []byte {
		// A size of 0 may be a lie (files of /proc): leave room to find out.
		return make([]byte, min(most, max(rest, 512)))
	}, most)
}

// ReadInto is ReadFile into a buffer of the caller's, of whose length it reads
// at most; the File's Data is a part of it. After any error the buffer must
// not be used again: a call that was given up may still write to it.
func (r *Reader) ReadInto(ctx context.Context, path string, offset int64, buf []byte) (File, error) {
	f, err := r.read(ctx, path, offset, func(int64) []byte { return buf }, int64(len(buf)))
	if r.remote != nil && f.Data != nil {
		f.Data = buf[:copy(buf, f.Data)]
	}
	return f, err
}

func (r *Reader) read(ctx context.Context, path string, offset int64, buffer func(rest int64) []byte, most int64) (File, error) {
	rel, e := r.prefixes.relative(path)
	if e == nil && (offset < 0 || most < 0) {
		e = &Error{Kind: KindInvalid, Path: path, Detail: "offset and limit must not be negative"}
	}
	if e != nil {
		return File{}, e
	}
	if r.remote != nil {
		return r.readRemote(ctx, path, rel, offset, most)
	}
	return guarded(ctx, r.guard, path, func(ctx context.Context) (File, error) {
		n, info, err := r.tree.openFile(rel)
		if err != nil {
			return File{}, fault(path, err)
		}
		defer n.close()
		info.Path = rel
		f := File{Info: info, Offset: offset}
		if err := f.fill(ctx, n, buffer(info.Size-offset), most); err != nil {
			return File{}, fault(path, err)
		}
		return f, nil
	})
}

// readRemote is read of what another process sees.
func (r *Reader) readRemote(ctx context.Context, path, rel string, offset, most int64) (File, error) {
	return guarded(ctx, r.guard, path, func(ctx context.Context) (File, error) {
		f, err := r.remote.ReadFile(ctx, rel, offset, most)
		if err != nil {
			return File{}, r.fault(path, err)
		}
		f.Path, f.Offset = rel, offset
		return f, nil
	})
}

// fill reads until buf is full, the file ends, or the size it had is reached.
func (f *File) fill(ctx context.Context, n node, buf []byte, most int64) error {
	got, end := 0, false
	for got < len(buf) && !end {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read file: %w", context.Cause(ctx))
		}
		m, err := n.readAt(buf[got:min(len(buf), got+chunkBytes)], f.Offset+int64(got))
		if err != nil {
			return err
		}
		got += m
		end = m == 0 || f.Size > 0 && f.Offset+int64(got) == f.Size
		if got == len(buf) && !end && int64(got) < most {
			buf = append(buf, make([]byte, min(most-int64(got), int64(got)))...)
		}
	}
	if got > 0 {
		f.Data = buf[:got]
		f.Size = max(f.Size, f.Offset+int64(got))
	}
	f.Truncated = !end
	return nil
}
