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

// View reads the workspace through the guest, if wire.Config.View is set. Its
// methods return sandbox.ErrLost once the connection has ended.
func (c *Conn) View() *workspace.Reader {
	return workspace.NewRemoteReader(remote{c}, workspace.ReaderOptions{
		HostPath: c.o.Config.HostWorkspace, ContainerPath: c.o.Config.Workspace,
	})
}

// remote implements workspace.Remote. Each call is one read in the guest.
type remote struct{ c *Conn }

func (r remote) Stat(ctx context.Context, path string, follow bool) (workspace.Info, error) {
	answer, err := r.c.readWorkspace(ctx, wire.ReadRequest{Kind: wire.ReadInfo, Path: []byte(path), Follow: follow}, refuseData)
	if err != nil {
		return workspace.Info{}, err
	}
	return infoOf(*answer.Info), nil
}

func (r remote) ReadDir(ctx context.Context, path string, follow bool, capacity workspace.Capacity) (entries []workspace.Entry, more bool, err error) {
	capacity.Entries, capacity.Bytes = min(capacity.Entries, wire.MaxReadEntries), min(capacity.Bytes, wire.MaxReadText)
	f := directoryReader{path: path, capacity: capacity}
	answer, err := r.c.readWorkspace(ctx, wire.ReadRequest{Kind: wire.ReadDirectory, Path: []byte(path), Follow: follow, Most: int64(capacity.Entries), Text: capacity.Bytes}, f.takeData)
	if err == nil {
		if err = f.checkWhole(); err != nil {
			return nil, false, r.c.protocolError(err)
		}
	}
	return f.entries, answer.More, err
}

func (r remote) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	most = min(most, wire.MaxReadBytes)
	var data []byte
	answer, err := r.c.readWorkspace(ctx, wire.ReadRequest{Kind: wire.ReadFile, Path: []byte(path), Offset: offset, Most: most}, func(b []byte) error {
		if int64(len(data)+len(b)) > most {
			return fmt.Errorf("%w: more of a file than was asked for", wire.ErrProtocol)
		}
		data = append(data, b...)
		return nil
	})
	if err != nil {
		return workspace.File{}, err
	}
	f := workspace.File{Info: infoOf(*answer.Info), Offset: offset, Data: data, Truncated: answer.More}
	switch got := int64(len(data)); {
	case f.Type != workspace.TypeFile, got > 0 && f.Size-got < offset, f.Truncated && got < most:
		return workspace.File{}, r.c.protocolError(fmt.Errorf("%w: a file with impossible numbers", wire.ErrProtocol))
	}
	return f, nil
}

// protocolError ends the connection to a guest that gave an impossible answer,
// and returns the error.
func (c *Conn) protocolError(lie error) error {
	c.lose(lie)
	return c.lostError()
}

// refuseData is for answers without data.
func refuseData([]byte) error { return fmt.Errorf("%w: data in an answer without", wire.ErrProtocol) }

// readCall is one read of the workspace in the guest.
type readCall struct {
	c     *Conn
	id    uint32
	kind  wire.ReadKind
	reply *wire.Queue
	done  chan struct{} // closed when answer and err are final

	mu        sync.Mutex
	cancelled bool
	ended     bool
	answer    wire.ReadResult
	err       error
	silence   *time.Timer
}

// maxReads bounds the open reads: half of the streams that a guest accepts.
const maxReads = 64

// readWorkspace sends the request to the guest and calls take with the answer's
// data. When ctx ends it cancels the request and returns at once. The
// connection is lost if the guest does not end the stream within
// Options.AnswerTime after that.
func (c *Conn) readWorkspace(ctx context.Context, request wire.ReadRequest, take func([]byte) error) (wire.ReadResult, error) {
	if ctx.Err() != nil {
		return wire.ReadResult{}, context.Cause(ctx)
	}
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	case <-ctx.Done():
		return wire.ReadResult{}, context.Cause(ctx)
	}
	l := &readCall{c: c, kind: request.Kind, reply: wire.NewQueue(), done: make(chan struct{})}
	err := c.openStream(wire.Open{Read: &request}, func(id uint32) call {
		l.id = id
		return l
	})
	if err != nil {
		return wire.ReadResult{}, err
	}
	defer context.AfterFunc(ctx, l.cancel)()
	for b := l.reply.Next(); b != nil; b = l.reply.Next() {
		if err := take(b); err != nil {
			return wire.ReadResult{}, c.protocolError(err)
		}
		c.grantCredit(l.id, wire.Stdout, l.reply.Done(len(b)))
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return wire.ReadResult{}, context.Cause(ctx)
	}
	return l.result(ctx)
}

func (l *readCall) result(ctx context.Context) (wire.ReadResult, error) {
	switch e := l.answer.Error; {
	case ctx.Err() != nil: // some data may be missing
		return wire.ReadResult{}, context.Cause(ctx)
	case l.err != nil:
		return wire.ReadResult{}, l.err
	case e != nil:
		return wire.ReadResult{}, errorOf(e, l.answer.Mount)
	}
	return l.answer, nil
}

func errorOf(e *wire.OpError, mount bool) *workspace.Error {
	err := &workspace.Error{Kind: workspace.Kind(e.Kind), Detail: cleanText(e.Detail)}
	if mount {
		err.Err = workspace.ErrMount
	}
	return err
}

// cancel asks the guest to stop, once.
func (l *readCall) cancel() {
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

func (l *readCall) takeFrame(f wire.Frame) (last bool, err error) {
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
		if total, _ := l.reply.Total(); total > wire.MaxDirectoryBytes {
			return false, fmt.Errorf("%w: an answer of more than %d bytes", wire.ErrProtocol, wire.MaxDirectoryBytes)
		}
		return false, nil
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdout:
		return false, l.reply.End()
	case f.Type == wire.TypeRefused:
		var r wire.Refused
		if err := wire.Decode(f.Payload, &r); err != nil {
			return false, err
		}
		l.conclude(fmt.Errorf("%w: guest: %s", sandbox.ErrUnavailable, cleanText(r.Text)))
		return true, nil
	case f.Type == wire.TypeEnd:
		return true, l.takeEnd(f)
	}
	return false, fmt.Errorf("%w: a guest doesn't send this for a read", wire.ErrProtocol)
}

func (l *readCall) takeEnd(f wire.Frame) error {
	if err := wire.Decode(f.Payload, &l.answer); err != nil {
		return err
	}
	if _, ended := l.reply.Total(); !ended {
		return fmt.Errorf("%w: the answer has not ended", wire.ErrProtocol)
	}
	if err := l.checkEnd(); err != nil {
		return err
	}
	l.conclude(nil)
	return nil
}

// checkEnd refuses an end that is impossible for this request.
func (l *readCall) checkEnd() error {
	a := l.answer
	failed := a.Error != nil || a.Cancelled
	switch {
	case a.Cancelled && !l.cancelled:
		return fmt.Errorf("%w: cancelled without a request", wire.ErrProtocol)
	case a.Error != nil && (a.Cancelled || !knownKind(workspace.Kind(a.Error.Kind))),
		a.Mount && a.Error == nil,
		failed && (a.Info != nil || a.More),
		a.More && l.kind == wire.ReadInfo,
		!failed && (a.Info != nil) != (l.kind == wire.ReadInfo || l.kind == wire.ReadFile):
		return fmt.Errorf("%w: an end that doesn't fit the read", wire.ErrProtocol)
	}
	if i := a.Info; i != nil {
		return checkNode(i.Type, i.Size, i.Target, i.Mode, &i.Modified)
	}
	return nil
}

func (l *readCall) connectionLost(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.conclude(err)
	}
}

func (l *readCall) conclude(err error) {
	l.ended = true
	l.err = err
	if l.silence != nil {
		l.silence.Stop()
	}
	l.reply.Break()
	close(l.done)
}

// directoryReader takes a directory's lines as they come.
type directoryReader struct {
	path     string
	capacity workspace.Capacity
	last     string
	rest     []byte
	entries  []workspace.Entry
}

func (f *directoryReader) takeData(b []byte) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		end := i + 1
		if i < 0 {
			end = len(b)
		}
		if f.rest = append(f.rest, b[:end]...); len(f.rest) > wire.MaxEntryLine {
			return fmt.Errorf("%w: an entry of more than %d bytes", wire.ErrProtocol, wire.MaxEntryLine)
		}
		b = b[end:]
		if i < 0 {
			return nil
		}
		if err := f.takeLine(f.rest); err != nil {
			return err
		}
		f.rest = f.rest[:0]
	}
	return nil
}

// takeLine parses one entry. Names must be plain and in order.
func (f *directoryReader) takeLine(line []byte) error {
	var e wire.DirEntry
	if err := wire.Decode(line, &e); err != nil {
		return err
	}
	name := string(e.Name)
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"), len(name) > workspace.MaxNameBytes:
		return fmt.Errorf("%w: %.40q is no name", wire.ErrProtocol, name)
	case name <= f.last:
		return fmt.Errorf("%w: entries out of order", wire.ErrProtocol)
	}
	if err := errors.Join(checkNode(e.Type, e.Size, e.Target, e.Mode, e.Modified), checkTime(e.Changed)); err != nil {
		return err
	}
	f.last = name
	if f.path != "." {
		name = f.path + "/" + name
	}
	entry := workspace.Entry{
		Path: name, Type: workspace.Type(e.Type), Size: e.Size, Target: string(e.Target), Mode: modeOf(e.Mode),
		ModTime: timeOf(e.Modified), ChangeTime: timeOf(e.Changed), Inode: e.Inode,
	}
	if !f.capacity.Fits(entry) {
		return fmt.Errorf("%w: more entries than were asked for", wire.ErrProtocol)
	}
	f.capacity.Take(entry)
	f.entries = append(f.entries, entry)
	return nil
}

// checkWhole refuses a listing that was cut off.
func (f *directoryReader) checkWhole() error {
	if len(f.rest) > 0 {
		return fmt.Errorf("%w: an entry was cut off", wire.ErrProtocol)
	}
	return nil
}
