package mcp

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/limits"
)

const (
	// tailBytes is how much of a server's standard error is kept.
	tailBytes = 64 << 10
	// writeTime bounds the wait for a server to read its input.
	writeTime = 30 * time.Second
	// drainTime bounds the wait for the last output of an ended process.
	drainTime = time.Second
)

// stdioLink is a [link] to a process, and its [mcp.Connection]. Messages are lines
// of JSON on standard input and output.
type stdioLink struct {
	proc   Process
	framer *framer
	errors *limits.Tail

	messages chan jsonrpc.Message
	writes   chan stdioWrite
	drained  chan struct{} // closed when standard output has ended
	exited   chan struct{} // closed when the process has ended
	ended    chan struct{}
	endOnce  sync.Once
	cause    error // set before ended is closed
	running  sync.WaitGroup
}

type stdioWrite struct {
	line []byte
	done chan<- struct{}
}

// newStdioLink returns a link to a running process. The caller must stop it.
func newStdioLink(proc Process, errors *limits.Tail, limits frameLimits) *stdioLink {
	l := &stdioLink{
		proc: proc, framer: newFramer(proc.Stdout(), errors, limits), errors: errors,
		messages: make(chan jsonrpc.Message), writes: make(chan stdioWrite),
		drained: make(chan struct{}), exited: make(chan struct{}), ended: make(chan struct{}),
	}
	l.running.Go(l.readMessages)
	l.running.Go(l.writeLines)
	l.running.Go(l.watchProcess)
	return l
}

func (l *stdioLink) Connect(context.Context) (mcp.Connection, error) { return l, nil }

func (l *stdioLink) SessionID() string { return "" }

func (l *stdioLink) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-l.messages:
		return msg, nil
	case <-l.ended:
		return nil, l.cause
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Write returns when the server has read the message, or ctx has ended. The server
// may still read it then.
func (l *stdioLink) Write(ctx context.Context, msg jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	l.framer.noteSent(msg)
	done := make(chan struct{})
	select {
	case l.writes <- stdioWrite{append(line, '\n'), done}:
	case <-l.ended:
		return l.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-done:
		l.framer.noteWritten(msg)
		return nil
	case <-l.ended:
		return l.cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the connection. stopServer stops the process.
func (l *stdioLink) Close() error {
	l.endLink(ErrClosed)
	return nil
}

func (l *stdioLink) endSignal() <-chan struct{} { return l.ended }

func (l *stdioLink) endCause() error { return l.cause }

func (l *stdioLink) stderrTail() (string, int64) { return l.errors.String(), l.errors.Total() }

func (l *stdioLink) stopServer(ctx context.Context) error {
	l.endLink(ErrClosed)
	err := l.proc.Stop(ctx)
	return cmp.Or(err, awaitGroup(ctx, &l.running))
}

// endLink ends the connection. The first cause counts.
func (l *stdioLink) endLink(cause error) {
	l.endOnce.Do(func() {
		l.cause = cause
		close(l.ended)
	})
}

func (l *stdioLink) readMessages() {
	defer close(l.drained)
	for {
		msg, err := l.framer.readMessage()
		if err != nil {
			if _, violation := errors.AsType[*ProtocolError](err); violation {
				l.endLink(err)
			} else {
				l.endBroken("output")
			}
			return
		}
		select {
		case l.messages <- msg:
		case <-l.ended:
			return
		}
	}
}

// endBroken ends the connection because a pipe broke. Usually the process has ended,
// and watchProcess ends the connection with a better reason.
func (l *stdioLink) endBroken(pipe string) {
	select {
	case <-l.exited:
	case <-l.ended:
	case <-time.After(drainTime):
		l.endLink(&EndedError{Closed: pipe})
	}
}

func (l *stdioLink) writeLines() {
	stdin := l.proc.Stdin()
	for {
		select {
		case <-l.ended:
			return
		case w := <-l.writes:
			stuck := time.AfterFunc(writeTime, func() {
				l.endLink(&TimeoutError{Op: "reading of its input", After: writeTime})
			})
			_, err := io.Writer(stdin).Write(w.line)
			stuck.Stop()
			if err != nil {
				l.endBroken("input")
				<-l.ended
				return
			}
			close(w.done)
		}
	}
}

func (l *stdioLink) watchProcess() {
	err := l.proc.Wait()
	close(l.exited)
	select {
	case <-l.drained:
	case <-l.ended:
	case <-time.After(drainTime): // something it started holds the pipe
	}
	l.endLink(&EndedError{Err: err})
}
