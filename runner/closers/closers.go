// Package closers undoes several steps in the reverse order.
package closers

import (
	"errors"
	"slices"
)

// Stack holds functions that undo steps. The zero value is empty. It is not safe for
// concurrent use.
type Stack struct{ undo []func() error }

// Push adds a function, which [Stack.Close] calls before the ones added so far.
func (s *Stack) Push(undo func() error) { s.undo = append(s.undo, undo) }

// PushFunc is Push for a function that can't fail, or whose error doesn't matter.
func (s *Stack) PushFunc(undo func()) {
	s.Push(func() error {
		undo()
		return nil
	})
}

// Close calls all functions, the last one first, empties the stack, and returns the joined
// errors.
func (s *Stack) Close() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// CloseOnError closes the stack and joins its error to *err, unless *err is nil. Defer it in
// a function whose caller does the closing after success.
func (s *Stack) CloseOnError(err *error) {
	if *err == nil {
		return
	}
	if closeErr := s.Close(); closeErr != nil {
		*err = errors.Join(*err, closeErr)
	}
}
