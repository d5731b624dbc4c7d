package execsock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxPeers bounds commands at once: a person has one or two.
	maxPeers = 16
	// helloTime is how long a peer may take to say what it wants.
	helloTime = 5 * time.Second
	// goodbyeTime is how long a peer that reads nothing may hold up the end of
	// its command.
	goodbyeTime = 2 * time.Second
)

// Handler runs one command. Cancelling ctx cancels the command; the handler
// then still returns its result. stdin is nil where none comes.
type Handler func(ctx context.Context, r Request, stdin io.Reader, stdout, stderr io.Writer) Result

// Server takes commands. Whoever made it closes it.
type Server struct {
	listener *net.UnixListener
	remove   func()
	handle   Handler
	stop     context.CancelCauseFunc
	peers    sync.WaitGroup
	slots    chan struct{}
	once     sync.Once
}

// errGone is the cause of a command whose asker hung up.
var errGone = errors.New("who asked for it went away")

// serve starts to take connections. Commands end with ctx.
func serve(ctx context.Context, l *net.UnixListener, remove func(), handle Handler) *Server {
	ctx, stop := context.WithCancelCause(ctx)
	s := &Server{listener: l, remove: remove, handle: handle, stop: stop, slots: make(chan struct{}, maxPeers)}
	s.peers.Go(func() { s.accept(ctx) })
	return s
}

// Close cancels what runs, waits for it, and removes the socket. A second call
// does nothing.
func (s *Server) Close(cause error) {
	s.once.Do(func() {
		s.stop(cause)
		s.remove()
		s.listener.Close() //nolint:errcheck // nobody can connect any more
		s.peers.Wait()
	})
}

func (s *Server) accept(ctx context.Context) {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of descriptors, for instance: it passes.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		s.peers.Go(func() {
			defer conn.Close() //nolint:errcheck // everything was sent, or can't be
			s.serve(ctx, conn)
		})
	}
}

// serve does what one peer asks.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	pid, err := checkPeer(conn)
	if err != nil {
		return // another user's
	}
	out := &sender{conn: conn}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		finish(out, Result{Failure: &Failure{
			Status: 1, Cause: fmt.Sprintf("%d commands of users run in this session already", maxPeers), Mend: "Wait until one ends.",
		}})
		return
	}
	conn.SetReadDeadline(time.Now().Add(helloTime)) //nolint:errcheck // an open socket takes it
	k, payload, err := readFrame(conn)
	var r Request
	if err != nil || k != kindRequest || json.Unmarshal(payload, &r) != nil {
		return
	}
	conn.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	r.PID = pid
	finish(out, s.command(ctx, conn, out, r))
}

// command runs the command of a request.
func (s *Server) command(ctx context.Context, conn *net.UnixConn, out *sender, r Request) Result {
	ctx, cancel := context.WithCancelCause(ctx)
	in := newStdin(out)
	// Once it is cancelled, output that nobody reads must not hold it up.
	relent := context.AfterFunc(ctx, func() {
		conn.SetWriteDeadline(time.Now().Add(goodbyeTime)) //nolint:errcheck // a closed one fails anyway
	})
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		err := listen(conn, in, cancel)
		in.end(io.ErrUnexpectedEOF)
		cancel(err)
	}()
	var given io.Reader
	if r.Stdin {
		given = in
	}
	result := s.handle(ctx, r, given, output{out, kindStdout}, output{out, kindStderr})
	relent()
	conn.CloseRead() //nolint:errcheck // ends the reading
	<-reading
	return result
}

// listen takes what the peer says until it hangs up or breaks the rules.
func listen(conn io.Reader, in *stdin, cancel context.CancelCauseFunc) error {
	for {
		k, payload, err := readFrame(conn)
		if err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
		switch k {
		case kindStdin:
			err = in.add(payload)
		case kindStdinEnd:
			in.end(io.EOF)
		case kindCancel:
			cancel(context.Canceled)
		default:
			err = fmt.Errorf("%w: a frame of kind %d", errProtocol, k)
		}
		if err != nil {
			return err
		}
	}
}

// finish sends the result, in bounded time.
func finish(out *sender, r Result) {
	data, err := json.Marshal(r)
	if err != nil || len(data) > maxResult {
		data = []byte(`{"failure":{"status":1,"cause":"the result can't be told","mend":"The session's records have it."}}`)
	}
	out.conn.SetWriteDeadline(time.Now().Add(goodbyeTime)) //nolint:errcheck // a closed one fails anyway
	_ = out.send(kindResult, data)                         // who went away is not told
}
