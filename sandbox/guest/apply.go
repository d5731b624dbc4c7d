package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// change is one change to the workspace in the guest.
type change struct {
	c      *Conn
	id     uint32
	credit *wire.Credit
	reply  *wire.Queue
	total  int
	done   chan struct{} // closed when applied and err are final

	watch *time.Timer // fires if the guest has not answered in time

	mu        sync.Mutex
	cancelled bool
	ended     bool
	applied   wire.Applied
	err       error
}

// Apply makes one change to the workspace; see sandbox.Sandbox. Its error is a
// *workspace.Error, or wraps sandbox.ErrLost or context.Cause(ctx). In the last
// case the change may have been made. The Change is valid with a
// *workspace.Error too.
func (c *Conn) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	none := workspace.Change{Kind: op.Kind}
	body, err := encodeOp(op)
	if err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	}
	a := &change{c: c, credit: wire.NewCredit(), reply: wire.NewQueue(), done: make(chan struct{})}
	err = c.openStream(wire.Open{Apply: &wire.Apply{Size: int64(len(body))}}, func(id uint32) call {
		a.id = id
		a.watch = time.AfterFunc(changeTime(c.o.AnswerTime), func() {
			c.lose(errors.New("no answer about a change in its time"))
		})
		return a
	})
	if err != nil {
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, err)
	}
	defer context.AfterFunc(ctx, a.cancel)()
	go a.sendOp(body)
	text := a.receiveChange()
	if a.err != nil {
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, a.err)
	}
	return a.resultOf(ctx, op, text)
}

// changeTime bounds a change that is not cancelled: deleting a million files on
// a slow disk takes minutes.
func changeTime(answer time.Duration) time.Duration { return 20 * answer }

// encodeOp encodes an operation as JSON. It refuses texts that JSON can't
// carry.
func encodeOp(op workspace.Op) ([]byte, error) {
	if !utf8.ValidString(op.Old) || !utf8.ValidString(op.New) {
		return nil, &workspace.Error{Kind: workspace.KindInvalid, Path: op.Path, Detail: "a text is not valid UTF-8"}
	}
	body, err := json.Marshal(op.EncodePaths())
	if err != nil {
		return nil, fmt.Errorf("encode operation: %w", err)
	}
	if len(body) > wire.MaxOp {
		return nil, &workspace.Error{Kind: workspace.KindTooLarge, Path: op.Path, Detail: "the texts of the change are too large"}
	}
	return body, nil
}

// sendOp sends the operation on its credit, which the end of the stream closes.
func (a *change) sendOp(body []byte) {
	for len(body) > 0 {
		n := a.credit.Take(min(len(body), wire.MaxData), nil)
		if n == 0 {
			return
		}
		a.c.send(wire.Frame{Stream: a.id, Type: wire.TypeData, Channel: wire.Stdin, Payload: body[:n]})
		body = body[n:]
	}
	a.c.send(wire.Frame{Stream: a.id, Type: wire.TypeEOF, Channel: wire.Stdin})
}

// receiveChange collects the change and waits for the end of the stream.
func (a *change) receiveChange() []byte {
	var text []byte
	for b := a.reply.Next(); b != nil; b = a.reply.Next() {
		text = append(text, b...)
		a.c.grantCredit(a.id, wire.Stdout, a.reply.Done(len(b)))
	}
	<-a.done
	return text
}

func (a *change) resultOf(ctx context.Context, op workspace.Op, text []byte) (workspace.Change, error) {
	done := workspace.Change{Kind: op.Kind}
	if len(text) > 0 {
		if err := wire.Decode(text, &done); err != nil {
			return a.failProtocol(op, err)
		}
		done = done.DecodePaths()
		if err := checkChange(op, done, a.applied != wire.Applied{}); err != nil {
			return a.failProtocol(op, err)
		}
	} else if a.applied == (wire.Applied{}) {
		return a.failProtocol(op, fmt.Errorf("%w: done without saying what", wire.ErrProtocol))
	}
	switch e := a.applied.Error; {
	case a.applied.Cancelled:
		return done, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	case e != nil:
		return done, &workspace.Error{Kind: workspace.Kind(e.Kind), Path: e.Path, Detail: cleanText(e.Detail)}
	}
	return done, nil
}

// failProtocol ends the connection to a guest that gave an impossible answer.
func (a *change) failProtocol(op workspace.Op, err error) (workspace.Change, error) {
	a.c.lose(err)
	return workspace.Change{Kind: op.Kind}, fmt.Errorf("%s %q: %w", op.Kind, op.Path, a.c.lostError())
}

// cancel asks the guest to stop. It must be called at most once.
func (a *change) cancel() {
	a.mu.Lock()
	ended := a.ended
	if !ended {
		a.cancelled = true
		a.watch.Reset(a.c.o.AnswerTime)
	}
	a.mu.Unlock()
	if ended {
		return
	}
	a.credit.Close()
	if err := a.c.writer.SendJSON(a.id, wire.TypeCancel, wire.Cancel{}); err != nil {
		a.c.lose(err)
	}
}

func (a *change) takeFrame(f wire.Frame) (last bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended { // the connection was lost meanwhile
		return false, nil
	}
	switch {
	case f.Type == wire.TypeCredit && f.Channel == wire.Stdin:
		return false, a.credit.Grant(wire.CreditOf(f))
	case f.Type == wire.TypeData && f.Channel == wire.Stdout:
		if a.total += len(f.Payload); a.total > wire.MaxChange {
			return false, fmt.Errorf("%w: a change of more than %d bytes", wire.ErrProtocol, wire.MaxChange)
		}
		return false, a.reply.Push(f.Payload)
	case f.Type == wire.TypeEOF && f.Channel == wire.Stdout:
		return false, a.reply.End()
	case f.Type == wire.TypeRefused:
		var r wire.Refused
		if err := wire.Decode(f.Payload, &r); err != nil {
			return false, err
		}
		a.conclude(fmt.Errorf("%w: guest: %s", sandbox.ErrUnavailable, cleanText(r.Text)))
		return true, nil
	case f.Type == wire.TypeEnd:
		return true, a.takeEnd(f)
	}
	return false, fmt.Errorf("%w: a guest doesn't send this for a change", wire.ErrProtocol)
}

func (a *change) takeEnd(f wire.Frame) error {
	if err := wire.Decode(f.Payload, &a.applied); err != nil {
		return err
	}
	if _, ended := a.reply.Total(); !ended {
		return fmt.Errorf("%w: the change has not ended", wire.ErrProtocol)
	}
	if a.applied.Cancelled && !a.cancelled {
		return fmt.Errorf("%w: cancelled without a request", wire.ErrProtocol)
	}
	if e := a.applied.Error; e != nil && !knownKind(workspace.Kind(e.Kind)) {
		return fmt.Errorf("%w: unknown kind of error", wire.ErrProtocol)
	}
	a.conclude(nil)
	return nil
}

func (a *change) connectionLost(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		a.conclude(err)
	}
}

func (a *change) conclude(err error) {
	a.ended = true
	a.watch.Stop()
	a.err = err
	a.credit.Close()
	a.reply.Break()
	close(a.done)
}

func knownKind(k workspace.Kind) bool {
	switch k {
	case workspace.KindInvalid, workspace.KindEscape, workspace.KindNotFound, workspace.KindExists,
		workspace.KindNotRegular, workspace.KindIsDir, workspace.KindNotDir, workspace.KindTooLarge,
		workspace.KindPermission, workspace.KindNoMatch, workspace.KindConflict, workspace.KindNoSpace,
		workspace.KindTimeout, workspace.KindIO:
		return true
	}
	return false
}

// checkChange refuses a change that can't be of this operation. The host shows
// and records it, and takes no path from the guest that it did not send itself.
func checkChange(op workspace.Op, c workspace.Change, failed bool) error {
	switch {
	case c.Kind != op.Kind,
		!samePath(op.Path, c.Path) && !(failed && c.Path == ""),
		c.To != "" && !samePath(op.To, c.To):
		return fmt.Errorf("%w: a change of another file than was asked for", wire.ErrProtocol)
	case c.Bytes < 0, c.Replacements < 0, c.Removed < 0, c.Mode > 0o7777,
		len(c.Before) > workspace.MaxPreimageBytes,
		!c.HasBefore && len(c.Before) > 0:
		return fmt.Errorf("%w: a change with impossible numbers", wire.ErrProtocol)
	case op.Kind == workspace.OpWrite && !failed && c.Bytes != int64(len(op.Content)),
		op.Kind == workspace.OpAppend && !failed && c.Bytes < int64(len(op.Content)):
		return fmt.Errorf("%w: wrote %d bytes of %d", wire.ErrProtocol, c.Bytes, len(op.Content))
	}
	return nil
}

// samePath reports whether the guest's relative path is the operation's, with
// or without one of the workspace's absolute prefixes.
func samePath(requested, got string) bool {
	cleaned := path.Clean(requested)
	if got == "." {
		return !strings.HasPrefix(cleaned, "..")
	}
	return got != "" && (cleaned == got || strings.HasSuffix(cleaned, "/"+got)) &&
		!bytes.ContainsRune([]byte(got), 0) && path.Clean(got) == got && !strings.HasPrefix(got, "../") && got != ".."
}

// modes are the type bits of fs.FileMode that each type of file may have.
var modes = map[workspace.Type][]fs.FileMode{
	workspace.TypeFile:    {0},
	workspace.TypeDir:     {fs.ModeDir},
	workspace.TypeSymlink: {fs.ModeSymlink},
	workspace.TypeFIFO:    {fs.ModeNamedPipe},
	workspace.TypeSocket:  {fs.ModeSocket},
	workspace.TypeDevice:  {fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice},
	workspace.TypeMount: {
		0, fs.ModeDir, fs.ModeSymlink, fs.ModeNamedPipe, fs.ModeSocket, fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice,
	},
	workspace.TypeOther: {0},
}

// otherBits are a mode's bits besides its type.
const otherBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// checkNode refuses a description that no file can have.
func checkNode(kind string, size int64, target []byte, mode uint32, modified *wire.Timestamp) error {
	if len(target) > workspace.MaxPathBytes || target != nil && kind != string(workspace.TypeSymlink) {
		return fmt.Errorf("%w: a %.20q has a link target, which only a symlink of a bounded length may have", wire.ErrProtocol, kind)
	}
	for _, bits := range modes[workspace.Type(kind)] {
		if modeOf(mode)&^otherBits == bits && size >= 0 {
			return checkTime(modified)
		}
	}
	return fmt.Errorf("%w: a %.20q of %d bytes with mode %o", wire.ErrProtocol, kind, size, mode)
}

// checkTime refuses times that no file system can store: seconds have at most
// 64 bits, and time.Time holds somewhat fewer.
func checkTime(t *wire.Timestamp) error {
	const most = 1 << 53
	if t != nil && (t[0] < -most || t[0] > most || t[1] < 0 || t[1] >= int64(time.Second)) {
		return fmt.Errorf("%w: time %v", wire.ErrProtocol, *t)
	}
	return nil
}

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode) }

func timeOf(t *wire.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Unix(t[0], t[1])
}

func infoOf(i wire.FileInfo) workspace.Info {
	return workspace.Info{Type: workspace.Type(i.Type), Size: i.Size, Target: string(i.Target), Mode: modeOf(i.Mode), ModTime: timeOf(&i.Modified), Inode: i.Inode}
}
