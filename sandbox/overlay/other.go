//go:build !linux

package overlay

import (
	"context"
	"io"
	"os"
)

// Layers are the layers of one session. This system has none.
type Layers struct{}

// Create returns [ErrUnsupported].
func Create(string, CreateOptions) (*Layers, error) { return nil, ErrUnsupported }

// Reopen returns [ErrUnsupported].
func Reopen(string, CreateOptions) (*Layers, State, error) { return nil, "", ErrUnsupported }

// IdentifyDir returns "".
func IdentifyDir(*os.File) string { return "" }

// Open returns [ErrUnsupported].
func Open(string) (*Layers, error) { return nil, ErrUnsupported }

// Dir returns "".
func (l *Layers) Dir() string { return "" }

// Info returns the zero value.
func (l *Layers) Info() Info { return Info{} }

// Lock returns [ErrUnsupported].
func (l *Layers) Lock() error { return ErrUnsupported }

// Close does nothing.
func (l *Layers) Close() error { return nil }

// Lowers returns nil.
func (l *Layers) Lowers() []string { return nil }

// Freeze returns [ErrUnsupported].
func (l *Layers) Freeze(context.Context, string) error { return ErrUnsupported }

// Fork returns [ErrUnsupported].
func (l *Layers) Fork(string, string) (*Layers, error) { return nil, ErrUnsupported }

// SweepUnmade does nothing.
func SweepUnmade(string) (bool, error) { return false, nil }

// SweepFrozen does nothing.
func SweepFrozen(string) error { return nil }

// Record returns [ErrUnsupported].
func (l *Layers) Record(context.Context, *os.File) error { return ErrUnsupported }

// RecordTime returns [ErrUnsupported].
func (l *Layers) RecordTime() error { return ErrUnsupported }

// Same returns [ErrUnsupported].
func (l *Layers) Same(*os.File) error { return ErrUnsupported }

// End returns [ErrUnsupported].
func (l *Layers) End(State) error { return ErrUnsupported }

// SetUser does nothing.
func (l *Layers) SetUser(string) {}

// Sweep returns [ErrUnsupported].
func (l *Layers) Sweep() error { return ErrUnsupported }

// Changes returns [ErrUnsupported].
func (l *Layers) Changes(context.Context, *os.File, ReadOptions) (*Changes, error) {
	return nil, ErrUnsupported
}

// Diff returns [ErrUnsupported].
func (l *Layers) Diff(context.Context, *os.File, *Changes, io.Writer, DiffOptions) (*Stats, error) {
	return nil, ErrUnsupported
}

// Apply returns [ErrUnsupported].
func (l *Layers) Apply(context.Context, *os.File, ApplyOptions) (*Result, error) {
	return nil, ErrUnsupported
}

// WriteTree returns [ErrUnsupported].
func WriteTree(context.Context, io.Writer, string, []string, *os.File, CopyBounds) error {
	return ErrUnsupported
}

// CopyReader reads the copy of a workspace in a sandbox.
type CopyReader any

// Copy is the copy of a workspace. This system has none.
type Copy struct{}

// OpenCopy returns [ErrUnsupported].
func OpenCopy(context.Context, string, CopyReader, CopyBounds) (*Copy, error) {
	return nil, ErrUnsupported
}

// Collect returns [ErrUnsupported].
func (*Copy) Collect(context.Context) error { return ErrUnsupported }
