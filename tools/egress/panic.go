package egress

import (
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
)

// PanicError reports a panic of the server, or of a function of its options, while
// it served a program. Only what it was serving ended.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// recoverPanic reports a panic and calls fail with it. It must be deferred.
func (s *Server) recoverPanic(fail func(error)) {
	v := recover()
	if v == nil {
		return
	}
	err := &PanicError{Value: v, Stack: debug.Stack()}
	s.opts.Failed(err)
	if fail != nil {
		fail(err)
	}
}

// abortOnPanic reports a panic of a net/http handler, whose response is cut off. It
// must be deferred.
func (s *Server) abortOnPanic() {
	v := recover()
	if v == nil {
		return
	}
	if v != http.ErrAbortHandler { //nolint:errorlint // panics have it as it is
		s.opts.Failed(&PanicError{Value: v, Stack: debug.Stack()})
	}
	panic(http.ErrAbortHandler)
}

// guardCallbacks makes the functions of the options fail instead of panic:
// net/http's and timers' goroutines call them too.
func (s *Server) guardCallbacks() {
	o := s.opts
	s.opts.Opened = func(x Opened) (err error) {
		defer s.recoverPanic(func(failed error) { err = failed })
		return o.Opened(x)
	}
	s.opts.Closed = func(x Closed) {
		defer s.recoverPanic(nil)
		o.Closed(x)
	}
	s.opts.Denied = func(x Denied) {
		defer s.recoverPanic(nil)
		o.Denied(x)
	}
	s.opts.Requested = func(x Requested) {
		defer s.recoverPanic(nil)
		o.Requested(x)
	}
}

type guardedBody struct {
	io.ReadCloser
	s *Server
}

func (b *guardedBody) Read(p []byte) (n int, err error) {
	defer b.s.recoverPanic(func(failed error) { n, err = 0, failed })
	return b.ReadCloser.Read(p)
}
