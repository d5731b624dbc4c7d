package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// View reads the workspace through the guest, which must have been configured
// for it ([wire.Config].View). It fails with sandbox.ErrLost once the connection
// has ended.
func (c *Conn) View() workspace.View {
	return workspace.NewRemoteReader(remote{c}, workspace.ReaderOptions{
		HostPath: c.o.Config.HostWorkspace, ContainerPath: c.o.Config.Workspace,
	})
}

// remote is the guest, for a Reader: each call is one look.
type remote struct{ c *Conn }

func (r remote) Stat(ctx context.Context, path string, follow bool) (workspace.Info, error) {
	looked, err := r.c.look(ctx, wire.Look{Kind: wire.LookInfo, Path: []byte(path), Follow: follow}, nothing)
	if err != nil {
		return workspace.Info{}, err
	}
	return infoOf(*looked.Info), nil
}

func (r remote) ReadDir(ctx context.Context, path string, follow bool, room workspace.Capacity) (entries []workspace.Entry, more bool, err error) {
	room.Entries, room.Bytes = min(room.Entries, wire.MaxLookEntries), min(room.Bytes, wire.MaxLookText)
	f := folder{path: path, room: room}
	looked, err := r.c.look(ctx, wire.Look{Kind: wire.LookFolder, Path: []byte(path), Follow: follow, Most: int64(room.Entries), Text: room.Bytes}, f.take)
	if err == nil {
		if err = f.whole(); err != nil {
			return nil, false, r.c.caught(err)
		}
	}
	return f.entries, looked.More, err
}

func (r remote) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	most = min(most, wire.MaxLookBytes)
	var data []byte
	looked, err := r.c.look(ctx, wire.Look{Kind: wire.LookFile, Path: []byte(path), Offset: offset, Most: most}, func(b []byte) error {
		if int64(len(data)+len(b)) > most {
			return fmt.Errorf("%w: more of a file than was asked for", wire.ErrProtocol)
		}
		data = append(data, b...)
		return nil
	})
	if err != nil {
		return workspace.File{}, err
	}
	f := workspace.File{Info: infoOf(*looked.Info), Offset: offset, Data: data, Truncated: looked.More}
	switch got := int64(len(data)); {
	case f.Type != workspace.TypeFile, got > 0 && f.Size-got < offset, f.Truncated && got < most:
		return workspace.File{}, r.c.caught(fmt.Errorf("%w: a file with impossible numbers", wire.ErrProtocol))
	}
	return f, nil
}

// caught ends the connection to a guest that told what can't be.
func (c *Conn) caught(lie error) error {
	c.lose(lie)
	return c.lostError()
}

// nothing takes the bytes of an answer that has none.
func nothing([]byte) error { return fmt.Errorf("%w: data in an answer without", wire.ErrProtocol) }

// look is one read of the workspace in the guest.
type look struct {
	c     *Conn
	id    uint32
	kind  wire.LookKind
	reply *wire.Queue
	done  chan struct{} // closed when looked and err are final

	mu        sync.Mutex
	cancelled bool
	ended     bool
	looked    wire.Looked
	err       error
	silence   *time.Timer
}

// look asks the guest and gives what comes on the channel to take. When ctx
// ends it returns at once; the guest, which is told, must end the stream in
// Options.AnswerTime or is lost.
func (c *Conn) look(ctx context.Context, request wire.Look, take func([]byte) error) (wire.Looked, error) {
	if ctx.Err() != nil {
		return wire.Looked{}, context.Cause(ctx)
	}
	l := &look{c: c, kind: request.Kind, reply: wire.NewQueue(), done: make(chan struct{})}
	err := c.open(wire.Open{Look: &request}, func(id uint32) call {
		l.id = id
		return l
	})
	if err != nil {
		return wire.Looked{}, err
	}
	defer context.AfterFunc(ctx, l.cancel)()
	for b := l.reply.Next(); b != nil; b = l.reply.Next() {
		if err := take(b); err != nil {
			return wire.Looked{}, c.caught(err)
		}
		c.grant(l.id, wire.Stdout, l.reply.Done(len(b)))
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return wire.Looked{}, context.Cause(ctx)
	}
	return l.result(ctx)
}

// result is what the stream's end says.
func (l *look) result(ctx context.Context) (wire.Looked, error) {
	switch e := l.looked.Error; {
	case ctx.Err() != nil: // what came may not be all
		return wire.Looked{}, context.Cause(ctx)
	case l.err != nil:
		return wire.Looked{}, l.err
	case e != nil:
		return wire.Looked{}, errorOf(e, l.looked.Mount)
	}
	return l.looked, nil
}

func errorOf(e *wire.OpError, mount bool) *workspace.Error {
	err := &workspace.Error{Kind: workspace.Kind(e.Kind), Detail: clean(e.Detail)}
	if mount {
		err.Err = workspace.ErrMount
	}
	return err
}

// cancel asks the guest to stop, once.
func (l *look) cancel() {
	l.mu.Lock()
	if l.cancelled || l.ended {
		l.mu.Unlock()
		return
	}
	l.cancelled = true
	l.silence = time.AfterFunc(l.c.o.AnswerTime, func() {
		l.c.lose(fmt.Errorf("no end of a read within %v of its cancellation", l.c.o.AnswerTime))
	})
	l.mu.Unlock()
	l.reply.Break()
	if err := l.c.writer.SendJSON(l.id, wire.TypeCancel, wire.Cancel{}); err != nil {
		l.c.lose(err)
	}
}

// frame takes one frame of the guest's.
func (l *look) frame(f wire.Frame) (last bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended { // the connection was lost meanwhile
		return false, nil
	}
	switch {
	case f.Type == wire.TypeData && f.Channel == wire.Stdout:
		if err := l.reply.Push(f.Payload); err != nil {
			return false, err
		}
		if total, _ := l.reply.Total(); total > wire.MaxFolder {
			return false, fmt.Errorf("%w: an answer of more than %d bytes", wire.ErrProtocol, wire.MaxFolder)
		}
		return false, nil
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdout:
		return false, l.reply.End()
	case f.Type == wire.TypeRefused:
		var r wire.Refused
		if err := wire.Decode(f.Payload, &r); err != nil {
			return false, err
		}
		l.conclude(fmt.Errorf("%w: guest: %s", sandbox.ErrUnavailable, clean(r.Text)))
		return true, nil
	case f.Type == wire.TypeEnd:
		return true, l.end(f)
	}
	return false, fmt.Errorf("%w: a guest doesn't send this for a read", wire.ErrProtocol)
}

func (l *look) end(f wire.Frame) error {
	if err := wire.Decode(f.Payload, &l.looked); err != nil {
		return err
	}
	if _, ended := l.reply.Total(); !ended {
		return fmt.Errorf("%w: the answer has not ended", wire.ErrProtocol)
	}
	if err := l.check(); err != nil {
		return err
	}
	l.conclude(nil)
	return nil
}

// check refuses an end that can't be of this look.
func (l *look) check() error {
	told := l.looked
	failed := told.Error != nil || told.Cancelled
	switch {
	case told.Cancelled && !l.cancelled:
		return fmt.Errorf("%w: cancelled without being asked", wire.ErrProtocol)
	case told.Error != nil && (told.Cancelled || !knownKind(workspace.Kind(told.Error.Kind))),
		told.Mount && told.Error == nil,
		failed && (told.Info != nil || told.More),
		told.More && l.kind == wire.LookInfo,
		!failed && (told.Info != nil) != (l.kind == wire.LookInfo || l.kind == wire.LookFile):
		return fmt.Errorf("%w: an end that doesn't fit the read", wire.ErrProtocol)
	}
	if i := told.Info; i != nil {
		return checkNode(i.Type, i.Size, i.Mode, &i.Modified)
	}
	return nil
}

// lost is called when the connection has ended.
func (l *look) lost(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.conclude(err)
	}
}

func (l *look) conclude(err error) {
	l.ended = true
	l.err = err
	if l.silence != nil {
		l.silence.Stop()
	}
	l.reply.Break()
	close(l.done)
}

// folder takes the lines of a folder as they come.
type folder struct {
	path    string
	room    workspace.Capacity
	last    string
	rest    []byte
	entries []workspace.Entry
}

func (f *folder) take(b []byte) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		end := i + 1
		if i < 0 {
			end = len(b)
		}
		if f.rest = append(f.rest, b[:end]...); len(f.rest) > wire.MaxLookLine {
			return fmt.Errorf("%w: an entry of more than %d bytes", wire.ErrProtocol, wire.MaxLookLine)
		}
		b = b[end:]
		if i < 0 {
			return nil
		}
		if err := f.line(f.rest); err != nil {
			return err
		}
		f.rest = f.rest[:0]
	}
	return nil
}

// line takes one entry: a plain name, after the last one.
func (f *folder) line(line []byte) error {
	var e wire.LookEntry
	if err := wire.Decode(line, &e); err != nil {
		return err
	}
	name := string(e.Name)
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"), len(name) > workspace.MaxNameBytes:
		return fmt.Errorf("%w: %.40q is no name", wire.ErrProtocol, name)
	case name <= f.last:
		return fmt.Errorf("%w: entries out of order", wire.ErrProtocol)
	case len(e.Target) > workspace.MaxPathBytes, e.Target != nil && e.Type != string(workspace.TypeSymlink):
		return fmt.Errorf("%w: %.40q leads nowhere", wire.ErrProtocol, name)
	}
	if err := errors.Join(checkNode(e.Type, e.Size, e.Mode, e.Modified), checkTime(e.Changed)); err != nil {
		return err
	}
	f.last = name
	if f.path != "." {
		name = f.path + "/" + name
	}
	entry := workspace.Entry{
		Path: name, Type: workspace.Type(e.Type), Size: e.Size, Target: string(e.Target), Mode: modeOf(e.Mode),
		ModTime: instant(e.Modified), ChangeTime: instant(e.Changed), Inode: e.Inode,
	}
	if !f.room.Fits(entry) {
		return fmt.Errorf("%w: more entries than were asked for", wire.ErrProtocol)
	}
	f.room.Take(entry)
	f.entries = append(f.entries, entry)
	return nil
}

// whole says what is wrong with a folder that has ended.
func (f *folder) whole() error {
	if len(f.rest) > 0 {
		return fmt.Errorf("%w: an entry was cut off", wire.ErrProtocol)
	}
	return nil
}
