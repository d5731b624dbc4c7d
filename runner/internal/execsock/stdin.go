package execsock

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// stdin is the standard input that came and was not read yet, at most window
// bytes. What is read is given back as credit.
type stdin struct {
	mu     sync.Mutex
	more   sync.Cond
	held   []byte
	err    error // io.EOF at the end
	credit func(n int)
}

func newStdin(s *sender) *stdin {
	in := &stdin{credit: func(n int) {
		// One who can't be told sends no more, and is noticed by its silence.
		_ = s.send(kindCredit, binary.BigEndian.AppendUint32(nil, uint32(n)))
	}}
	in.more.L = &in.mu
	return in
}

// add takes a piece. More than was allowed is an error.
func (in *stdin) add(p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return nil // nobody reads it any more
	}
	if len(in.held)+len(p) > window {
		return fmt.Errorf("%w: more standard input than was asked for", errProtocol)
	}
	in.held = append(in.held, p...)
	in.more.Broadcast()
	return nil
}

// end is the end of the input, or why there will be no more.
func (in *stdin) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
	}
	in.more.Broadcast()
}

// Read waits for input.
func (in *stdin) Read(p []byte) (int, error) {
	in.mu.Lock()
	for len(in.held) == 0 && in.err == nil {
		in.more.Wait()
	}
	if len(in.held) == 0 {
		defer in.mu.Unlock()
		return 0, in.err
	}
	n := copy(p, in.held)
	in.held = in.held[n:]
	in.mu.Unlock()
	in.credit(n)
	return n, nil
}

var _ io.Reader = (*stdin)(nil)
