package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

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
	x := newExchange(c, "a read", wire.MaxDirectoryBytes, func(end wire.ReadResult, cancelled bool) error {
		return checkRead(request.Kind, end, cancelled)
	})
	if err := x.open(wire.Open{Read: &request}, 0); err != nil {
		return wire.ReadResult{}, err
	}
	defer context.AfterFunc(ctx, func() {
		x.reply.Break() // don't wait for the end
		x.cancel()
	})()
	for b := x.reply.Next(); b != nil; b = x.reply.Next() {
		if err := take(b); err != nil {
			return wire.ReadResult{}, c.protocolError(err)
		}
		c.grantCredit(x.id, wire.Stdout, x.reply.Done(len(b)))
	}
	select {
	case <-x.done:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // some data may be missing
		return wire.ReadResult{}, context.Cause(ctx)
	}
	switch e := x.end.Error; {
	case x.err != nil:
		return wire.ReadResult{}, x.err
	case e != nil:
		return wire.ReadResult{}, errorOf(e, x.end.Mount)
	}
	return x.end, nil
}

func errorOf(e *wire.OpError, mount bool) *workspace.Error {
	err := &workspace.Error{Kind: workspace.Kind(e.Kind), Detail: cleanText(e.Detail)}
	if mount {
		err.Err = workspace.ErrMount
	}
	return err
}

// checkRead refuses an end that is impossible for a read of this kind.
func checkRead(kind wire.ReadKind, a wire.ReadResult, cancelled bool) error {
	failed := a.Error != nil || a.Cancelled
	switch {
	case a.Cancelled && !cancelled:
		return fmt.Errorf("%w: cancelled without a request", wire.ErrProtocol)
	case a.Error != nil && (a.Cancelled || !knownKind(workspace.Kind(a.Error.Kind))),
		a.Mount && a.Error == nil,
		failed && (a.Info != nil || a.More),
		a.More && kind == wire.ReadInfo,
		!failed && (a.Info != nil) != (kind == wire.ReadInfo || kind == wire.ReadFile):
		return fmt.Errorf("%w: an end that doesn't fit the read", wire.ErrProtocol)
	}
	if i := a.Info; i != nil {
		return checkNode(i.Type, i.Size, i.Target, i.Mode, &i.Modified)
	}
	return nil
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
		var whole bool
		var err error
		if b, whole, err = appendLine(&f.rest, b); err != nil || !whole {
			return err
		}
		if err := f.takeLine(f.rest); err != nil {
			return err
		}
		f.rest = f.rest[:0]
	}
	return nil
}

// appendLine moves bytes from b to line, up to the end of the line. It returns
// the rest, and whether the line is whole.
func appendLine(line *[]byte, b []byte) (rest []byte, whole bool, err error) {
	end := len(b)
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		end = i + 1
		whole = true
	}
	*line = append(*line, b[:end]...)
	if len(*line) > wire.MaxEntryLine {
		return nil, false, fmt.Errorf("%w: a line of more than %d bytes", wire.ErrProtocol, wire.MaxEntryLine)
	}
	return b[end:], whole, nil
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
		Path: name, Type: workspace.Type(e.Type), Size: e.Size, Target: string(e.Target), Mode: fs.FileMode(e.Mode),
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
