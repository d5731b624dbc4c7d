package execapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const socket = "exec.sock"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listening makes a socket, in a directory whose path is longer than an address may be, and closes it
// with the test.
func listening(t *testing.T, handle Handler) (string, *Server) {
	t.Helper()
	return listeningFor(t, Handlers{Run: handle})
}

func listeningFor(t *testing.T, handlers Handlers) (string, *Server) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	must(t, os.Mkdir(dir, 0o700))
	s, err := Listen(t.Context(), dir, socket, handlers)
	must(t, err)
	t.Cleanup(func() { s.Close(errors.New("the test ends")) })
	return dir, s
}

func dial(t *testing.T, dir string) net.Conn {
	t.Helper()
	conn, err := Dial(dir, socket)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// echo copies its input to standard output, repeats its request, and ends with a code.
func echo(_ context.Context, r Request, stdin io.Reader, stdout, stderr io.Writer) Result {
	if stdin != nil {
		if _, err := io.Copy(stdout, stdin); err != nil {
			return Result{Failure: &Failure{Kind: "other", Cause: err.Error()}}
		}
	}
	stderr.Write(bytes.Join(r.Argv, []byte("|")))
	return Result{Status: sandbox.ExitStatus{Code: 7}, Shortage: sandbox.Shortage{Full: []string{"/tmp"}}, Killed: int(min(r.PID, 1))}
}

func TestRun(t *testing.T) {
	dir, _ := listening(t, echo)
	input := bytes.Repeat([]byte("0123456789abcdef"), wire.Window/4) // 4 windows
	var stdout, stderr bytes.Buffer
	argv := [][]byte{[]byte("a"), []byte("b c"), []byte("\xff\x00")}
	r, err := Run(t.Context(), dial(t, dir), Request{Argv: argv}, Streams{Stdin: bytes.NewReader(input), Stdout: &stdout, Stderr: &stderr}, nil)
	must(t, err)
	if !reflect.DeepEqual(r, Result{Status: sandbox.ExitStatus{Code: 7}, Shortage: sandbox.Shortage{Full: []string{"/tmp"}}, Killed: 1}) || !bytes.Equal(stdout.Bytes(), input) || stderr.String() != "a|b c|\xff\x00" {
		t.Errorf("%+v, %d bytes, %q", r, stdout.Len(), &stderr)
	}
	stdout.Reset()
	if r, err = Run(t.Context(), dial(t, dir), Request{Argv: argv}, Streams{Stdout: &stdout, Stderr: io.Discard}, nil); r.Status.Code != 7 || stdout.Len() > 0 {
		t.Errorf("without stdin: %+v %v", r, err)
	}
}

// TestTerminalOfARequest checks that the terminal, its variables and its last size arrive, also if
// nobody reads the sizes in between.
func TestTerminalOfARequest(t *testing.T) {
	read := make(chan struct{})
	dir, _ := listening(t, func(_ context.Context, r Request, _ io.Reader, stdout, _ io.Writer) Result {
		fmt.Fprintln(stdout, *r.Terminal, r.Env)
		<-read
		for size := range r.Resizes {
			if size.Rows == 9 {
				return Result{}
			}
		}
		return Result{Status: sandbox.ExitStatus{Code: 1}}
	})
	sizes := make(chan sandbox.TerminalSize)
	go func() {
		for rows := range uint16(10) {
			sizes <- sandbox.TerminalSize{Rows: rows}
		}
		close(read)
	}()
	var stdout bytes.Buffer
	r, err := Run(t.Context(), dial(t, dir), Request{
		Argv: [][]byte{[]byte("x")}, Env: []string{"TERM=xterm"}, Terminal: &sandbox.TerminalSize{Rows: 24, Columns: 80}, Resizes: sizes,
	}, Streams{Stdout: &stdout, Stderr: io.Discard}, nil)
	if err != nil || r.Status.Code != 0 || stdout.String() != "{24 80} [TERM=xterm]\n" {
		t.Errorf("%+v, %v, %q", r, err, &stdout)
	}
}

// Input that the command does not read delays neither its end nor a cancellation.
func TestStdinThatNobodyReads(t *testing.T) {
	dir, _ := listening(t, func(ctx context.Context, r Request, _ io.Reader, stdout, _ io.Writer) Result {
		stdout.Write([]byte("running"))
		waits := string(r.Argv[0]) == "wait"
		if waits {
			<-ctx.Done()
		}
		return Result{Status: sandbox.ExitStatus{Code: -1, Cancelled: waits}} // the other may be cancelled while it ends
	})
	for _, program := range []string{"end", "wait"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := Run(ctx, dial(t, dir), Request{Argv: [][]byte{[]byte(program)}}, Streams{
			Stdin: endless{}, Stdout: writer(func([]byte) { cancel() }), Stderr: io.Discard,
		}, nil)
		if err != nil || r.Status.Code != -1 || r.Status.Cancelled != (program == "wait") {
			t.Errorf("%s: %+v %v", program, r, err)
		}
	}
}

// TestOutputAfterACancellation checks that a program which writes late in its grace period loses
// neither that output nor its result.
func TestOutputAfterACancellation(t *testing.T) {
	dir, _ := listening(t, func(ctx context.Context, _ Request, _ io.Reader, stdout, _ io.Writer) Result {
		stdout.Write([]byte("running "))
		<-ctx.Done()
		time.Sleep(resultTime + 100*time.Millisecond)
		stdout.Write([]byte("late"))
		return Result{Status: sandbox.ExitStatus{Code: 7, Cancelled: true}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got bytes.Buffer
	r, err := Run(ctx, dial(t, dir), Request{Argv: [][]byte{[]byte("x")}}, Streams{
		Stdout: writer(func(p []byte) { got.Write(p); cancel() }), Stderr: io.Discard,
	}, nil)
	if err != nil || r.Status.Code != 7 || got.String() != "running late" {
		t.Errorf("%q, %+v, %v", got.String(), r, err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// Whatever a peer does, its command is cancelled and the server goes on.
func TestBadPeers(t *testing.T) {
	request := func(t *testing.T, c net.Conn) {
		must(t, wire.NewWriter(c).Send(wire.Frame{Stream: stream, Type: wire.TypeOpen, Payload: []byte(`{"argv":["YQ=="],"stdin":true}`)}))
	}
	causes := make(chan error, 1)
	dir, _ := listening(t, func(ctx context.Context, r Request, _ io.Reader, stdout, _ io.Writer) Result {
		if len(r.Argv) == 0 {
			t.Error("a request without an argument vector came through")
		}
		if bytes.Equal(r.Argv[0], []byte("echo")) {
			return Result{Status: sandbox.ExitStatus{Code: 3}}
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		stdout.Write(make([]byte, 1<<20)) // nobody reads it any more
		return Result{}
	})
	for name, tt := range map[string]struct {
		do    func(t *testing.T, c net.Conn)
		cause error // nil if nothing runs
	}{
		"says nothing": {func(*testing.T, net.Conn) {}, nil},
		"garbage":      {func(_ *testing.T, c net.Conn) { c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, nil},
		"no request": {func(t *testing.T, c net.Conn) {
			must(t, wire.NewWriter(c).SendJSON(stream, wire.TypeCancel, struct{}{}))
		}, nil},
		"no JSON": {func(t *testing.T, c net.Conn) {
			must(t, wire.NewWriter(c).Send(wire.Frame{Stream: stream, Type: wire.TypeOpen, Payload: []byte("{")}))
		}, nil},
		"another stream": {func(t *testing.T, c net.Conn) {
			must(t, wire.NewWriter(c).SendJSON(stream+2, wire.TypeOpen, Request{}))
		}, nil},
		"hangs up":     {request, errPeerGone},
		"half a frame": {func(t *testing.T, c net.Conn) { request(t, c); c.Write([]byte{0, 0, 0, 9, 0}) }, errPeerGone},
		"a huge frame": {func(t *testing.T, c net.Conn) {
			request(t, c)
			c.Write([]byte{255, 255, 255, 255, 0, 0, 0, stream, byte(wire.TypeData), 0})
		}, wire.ErrProtocol},
		"an unknown kind": {func(t *testing.T, c net.Conn) { request(t, c); c.Write([]byte{0, 0, 0, 0, 0, 0, 0, stream, 99, 0}) }, wire.ErrProtocol},
		"data of another channel": {func(t *testing.T, c net.Conn) {
			request(t, c)
			output{wire.NewWriter(c), channelStdout, nil}.Write([]byte("x"))
		}, wire.ErrProtocol},
		"data after the end of stdin": {func(t *testing.T, c net.Conn) {
			request(t, c)
			must(t, wire.NewWriter(c).Send(wire.Frame{Stream: stream, Type: wire.TypeEOF}))
			output{wire.NewWriter(c), channelStdin, nil}.Write([]byte("x"))
		}, wire.ErrProtocol},
		"a second request": {func(t *testing.T, c net.Conn) {
			request(t, c)
			request(t, c)
		}, wire.ErrProtocol},
		"more stdin than allowed": {func(t *testing.T, c net.Conn) {
			request(t, c)
			output{wire.NewWriter(c), channelStdin, nil}.Write(make([]byte, wire.Window+1))
		}, wire.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, dir)
			tt.do(t, conn)
			conn.Close()
			if tt.cause != nil {
				if err := <-causes; !errors.Is(err, tt.cause) {
					t.Errorf("cancelled with %v, want %v", err, tt.cause)
				}
			}
			r, err := Run(t.Context(), dial(t, dir), Request{Argv: [][]byte{[]byte("echo")}}, Streams{Stdout: io.Discard, Stderr: io.Discard}, nil)
			if err != nil || r.Status.Code != 3 {
				t.Errorf("afterwards: %+v %v", r, err)
			}
		})
	}
}

// Close cancels running commands, tells their clients, and removes the socket.
func TestClose(t *testing.T) {
	cause, running := errors.New("the session ends"), make(chan struct{})
	dir, server := listening(t, func(ctx context.Context, _ Request, _ io.Reader, _, _ io.Writer) Result {
		close(running)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), cause) {
			t.Errorf("cancelled with %v", context.Cause(ctx))
		}
		return Result{Status: sandbox.ExitStatus{Code: -1, Cancelled: true}}
	})
	go func() {
		<-running
		server.Close(cause)
	}()
	r, err := Run(t.Context(), dial(t, dir), Request{Argv: [][]byte{[]byte("x")}}, Streams{Stdout: io.Discard, Stderr: io.Discard}, nil)
	if err != nil || !r.Status.Cancelled {
		t.Errorf("%+v %v", r, err)
	}
	server.Close(cause)
	if _, err := os.Lstat(filepath.Join(dir, socket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := Dial(dir, socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dial: %v", err)
	}
}

// Nothing follows a truncated frame, since it would be read as part of it.
func TestNothingFollowsHalfAFrame(t *testing.T) {
	for name, cut := range map[string]bool{"cut off": true, "whole": false} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			out := wire.NewWriter(ours)
			wrote := make(chan error)
			go func() {
				_, err := output{out, channelStdout, nil}.Write([]byte("some output"))
				wrote <- err
				sendResult(ours, out, Result{Status: sandbox.ExitStatus{Code: 7}})
				ours.Close()
			}()
			head := make([]byte, wire.HeaderSize+len("some"))
			_, err := io.ReadFull(theirs, head)
			must(t, err)
			if cut {
				must(t, ours.SetWriteDeadline(time.Now()))
			} else {
				_, err := io.ReadFull(theirs, make([]byte, len(" output")))
				must(t, err)
			}
			if err := <-wrote; (err != nil) != cut {
				t.Errorf("the write ended with %v", err)
			}
			more, err := io.ReadAll(theirs)
			must(t, err)
			if (len(more) == 0) != cut {
				t.Errorf("%q follows", more)
			}
		})
	}
}

// Excess commands are refused, and clients that give up are dropped. Meanwhile the session can be
// ended.
func TestManyPeers(t *testing.T) {
	release := make(chan struct{})
	var ended atomic.Bool
	dir, _ := listeningFor(t, Handlers{
		Run: func(context.Context, Request, io.Reader, io.Writer, io.Writer) Result {
			<-release
			return Result{}
		},
		End: func() { ended.Store(true) },
	})
	results := make(chan Result)
	for range maxPeers + 4 {
		conn := dial(t, dir)
		go func() {
			r, _ := Run(context.Background(), conn, Request{Argv: [][]byte{[]byte("x")}}, Streams{Stdout: io.Discard, Stderr: io.Discard}, nil)
			results <- r
		}()
	}
	for range 4 {
		if r := <-results; r.Failure == nil || !strings.Contains(r.Failure.Cause, "already") {
			t.Errorf("one too many: %+v", r)
		}
	}
	conn := dial(t, dir)
	must(t, wire.NewWriter(conn).SendJSON(stream, wire.TypeOpen, Request{End: true}))
	if r, err := receiveResult(conn, Streams{}, nil); err != nil || r.Failure != nil || !ended.Load() {
		t.Errorf("the end of the session: %+v, %v", r.Failure, err)
	}
	abandon := make(chan struct{})
	close(abandon)
	r, err := Run(t.Context(), dial(t, dir), Request{Argv: [][]byte{[]byte("x")}}, Streams{Stdout: io.Discard, Stderr: io.Discard}, abandon)
	if err == nil && r.Failure == nil { // a refusal may have been quicker
		t.Error("a run that was given up has a result")
	}
	close(release)
	for range maxPeers {
		if r := <-results; r.Failure != nil {
			t.Errorf("%+v", r.Failure)
		}
	}
}

// TestSilentPeersAreBounded checks that a request waits while too many connections request nothing.
func TestSilentPeersAreBounded(t *testing.T) {
	dir, _ := listeningFor(t, Handlers{Run: echo, End: func() {}})
	silent := make([]net.Conn, maxConns)
	for i := range silent {
		silent[i] = dial(t, dir)
	}
	conn := dial(t, dir)
	must(t, wire.NewWriter(conn).SendJSON(stream, wire.TypeOpen, Request{End: true}))
	must(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a request beyond the bound: %v, want no answer", err)
	}
	must(t, conn.SetReadDeadline(time.Time{}))
	must(t, silent[0].Close())
	if r, err := receiveResult(conn, Streams{}, nil); err != nil || r.Failure != nil {
		t.Errorf("after another one left: %+v, %v", r.Failure, err)
	}
	for _, c := range silent {
		c.Close()
	}
}

// A socket without a listener is no session. Links in place of it or of its directory are not followed.
func TestDialRefuses(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, socket)})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	if _, err := Dial(dir, socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dead socket: %v", err)
	}
	if _, err := Listen(t.Context(), dir, socket, Handlers{Run: echo}); err == nil {
		t.Error("a socket was made over another")
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	if _, err := Dial(link, socket); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder behind a link: %v", err)
	}
}

// The deadline ends a silent peer's connection.
func TestSilentPeerIsLetGo(t *testing.T) {
	was := requestTime
	t.Cleanup(func() { requestTime = was })
	requestTime = 200 * time.Millisecond
	dir, _ := listening(t, echo)
	conn := dial(t, dir)
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a silent peer: %v", err)
	}
}

// TestEnd asks a session that refuses to end, and one that accepts.
func TestEnd(t *testing.T) {
	dir := t.TempDir()
	var handlers Handlers
	end := func(ctx context.Context) (*Failure, error) {
		t.Helper()
		s, err := Listen(t.Context(), dir, socket, handlers)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(errors.New("over"))
		conn, err := Dial(dir, socket)
		if err != nil {
			t.Fatal(err)
		}
		return End(ctx, conn)
	}
	if f, err := end(t.Context()); err != nil || f == nil || f.Kind != "not_held" {
		t.Errorf("without a handler: %+v, %v", f, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	handlers.End = cancel // this process, which owns the session, goes on
	if f, err := end(ctx); f != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("with a handler: %+v, %v, want a wait for this process", f, err)
	}
}
