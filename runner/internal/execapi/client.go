package execapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Streams are the client's standard streams.
type Streams struct {
	// Stdin may be nil. The goroutine that reads it outlives [Run] if a read does not return.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

var errHungUp = errors.New("the process that owns the session went away")

// Run sends one request over conn, which it closes, and returns the result. Cancelling ctx cancels
// the command, but Run still waits for its result until abandon is closed. It leaves a detachable
// command at once, without cancelling it. An error means that the owner went away, or that a
// stream of the caller can't be written.
func Run(ctx context.Context, conn net.Conn, r Request, s Streams, abandon <-chan struct{}) (Result, error) {
	defer func() { _ = conn.Close() }()
	frames := wire.NewWriter(conn)
	credit := wire.NewCredit()
	defer credit.Close()
	r.Stdin = s.Stdin != nil
	if err := frames.SendJSON(stream, wire.TypeOpen, r); err != nil {
		return Result{}, fmt.Errorf("%w: %w", errHungUp, err)
	}
	detachable := r.Detachable || r.Attach != nil
	stop := context.AfterFunc(ctx, func() {
		if detachable {
			_ = conn.Close() // makes receiveResult fail
			return
		}
		_ = frames.SendJSON(stream, wire.TypeCancel, struct{}{}) // an owner that is gone has cancelled it
	})
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-abandon:
			_ = conn.Close() // makes receiveResult fail
		case <-ended:
		}
	}()
	if r.Resizes != nil {
		go sendResizes(frames, r.Resizes, ended)
	}
	if s.Stdin != nil {
		go sendStdin(frames, s.Stdin, credit)
	}
	result, err := receiveResult(conn, s, credit)
	switch {
	case err == nil || !detachable:
		return result, err
	case ctx.Err() != nil:
		return Result{Detached: true}, nil
	}
	return result, fmt.Errorf("%w, or detached a client that read nothing; the command may go on", err)
}

// receiveResult writes the command's output to s until the result comes. Output without a stream,
// or credit without input, violates the protocol.
func receiveResult(conn io.Reader, s Streams, credit *wire.Credit) (Result, error) {
	in := wire.NewReader(conn)
	for {
		f, err := in.Next()
		if err != nil {
			return Result{}, fmt.Errorf("%w: %w", errHungUp, err)
		}
		switch {
		case f.Type == wire.TypeData && f.Channel == channelStdout && s.Stdout != nil:
			_, err = s.Stdout.Write(f.Payload)
		case f.Type == wire.TypeData && f.Channel == channelStderr && s.Stderr != nil:
			_, err = s.Stderr.Write(f.Payload)
		case f.Type == wire.TypeCredit && f.Channel == channelStdin && credit != nil:
			if err := credit.Grant(binary.BigEndian.Uint32(f.Payload)); err != nil {
				return Result{}, err
			}
		case f.Type == wire.TypeEnd:
			const none = math.MinInt
			r := Result{Status: sandbox.ExitStatus{Code: none}}
			if err := json.Unmarshal(f.Payload, &r); err != nil {
				return Result{}, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
			}
			if r.Status.Code == none && r.Failure == nil && !r.Detached { // otherwise a failure would look like success
				return Result{}, fmt.Errorf("%w: a result without a status; the session's process may be another version", wire.ErrProtocol)
			}
			return r, nil
		default:
			return Result{}, fmt.Errorf("%w: frame type %d on channel %d", wire.ErrProtocol, f.Type, f.Channel)
		}
		if err != nil {
			return Result{}, fmt.Errorf("write the command's output: %w", err)
		}
	}
}

func sendResizes(frames *wire.Writer, sizes <-chan sandbox.TerminalSize, ended <-chan struct{}) {
	for {
		select {
		case size := <-sizes:
			_ = frames.Send(wire.Frame{Stream: stream, Type: wire.TypeResize, Payload: wire.TerminalSize(size).Encode()}) // an owner that is gone needs none
		case <-ended:
			return
		}
	}
}

func sendStdin(frames *wire.Writer, stdin io.Reader, credit *wire.Credit) {
	buf := make([]byte, wire.MaxData)
	to := output{frames: frames, channel: channelStdin}
	for {
		most := credit.Take(len(buf), nil)
		if most == 0 {
			return // the command has ended
		}
		n, err := stdin.Read(buf[:most])
		if credit.Grant(uint32(most-n)) != nil {
			return // the owner granted more than was read
		}
		if _, failed := to.Write(buf[:n]); failed != nil {
			return
		}
		if err != nil {
			_ = frames.Send(wire.Frame{Stream: stream, Type: wire.TypeEOF}) // if the owner is gone, it needs no end
			return
		}
	}
}
