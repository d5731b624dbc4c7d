package execsock

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Streams are the asking process's own.
type Streams struct {
	// Stdin is nil where the command gets none. It is read by a goroutine that
	// outlives [Run] if a read does not return.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// errHungUp says that the owner went away without a result.
var errHungUp = errors.New("the process that owns the session went away")

// Run asks for one command over an open connection, which it closes, and gives
// its result. Cancelling ctx cancels the command, whose result is still waited
// for; closing abandon gives that up too. An error is the loss of the owner, or
// a stream of the caller's that can't be written.
func Run(ctx context.Context, conn net.Conn, r Request, s Streams, abandon <-chan struct{}) (Result, error) {
	defer conn.Close() //nolint:errcheck // hanging up
	out := &sender{conn: conn}
	r.Stdin = s.Stdin != nil
	data, err := json.Marshal(r)
	if err != nil {
		return Result{}, err
	}
	if err := out.send(kindRequest, data); err != nil {
		// An owner that refuses says why and hangs up before it is asked.
		if refused, told := receive(conn, s, newCredit()); told == nil {
			return refused, nil
		}
		return Result{}, fmt.Errorf("%w: %w", errHungUp, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = out.send(kindCancel, nil) }) // who went away needs no cancelling
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-abandon:
			conn.Close() //nolint:errcheck // hanging up
		case <-ended:
		}
	}()
	credit := newCredit()
	defer credit.close()
	if s.Stdin != nil {
		go feed(out, s.Stdin, credit)
	}
	return receive(conn, s, credit)
}

// receive takes what the owner sends until the result.
func receive(conn io.Reader, s Streams, credit *credit) (Result, error) {
	for {
		k, payload, err := readFrame(conn)
		if err != nil {
			return Result{}, fmt.Errorf("%w: %w", errHungUp, err)
		}
		switch k {
		case kindStdout:
			_, err = s.Stdout.Write(payload)
		case kindStderr:
			_, err = s.Stderr.Write(payload)
		case kindCredit:
			if len(payload) != 4 {
				return Result{}, errProtocol
			}
			credit.add(int(binary.BigEndian.Uint32(payload)))
		case kindResult:
			var r Result
			if err := json.Unmarshal(payload, &r); err != nil {
				return Result{}, fmt.Errorf("%w: %w", errProtocol, err)
			}
			return r, nil
		default:
			return Result{}, fmt.Errorf("%w: a frame of kind %d", errProtocol, k)
		}
		if err != nil {
			return Result{}, fmt.Errorf("write the command's output: %w", err)
		}
	}
}

// feed sends standard input as far as there is credit.
func feed(out *sender, stdin io.Reader, credit *credit) {
	buf := make([]byte, maxData)
	for {
		most := credit.wait(len(buf))
		if most == 0 {
			return // it has ended
		}
		n, err := stdin.Read(buf[:most])
		credit.add(most - n)
		if n > 0 && out.send(kindStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = out.send(kindStdinEnd, nil) // an owner that went away needs no end
			return
		}
	}
}

// credit counts how much standard input may be sent.
type credit struct {
	mu   sync.Mutex
	more sync.Cond
	left int
	over bool
}

func newCredit() *credit {
	c := &credit{left: window}
	c.more.L = &c.mu
	return c
}

// wait takes at most n, at least 1 unless it is over.
func (c *credit) wait(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left == 0 && !c.over {
		c.more.Wait()
	}
	if c.over {
		return 0
	}
	n = min(n, c.left)
	c.left -= n
	return n
}

func (c *credit) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = min(c.left+n, window)
	c.more.Broadcast()
}

func (c *credit) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.more.Broadcast()
}
