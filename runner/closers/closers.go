// Package closers takes apart what was put together in several steps.
package closers

import (
	"errors"
	"slices"
)

// Stack holds functions that undo what was done so far. The zero value is empty. It is not
// safe for concurrent use.
type Stack struct{ undo []func() error }

// Push adds a function that undoes the last step.
func (s *Stack) Push(undo func() error) { s.undo = append(s.undo, undo) }

// PushFunc is Push for a function that can't fail, or whose error doesn't matter.
func (s *Stack) PushFunc(undo func()) {
	s.Push(func() error {
		undo()
		return nil
	})
}

// Close calls all functions, the last one first, empties the stack, and returns their errors
// joined.
func (s *Stack) Close() error {
	var errs []error
	for _, undo := range slices.Backward(s.undo) {
		errs = append(errs, undo())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// CloseOnError closes the stack if *err is an error, to which it joins its own. Defer it in a
// function that returns an error and, without one, leaves the closing to its caller.
func (s *Stack) CloseOnError(err *error) {
	if *err == nil {
		return
	}
	if closeErr := s.Close(); closeErr != nil {
		*err = errors.Join(*err, closeErr)
	}
}
