//go:build linux

package sandboxtest

import (
	"context"
	"fmt"
	"sync"
)

// gate is a writer that blocks from its first write until it is opened.
type gate struct {
	enter, leave sync.Once
	entered      chan struct{}
	release      chan struct{}
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}), release: make(chan struct{})}
}

// open lets the writer go on, now and later.
func (g *gate) open() { g.leave.Do(func() { close(g.release) }) }

func (g *gate) Write(p []byte) (int, error) {
	g.enter.Do(func() { close(g.entered) })
	<-g.release
	return len(p), nil
}

func (g *gate) wait(ctx context.Context) error {
	select {
	case <-g.entered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nothing was written: %w", context.Cause(ctx))
	}
}
