package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

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
	x := newExchange(c, "a change", wire.MaxChange, checkApplied)
	if err := x.open(wire.Open{Apply: &wire.Apply{Size: int64(len(body))}}, changeTime(c.o.AnswerTime)); err != nil {
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, err)
	}
	defer context.AfterFunc(ctx, x.cancel)()
	go sendOp(x, body)
	var text []byte
	for b := x.reply.Next(); b != nil; b = x.reply.Next() {
		text = append(text, b...)
		c.grantCredit(x.id, wire.Stdout, x.reply.Done(len(b)))
	}
	<-x.done
	if x.err != nil {
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, x.err)
	}
	change, err := decodeChange(op, text, x.end)
	switch e := x.end.Error; {
	case err != nil:
		return none, fmt.Errorf("%s %q: %w", op.Kind, op.Path, c.protocolError(err))
	case x.end.Cancelled:
		return change, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	case e != nil:
		return change, &workspace.Error{Kind: workspace.Kind(e.Kind), Path: e.Path, Detail: cleanText(e.Detail)}
	}
	return change, nil
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
func sendOp(x *exchange[wire.Applied], body []byte) {
	for len(body) > 0 {
		n := x.input.Take(min(len(body), wire.MaxData), nil)
		if n == 0 {
			return
		}
		x.c.send(wire.Frame{Stream: x.id, Type: wire.TypeData, Channel: wire.Stdin, Payload: body[:n]})
		body = body[n:]
	}
	x.c.send(wire.Frame{Stream: x.id, Type: wire.TypeEOF, Channel: wire.Stdin})
}

// checkApplied refuses an end that can't be true.
func checkApplied(end wire.Applied, cancelled bool) error {
	if end.Cancelled && !cancelled {
		return fmt.Errorf("%w: cancelled without a request", wire.ErrProtocol)
	}
	if e := end.Error; e != nil && !knownKind(workspace.Kind(e.Kind)) {
		return fmt.Errorf("%w: unknown kind of error", wire.ErrProtocol)
	}
	return nil
}

// decodeChange decodes the guest's account of op, which may be empty if op failed.
func decodeChange(op workspace.Op, text []byte, end wire.Applied) (workspace.Change, error) {
	change := workspace.Change{Kind: op.Kind}
	failed := end != wire.Applied{}
	if len(text) == 0 && !failed {
		return change, fmt.Errorf("%w: done without saying what", wire.ErrProtocol)
	}
	if len(text) == 0 {
		return change, nil
	}
	if err := wire.Decode(text, &change); err != nil {
		return change, err
	}
	change = change.DecodePaths()
	return change, checkChange(op, change, failed)
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
		!strings.ContainsRune(got, 0) && path.Clean(got) == got && !strings.HasPrefix(got, "../") && got != ".."
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
		if fs.FileMode(mode)&^otherBits == bits && size >= 0 {
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

func timeOf(t *wire.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Unix(t[0], t[1])
}

func infoOf(i wire.FileInfo) workspace.Info {
	return workspace.Info{Type: workspace.Type(i.Type), Size: i.Size, Target: string(i.Target), Mode: fs.FileMode(i.Mode), ModTime: timeOf(&i.Modified), Inode: i.Inode}
}
