package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// look is a look stream: one read of the workspace.
type look struct {
	s         *Session
	id        uint32
	request   wire.Look
	reply     *wire.Credit
	cancelled chan struct{}
	once      sync.Once
	sent      int64
	chunk     []byte
}

func newLook(s *Session, id uint32, request wire.Look) *look {
	return &look{s: s, id: id, request: request, reply: wire.NewCredit(), cancelled: make(chan struct{})}
}

func (l *look) data(channel uint8, _ []byte) error { return badChannel(channel) }

func (l *look) eof(channel uint8) error { return badChannel(channel) }

func (l *look) credit(channel uint8, n uint32) error {
	if channel != wire.Stdout {
		return badChannel(channel)
	}
	return l.reply.Grant(n)
}

func (l *look) stop(uint8) { l.reply.Close() }

func (l *look) cancel(wire.Cancel) { l.once.Do(func() { close(l.cancelled) }) }

// run is the look's goroutine. It sends the stream's last frame.
func (l *look) run() {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		select {
		case <-l.cancelled:
			cancel(errCancelled)
		case <-ctx.Done():
		}
	}()
	var answer wire.Looked
	// The answer is sent from the reading thread too: so no more is held in
	// memory than that many answers.
	l.s.o.Readers.Do(func(r *workspace.Reader) { answer = l.serve(ctx, r) })
	cancel(nil)
	l.s.remove(l.id)
	l.s.end(l.id, answer, wire.Stdout)
	if l.sent > wire.MaxData {
		l.chunk = nil
		debug.FreeOSMemory()
	}
}

func (l *look) serve(ctx context.Context, r *workspace.Reader) (answer wire.Looked) {
	var err error
	switch p := string(l.request.Path); l.request.Kind {
	case wire.LookInfo:
		answer, err = lookInfo(ctx, r, p, l.request.Follow)
	case wire.LookFolder:
		answer, err = l.folder(ctx, r, p)
	case wire.LookFile:
		answer, err = l.file(ctx, r, p)
	case wire.LookFiles:
		answer, err = l.files(ctx, r, p)
	default:
		err = &workspace.Error{Kind: workspace.KindInvalid, Detail: "there is no such read"}
	}
	switch e, ok := errors.AsType[*workspace.Error](err); {
	case err == nil:
		return answer
	case ctx.Err() != nil, errors.Is(err, errCancelled):
		return wire.Looked{Cancelled: true}
	case ok:
		return wire.Looked{Error: opError(e), Mount: errors.Is(err, workspace.ErrMount)}
	}
	return wire.Looked{Error: &wire.OpError{Kind: string(workspace.KindIO), Detail: err.Error()}}
}

func opError(e *workspace.Error) *wire.OpError {
	return &wire.OpError{Kind: string(e.Kind), Detail: e.Detail}
}

func lookInfo(ctx context.Context, r *workspace.Reader, p string, follow bool) (wire.Looked, error) {
	stat := r.Lstat
	if follow {
		stat = r.Stat
	}
	info, err := stat(ctx, p)
	if err != nil {
		return wire.Looked{}, err
	}
	return wire.Looked{Info: infoOf(info)}, nil
}

func infoOf(info workspace.Info) *wire.LookedInfo {
	return &wire.LookedInfo{Type: string(info.Type), Size: info.Size, Mode: uint32(info.Mode), Modified: wire.LookTime{info.ModTime.Unix(), int64(info.ModTime.Nanosecond())}, Inode: info.Inode}
}

func timeOf(t time.Time) *wire.LookTime {
	if t.IsZero() {
		return nil
	}
	return &wire.LookTime{t.Unix(), int64(t.Nanosecond())}
}

// folder sends a folder's entries.
func (l *look) folder(ctx context.Context, r *workspace.Reader, p string) (wire.Looked, error) {
	room := workspace.Capacity{
		Entries: int(min(max(l.request.Most, 0), wire.MaxLookEntries)),
		Bytes:   min(max(l.request.Text, 0), wire.MaxLookText),
	}
	if room.Entries == 0 || room.Bytes == 0 {
		// To a Reader 0 is its own bound; here it asks whether there is anything.
		entries, more, err := r.ReadDir(ctx, p, l.request.Follow, workspace.Capacity{Entries: 1})
		return wire.Looked{More: more || len(entries) > 0}, err
	}
	entries, more, err := r.ReadDir(ctx, p, l.request.Follow, room)
	if err != nil {
		return wire.Looked{}, err
	}
	for i, e := range entries {
		line := lineOf(entryOf(e))
		if l.sent+int64(len(l.chunk)+len(line)) > wire.MaxFolder {
			more = true
			break
		}
		l.chunk = append(l.chunk, line...)
		entries[i] = workspace.Entry{}
		if len(l.chunk) >= wire.MaxData {
			if err := l.send(l.chunk); err != nil {
				return wire.Looked{}, err
			}
			l.chunk = l.chunk[:0]
		}
	}
	return wire.Looked{More: more}, l.send(l.chunk)
}

func entryOf(e workspace.Entry) wire.LookEntry {
	return wire.LookEntry{
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

// file sends a piece of a file.
func (l *look) file(ctx context.Context, r *workspace.Reader, p string) (wire.Looked, error) {
	var f workspace.File
	var err error
	if l.request.Most == 0 {
		f, err = r.ReadInto(ctx, p, l.request.Offset, nil)
	} else {
		f, err = r.ReadFile(ctx, p, l.request.Offset, min(l.request.Most, wire.MaxLookBytes))
	}
	if err != nil {
		return wire.Looked{}, err
	}
	return wire.Looked{Info: infoOf(f.Info), More: f.Truncated}, l.send(f.Data)
}

// files sends files of one directory, each behind a line about it.
func (l *look) files(ctx context.Context, r *workspace.Reader, dir string) (wire.Looked, error) {
	most := min(max(l.request.Most, 1), wire.MaxLookBytes)
	for i, name := range l.request.Names {
		if i == wire.MaxLookNames || l.sent+int64(len(l.chunk)) >= wire.MaxLookBytes {
			return wire.Looked{More: true}, l.send(l.chunk)
		}
		f, err := r.ReadFile(ctx, path.Join(dir, string(name)), 0, most)
		var told wire.LookedFile
		switch e, ok := errors.AsType[*workspace.Error](err); {
		case err == nil && f.Size > most:
			told.Info, f.Data = infoOf(f.Info), nil
		case err == nil:
			told.Info, told.Length = infoOf(f.Info), int64(len(f.Data))
		case ok:
			told.Error, told.Mount = opError(e), errors.Is(err, workspace.ErrMount)
		default:
			return wire.Looked{}, err
		}
		l.chunk = append(append(l.chunk, lineOf(told)...), f.Data...)
		if len(l.chunk) >= wire.MaxData {
			if err := l.send(l.chunk); err != nil {
				return wire.Looked{}, err
			}
			l.chunk = l.chunk[:0]
		}
	}
	return wire.Looked{}, l.send(l.chunk)
}

// send sends bytes of the answer, on its credit.
func (l *look) send(text []byte) error {
	for len(text) > 0 {
		n := l.reply.Take(min(len(text), wire.MaxData), l.cancelled)
		if n == 0 {
			return errCancelled
		}
		if err := l.s.o.Writer.Send(wire.Frame{Stream: l.id, Type: wire.TypeData, Channel: wire.Stdout, Payload: text[:n]}); err != nil {
			return err
		}
		l.sent += int64(n)
		text = text[n:]
	}
	return nil
}
