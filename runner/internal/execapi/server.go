package execapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const (
	// maxPeers bounds the concurrent commands of one session.
	maxPeers = 16
	// maxConns bounds the open connections of one session, including idle ones. More have to
	// wait.
	maxConns = 4 * maxPeers
	// resultTime bounds how long a peer that does not read delays the end of its command.
	resultTime = 2 * time.Second
)

// requestTime bounds the wait for a peer's request. A test shortens it.
var requestTime = 5 * time.Second

// Handler runs one command. If ctx is cancelled, it cancels the command and still returns its
// result. stdin is nil if the peer sends none.
type Handler func(ctx context.Context, r Request, stdin io.Reader, stdout, stderr io.Writer) Result

// Handlers serve the requests of peers.
type Handlers struct {
	Run Handler
	// End begins the end of the session and doesn't wait. If it is nil, requests for that are
	// refused.
	End func()
}

// Server runs the commands of peers. The caller of [Listen] closes it.
type Server struct {
	listener *net.UnixListener
	remove   func()
	handlers Handlers
	stop     context.CancelCauseFunc
	peers    sync.WaitGroup
	slots    chan struct{} // for running commands
	conns    chan struct{} // for open connections
	once     sync.Once

	mu         sync.Mutex
	detachable map[string]*detachable // the running ones, by their ids
}

var errPeerGone = errors.New("the client that requested it went away")

// newServer starts a server, which accepts connections until it is closed. Commands end with ctx.
func newServer(ctx context.Context, l *net.UnixListener, remove func(), handlers Handlers) *Server {
	ctx, stop := context.WithCancelCause(ctx)
	s := &Server{listener: l, remove: remove, handlers: handlers, stop: stop, slots: make(chan struct{}, maxPeers), conns: make(chan struct{}, maxConns), detachable: map[string]*detachable{}}
	s.peers.Go(func() { s.acceptPeers(ctx) })
	return s
}

// Close cancels the running commands with cause, waits for them, and removes the socket. A second
// call does nothing.
func (s *Server) Close(cause error) {
	s.once.Do(func() {
		s.stop(cause)
		s.remove()
		_ = s.listener.Close() // its socket is already removed
		s.peers.Wait()
	})
}

func (s *Server) acceptPeers(ctx context.Context) {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // a temporary shortage, for example of file descriptors
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case s.conns <- struct{}{}: // soon: only commands keep one open for long
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
		s.peers.Go(func() {
			defer func() {
				_ = conn.Close() // everything was sent, or can't be
				<-s.conns
			}()
			s.servePeer(ctx, conn)
		})
	}
}

func (s *Server) servePeer(ctx context.Context, conn *net.UnixConn) {
	pid, err := checkPeer(conn)
	if err != nil {
		return // another user's process
	}
	frames := wire.NewWriter(conn)
	_ = conn.SetReadDeadline(time.Now().Add(requestTime))
	in := wire.NewReader(conn)
	f, err := in.Next()
	var r Request
	if err != nil || f.Type != wire.TypeOpen || f.Stream != stream || json.Unmarshal(f.Payload, &r) != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	r.PID = pid
	if r.End {
		sendResult(conn, frames, s.endSession())
		return
	}
	if r.Attach != nil {
		sendResult(conn, frames, s.attachPeer(conn, in, frames, r))
		return
	}
	select {
	case s.slots <- struct{}{}:
		release := sync.OnceFunc(func() { <-s.slots })
		if r.Detachable && r.Terminal != nil {
			c := s.startDetachable(ctx, r, release)
			sendResult(conn, frames, s.servePeerOf(c, conn, in, frames, *r.Terminal))
			return
		}
		defer release()
	default:
		sendResult(conn, frames, Result{Failure: &Failure{
			Kind: "busy", Cause: fmt.Sprintf("%d commands of users run in this session already", maxPeers), Hint: "Wait until one ends.",
		}})
		return
	}
	sendResult(conn, frames, s.runCommand(ctx, conn, in, frames, r))
}

func (s *Server) endSession() Result {
	if s.handlers.End == nil {
		return Result{Failure: &Failure{Kind: "not_held", Cause: "the session belongs to a run or a server, which ends it", Hint: "End it there."}}
	}
	s.handlers.End()
	return Result{}
}

// runCommand runs the command of a request while it reads the peer's frames.
func (s *Server) runCommand(ctx context.Context, conn *net.UnixConn, in *wire.Reader, frames *wire.Writer, r Request) Result {
	ctx, cancel := context.WithCancelCause(ctx)
	input := &stdin{queue: wire.NewQueue(), frames: frames}
	// After a cancellation, unread output must not delay the end: each write is bounded, also the
	// one in progress. Each later write gets a new bound, since the command may write until the
	// end of its grace period.
	bound := func() {
		_ = conn.SetWriteDeadline(time.Now().Add(resultTime)) // a closed connection fails to write, too
	}
	stop := context.AfterFunc(ctx, bound)
	before := func() {
		if ctx.Err() != nil {
			bound()
		}
	}
	sizes := make(chan sandbox.TerminalSize, 1)
	r.Resizes = sizes
	resize := func(size sandbox.TerminalSize) {
		select {
		case <-sizes: // an older one
		default:
		}
		sizes <- size
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := readPeer(in, input.queue, resize, cancel)
		input.queue.Break()
		cancel(err)
	}()
	var from io.Reader
	if r.Stdin {
		from = input
	}
	result := s.handlers.Run(ctx, r, from, output{frames, channelStdout, before}, output{frames, channelStderr, before})
	stop()
	_ = conn.CloseRead() // ends readPeer
	<-done
	return result
}

// readPeer reads a peer's frames until it closes the connection or violates the protocol.
func readPeer(in *wire.Reader, queue *wire.Queue, resize func(sandbox.TerminalSize), cancel context.CancelCauseFunc) error {
	for {
		f, err := in.Next()
		switch {
		case errors.Is(err, wire.ErrProtocol):
			return err
		case err != nil:
			return fmt.Errorf("%w: %w", errPeerGone, err)
		case f.Type == wire.TypeCancel:
			cancel(context.Canceled)
		case f.Type == wire.TypeResize:
			resize(sandbox.TerminalSize(wire.TerminalSizeOf(f)))
		case f.Type == wire.TypeData && f.Channel == channelStdin:
			err = queue.Push(f.Payload)
		case f.Type == wire.TypeEOF && f.Channel == channelStdin:
			err = queue.End()
		default:
			err = fmt.Errorf("%w: frame type %d on channel %d", wire.ErrProtocol, f.Type, f.Channel)
		}
		if err != nil {
			return err
		}
	}
}

func sendResult(conn net.Conn, frames *wire.Writer, r Result) {
	_ = conn.SetWriteDeadline(time.Now().Add(resultTime)) // a closed connection fails to write, too
	_ = frames.SendJSON(stream, wire.TypeEnd, r)          // a peer that is gone gets none
}

// stdin is a command's standard input, as received. It is for one goroutine.
type stdin struct {
	queue  *wire.Queue
	frames *wire.Writer
	rest   []byte
}

// Read waits for input. It fails with [io.ErrUnexpectedEOF] if the peer went away before the end.
func (in *stdin) Read(p []byte) (int, error) {
	if len(in.rest) == 0 {
		in.rest = in.queue.Next()
	}
	if len(in.rest) == 0 {
		if _, ended := in.queue.Total(); ended {
			return 0, io.EOF
		}
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	if grant := in.queue.Done(n); grant > 0 {
		_ = in.frames.SendCredit(stream, channelStdin, grant) // a peer that is gone sends no more
	}
	return n, nil
}
