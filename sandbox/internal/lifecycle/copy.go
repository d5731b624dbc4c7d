package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// sendTime bounds sending a workspace.
const sendTime = 10 * time.Minute

// sendCopy sends the workspace's copy into the container, where a command with
// the agent's identity unpacks it, and opens it as s.copy.
func (s *Sandbox) sendCopy(ctx context.Context) error {
	p := &s.prep
	if p.Mounts.Mode != sandbox.ModeCopy {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sendErr, err := Pipe(func(w io.Writer) error {
		err := overlay.WriteTree(ctx, w, p.Spec.Workspace.Layers, p.Spec.Workspace.Lowers, p.Spec.Workspace.Dir, p.copyBounds())
		if err != nil {
			cancel(err)
		}
		return err
	}, func(r io.Reader) error { return s.unpackCopy(ctx, r) })
	if sendErr != nil {
		err = sendErr
	}
	if e, ok := errors.AsType[*overlay.SizeError](err); ok {
		return fmt.Errorf("workspace %s: %w: %w: raise the bounds (copy_bytes, copy_entries; CopyBytes and CopyEntries in Go), move these elsewhere, or use an image that has them",
			p.Mounts.Path, sandbox.ErrInvalid, e)
	}
	if err != nil {
		return fmt.Errorf("send workspace: %w", err)
	}
	most := p.copyBounds()
	most.Bytes, most.Entries = copyGrowth*most.Bytes, copyGrowth*most.Entries
	s.copy, err = overlay.OpenCopy(ctx, p.Spec.Workspace.Layers, s.link.conn.View(), most)
	return err
}

// Pipe calls read with a reader of everything that write writes, and returns
// their errors. If read returns early, write fails, but writeErr is nil.
func Pipe(write func(io.Writer) error, read func(io.Reader) error) (writeErr, readErr error) {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err)
		written <- err
	}()
	readErr = read(r)
	r.CloseWithError(errUnread)
	writeErr = <-written
	if errors.Is(writeErr, errUnread) {
		writeErr = nil
	}
	return writeErr, readErr
}

var errUnread = errors.New("nothing more is read")

func (s *Sandbox) unpackCopy(ctx context.Context, content io.Reader) error {
	var text strings.Builder
	process, err := s.link.conn.Start(ctx, sandbox.Command{
		Argv: []string{sandbox.GuestPath, archive.UnpackWord, s.prep.Mounts.Target}, Stdin: content, Stderr: &text,
		Timeout: sendTime, Output: sandbox.OutputLimits{Live: maxUnpackText},
	})
	if err != nil {
		return err
	}
	exit, err := process.Wait()
	if err != nil {
		return err
	}
	if !exit.Status.Success() {
		return fmt.Errorf("%w: unpacking it ended with %d: %.400q", sandbox.ErrUnavailable, exit.Status.Code, text.String())
	}
	return nil
}

// maxUnpackText bounds the unpacking command's messages.
const maxUnpackText = 4 << 10
