package guest

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

func (r remote) ReadFiles(ctx context.Context, dir string, names []string, most int64, each func(i int, f workspace.File, err error)) (int, error) {
	names = names[:min(len(names), wire.MaxReadNames)]
	most = min(most, wire.MaxReadBytes)
	request := wire.ReadRequest{Kind: wire.ReadFiles, Path: []byte(dir), Most: most}
	for _, name := range names {
		request.Names = append(request.Names, []byte(name))
	}
	f := filesReader{count: len(names), most: most, each: each}
	answer, err := r.c.readWorkspace(ctx, request, f.takeData)
	if err == nil {
		if err = f.checkWhole(answer.More); err != nil {
			err = r.c.protocolError(err)
		}
	}
	return f.done, err
}

// filesReader takes several files as they come.
type filesReader struct {
	count int // of names
	most  int64
	each  func(i int, f workspace.File, err error)
	done  int
	line  []byte // the part that has come
	file  *workspace.File
	left  int64 // missing bytes of file
}

func (f *filesReader) takeData(b []byte) error {
	for len(b) > 0 {
		if f.file != nil {
			n := min(f.left, int64(len(b)))
			f.file.Data = append(f.file.Data, b[:n]...)
			f.left -= n
			b = b[n:]
			f.endFile()
			continue
		}
		var whole bool
		var err error
		if b, whole, err = appendLine(&f.line, b); err != nil || !whole {
			return err
		}
		if err := f.beginFile(); err != nil {
			return err
		}
		f.line = f.line[:0]
	}
	return nil
}

func (f *filesReader) beginFile() error {
	var header wire.FileHeader
	if err := wire.Decode(f.line, &header); err != nil {
		return err
	}
	i := header.Info
	switch {
	case f.done == f.count:
		return fmt.Errorf("%w: more files than were asked for", wire.ErrProtocol)
	case (i != nil) == (header.Error != nil), header.Mount && header.Error == nil, header.Length < 0, header.Length > f.most,
		header.Error != nil && (header.Length > 0 || !knownKind(workspace.Kind(header.Error.Kind))),
		i != nil && (i.Type != string(workspace.TypeFile) || header.Length > 0 && i.Size > f.most):
		return fmt.Errorf("%w: a file with impossible numbers", wire.ErrProtocol)
	case header.Error != nil:
		f.done++
		f.each(f.done-1, workspace.File{}, errorOf(header.Error, header.Mount))
		return nil
	}
	if err := checkNode(i.Type, i.Size, i.Target, i.Mode, &i.Modified); err != nil {
		return err
	}
	f.file, f.left = &workspace.File{Info: infoOf(*i)}, header.Length
	f.endFile()
	return nil
}

func (f *filesReader) endFile() {
	if f.left > 0 {
		return
	}
	file := *f.file
	f.file = nil
	f.done++
	f.each(f.done-1, file, nil)
}

// checkWhole refuses an answer that was cut off. more reports whether the guest
// left out the last files.
func (f *filesReader) checkWhole(more bool) error {
	if f.file != nil || len(f.line) > 0 || f.done == 0 && f.count > 0 || more != (f.done < f.count) {
		return fmt.Errorf("%w: %d of %d files", wire.ErrProtocol, f.done, f.count)
	}
	return nil
}
