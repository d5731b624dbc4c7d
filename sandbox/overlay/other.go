//go:build !linux

package overlay

import (
	"context"
	"io"
	"os"
)

// Layers are those of one session; this system has none.
type Layers struct{}

// Create fails with [ErrUnsupported].
func Create(string, CreateOptions) (*Layers, error) { return nil, ErrUnsupported }

// Open fails with [ErrUnsupported].
func Open(string) (*Layers, error) { return nil, ErrUnsupported }

// Dir is "".
func (l *Layers) Dir() string { return "" }

// Info is the zero value.
func (l *Layers) Info() Info { return Info{} }

// Lock fails with [ErrUnsupported].
func (l *Layers) Lock() error { return ErrUnsupported }

// Close does nothing.
func (l *Layers) Close() error { return nil }

// Record fails with [ErrUnsupported].
func (l *Layers) Record(context.Context, *os.File) error { return ErrUnsupported }

// Same fails with [ErrUnsupported].
func (l *Layers) Same(*os.File) error { return ErrUnsupported }

// End fails with [ErrUnsupported].
func (l *Layers) End(State) error { return ErrUnsupported }

// SetUser does nothing.
func (l *Layers) SetUser(string) {}

// Sweep fails with [ErrUnsupported].
func (l *Layers) Sweep() error { return ErrUnsupported }

// Changes fails with [ErrUnsupported].
func (l *Layers) Changes(context.Context, *os.File, ReadOptions) (*Changes, error) {
	return nil, ErrUnsupported
}

// Diff fails with [ErrUnsupported].
func (l *Layers) Diff(context.Context, *os.File, *Changes, io.Writer, DiffOptions) (*Stats, error) {
	return nil, ErrUnsupported
}

// Apply fails with [ErrUnsupported].
func (l *Layers) Apply(context.Context, *os.File, ApplyOptions) (*Result, error) {
	return nil, ErrUnsupported
}
