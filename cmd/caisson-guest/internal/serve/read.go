package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// workspaceRead is the stream of one read of the workspace.
type workspaceRead struct {
	reply
	request wire.ReadRequest
	chunk   []byte // not yet sent
}

func newRead(s *Session, id uint32, request wire.ReadRequest) *workspaceRead {
	return &workspaceRead{reply: newReply(s, id), request: request}
}

func (l *workspaceRead) takeData(channel uint8, _ []byte) error { return badChannel(channel) }

func (l *workspaceRead) takeEOF(channel uint8) error { return badChannel(channel) }

func (l *workspaceRead) run() {
	defer l.stop(nil)
	var answer wire.ReadResult
	// The reading thread also sends the answer, so that no more answers are in
	// memory than there are threads.
	l.s.o.Readers.Do(func(r *workspace.Reader) { answer = l.answer(l.ctx, r) })
	l.s.removeStream(l.id)
	l.s.endStream(l.id, answer, wire.Stdout)
	if l.sent > wire.MaxData {
		l.chunk = nil
		debug.FreeOSMemory()
	}
}

func (l *workspaceRead) answer(ctx context.Context, r *workspace.Reader) (answer wire.ReadResult) {
	var err error
	switch p := string(l.request.Path); l.request.Kind {
	case wire.ReadInfo:
		answer, err = lookInfo(ctx, r, p, l.request.Follow)
	case wire.ReadDirectory:
		answer, err = l.sendDirectory(ctx, r, p)
	case wire.ReadFile:
		answer, err = l.sendFile(ctx, r, p)
	case wire.ReadFiles:
		answer, err = l.sendFiles(ctx, r, p)
	default:
		err = &workspace.Error{Kind: workspace.KindInvalid, Detail: "there is no such read"}
	}
	switch e, ok := errors.AsType[*workspace.Error](err); {
	case err == nil:
		return answer
	case ctx.Err() != nil, errors.Is(err, errCancelled):
		return wire.ReadResult{Cancelled: true}
	case ok:
		return wire.ReadResult{Error: opError(e), Mount: errors.Is(err, workspace.ErrMount)}
	}
	return wire.ReadResult{Error: &wire.OpError{Kind: string(workspace.KindIO), Detail: err.Error()}}
}

func opError(e *workspace.Error) *wire.OpError {
	return &wire.OpError{Kind: string(e.Kind), Detail: e.Detail}
}

func lookInfo(ctx context.Context, r *workspace.Reader, p string, follow bool) (wire.ReadResult, error) {
	stat := r.Lstat
	if follow {
		stat = r.Stat
	}
	info, err := stat(ctx, p)
	if err != nil {
		return wire.ReadResult{}, err
	}
	return wire.ReadResult{Info: infoOf(info)}, nil
}

func infoOf(info workspace.Info) *wire.FileInfo {
	return &wire.FileInfo{Type: string(info.Type), Size: info.Size, Target: []byte(info.Target), Mode: uint32(info.Mode), Modified: wire.Timestamp{info.ModTime.Unix(), int64(info.ModTime.Nanosecond())}, Inode: info.Inode}
}

func timeOf(t time.Time) *wire.Timestamp {
	if t.IsZero() {
		return nil
	}
	return &wire.Timestamp{t.Unix(), int64(t.Nanosecond())}
}

func (l *workspaceRead) sendDirectory(ctx context.Context, r *workspace.Reader, p string) (wire.ReadResult, error) {
	room := workspace.Capacity{
		Entries: int(min(max(l.request.Most, 0), wire.MaxReadEntries)),
		Bytes:   min(max(l.request.Text, 0), wire.MaxReadText),
	}
	if room.Entries == 0 || room.Bytes == 0 {
		// To a Reader 0 means its own bound; here it asks whether there are
		// entries.
		entries, more, err := r.ReadDir(ctx, p, l.request.Follow, workspace.Capacity{Entries: 1})
		return wire.ReadResult{More: more || len(entries) > 0}, err
	}
	entries, more, err := r.ReadDir(ctx, p, l.request.Follow, room)
	if err != nil {
		return wire.ReadResult{}, err
	}
	for i, e := range entries {
		line := lineOf(entryOf(e))
		if l.sent+int64(len(l.chunk)+len(line)) > wire.MaxDirectoryBytes {
			more = true
			break
		}
		entries[i] = workspace.Entry{}
		if err := l.write(line); err != nil {
			return wire.ReadResult{}, err
		}
	}
	return wire.ReadResult{More: more}, l.send(l.chunk)
}

func entryOf(e workspace.Entry) wire.DirEntry {
	return wire.DirEntry{
		Name: []byte(path.Base(e.Path)), Type: string(e.Type), Size: e.Size, Target: []byte(e.Target), Mode: uint32(e.Mode),
		Modified: timeOf(e.ModTime), Changed: timeOf(e.ChangeTime), Inode: e.Inode,
	}
}

func lineOf(v any) []byte {
	line, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("caisson-guest: encode answer: %v", err)) // plain values always encode
	}
	return append(line, '\n')
}

func (l *workspaceRead) sendFile(ctx context.Context, r *workspace.Reader, p string) (wire.ReadResult, error) {
	f, err := r.ReadFile(ctx, p, l.request.Offset, min(max(l.request.Most, 1), wire.MaxReadBytes))
	if err != nil {
		return wire.ReadResult{}, err
	}
	return wire.ReadResult{Info: infoOf(f.Info), More: f.Truncated}, l.send(f.Data)
}

// sendFiles sends files of one directory, each after a line about it.
func (l *workspaceRead) sendFiles(ctx context.Context, r *workspace.Reader, dir string) (wire.ReadResult, error) {
	most := min(max(l.request.Most, 1), wire.MaxReadBytes)
	for i, name := range l.request.Names {
		if i == wire.MaxReadNames || l.sent+int64(len(l.chunk)) >= wire.MaxReadBytes {
			return wire.ReadResult{More: true}, l.send(l.chunk)
		}
		f, err := r.ReadFile(ctx, path.Join(dir, string(name)), 0, most)
		var header wire.FileHeader
		switch e, ok := errors.AsType[*workspace.Error](err); {
		case err == nil && f.Size > most:
			header.Info, f.Data = infoOf(f.Info), nil
		case err == nil:
			header.Info, header.Length = infoOf(f.Info), int64(len(f.Data))
		case ok:
			header.Error, header.Mount = opError(e), errors.Is(err, workspace.ErrMount)
		default:
			return wire.ReadResult{}, err
		}
		if err := l.write(lineOf(header), f.Data); err != nil {
			return wire.ReadResult{}, err
		}
	}
	return wire.ReadResult{}, l.send(l.chunk)
}

// write adds to the chunk, and sends it once it fills a frame.
func (l *workspaceRead) write(parts ...[]byte) error {
	for _, p := range parts {
		l.chunk = append(l.chunk, p...)
	}
	if len(l.chunk) < wire.MaxData {
		return nil
	}
	err := l.send(l.chunk)
	l.chunk = l.chunk[:0]
	return err
}
