package execapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/internal/terminal"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// readTime is how long a detachable command waits for a peer that doesn't read. Then the peer is
// detached. A test shortens it.
var readTime = 10 * time.Second

// detachable is a running command that goes on without a peer.
type detachable struct {
	argv     []string
	terminal *terminal.Terminal
	result   Result // once the terminal has ended
}

// startDetachable starts a command, and calls release at its end.
func (s *Server) startDetachable(ctx context.Context, r Request, release func()) *detachable {
	c := &detachable{argv: r.Args(), terminal: terminal.New(*r.Terminal)}
	r.ID, r.Resizes = record.NewID("exe"), c.terminal.ForCommand().Resizes
	s.mu.Lock()
	s.detachable[r.ID] = c
	s.mu.Unlock()
	s.peers.Go(func() {
		defer release()
		defer context.AfterFunc(ctx, c.terminal.Hurry)()
		c.result = s.handlers.Run(ctx, r, c.terminal, c.terminal, c.terminal)
		s.mu.Lock()
		delete(s.detachable, r.ID)
		s.mu.Unlock()
		c.terminal.End()
	})
	return c
}

// attachPeer gives the terminal of a running command to a peer.
func (s *Server) attachPeer(conn *net.UnixConn, in *wire.Reader, frames *wire.Writer, r Request) Result {
	c, failure := s.findDetachable(*r.Attach)
	if failure != nil {
		return Result{Failure: failure}
	}
	var size sandbox.TerminalSize
	if r.Terminal != nil {
		size = *r.Terminal
	}
	return s.servePeerOf(c, conn, in, frames, size)
}

// findDetachable returns the only running command whose id begins with a text.
func (s *Server) findDetachable(id string) (*detachable, *Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []string
	for _, name := range slices.Sorted(maps.Keys(s.detachable)) {
		if strings.HasPrefix(name, id) {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 1:
		return s.detachable[found[0]], nil
	case 0:
		return nil, &Failure{
			Kind: "command", Cause: "no command with this id that can be attached to is running", Hint: "The session's records tell how ended ones ended.",
		}
	}
	var lines strings.Builder
	for _, name := range found {
		fmt.Fprintf(&lines, "\n  %s %q", name, s.detachable[name].argv)
	}
	return nil, &Failure{Kind: "command", Cause: fmt.Sprintf("%d commands can be attached to:%s", len(found), lines.String()), Hint: "Name one, after the session."}
}

// servePeerOf connects a peer with a command until the command ends, or the peer leaves it.
func (s *Server) servePeerOf(c *detachable, conn *net.UnixConn, in *wire.Reader, frames *wire.Writer, size sandbox.TerminalSize) Result {
	client := c.terminal.Attach(size)
	input := &stdin{queue: wire.NewQueue(), frames: frames}
	var peer sync.WaitGroup
	peer.Go(func() {
		_ = readPeer(in, input.queue, client.Resize, func(error) {}) // however it ends, the peer is gone
		input.queue.Break()
		client.Detach()
	})
	peer.Go(func() { _, _ = io.Copy(client, input) }) // as above
	to := output{frames, channelStdout, func() { _ = conn.SetWriteDeadline(time.Now().Add(readTime)) }}
	var err error
	for err == nil {
		var p []byte
		if p, err = client.Next(); err == nil {
			_, err = to.Write(p)
			_ = conn.SetWriteDeadline(time.Time{}) // which would be over at the next write
		}
	}
	client.Detach()
	_ = conn.CloseRead()                                  // ends readPeer
	_ = conn.SetWriteDeadline(time.Now().Add(resultTime)) // ends what stdin sends
	peer.Wait()
	if errors.Is(err, io.EOF) {
		return c.result
	}
	return Result{Detached: true}
}
