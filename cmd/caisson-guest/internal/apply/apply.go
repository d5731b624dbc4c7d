// Package apply changes the workspace, and reads it for a host that can't see
// it. It acts as the commands' identity, so that the kernel refuses the guest
// the same as commands.
package apply

import (
	"context"
	"fmt"
	"os"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Threads is the number of concurrent changes, and of reads: two, so that one
// that hangs on a stuck file system doesn't block all.
const Threads = 2

// Options says as whom and where to make changes.
type Options struct {
	identity.Commands
	// Workspace is the path in the container, HostWorkspace the one on the
	// host.
	Workspace, HostWorkspace string
}

// open starts the threads, and opens the workspace as a command would.
func (o Options) open() (threads *identity.Pool, dir *os.File, err error) {
	threads, err = identity.NewPool(o.Commands, Threads)
	if err != nil {
		return nil, nil, err
	}
	threads.Do(func() { dir, err = os.Open(o.Workspace) })
	if err != nil {
		return nil, nil, fmt.Errorf("open workspace: %w", err)
	}
	return threads, dir, nil
}

// Appliers make changes. They live as long as the process and are safe for
// concurrent use.
type Appliers struct {
	threads *identity.Pool
	writer  *workspace.Writer
}

// New starts the threads and opens the workspace.
func New(o Options) (*Appliers, error) {
	threads, dir, err := o.open()
	if err != nil {
		return nil, err
	}
	a := &Appliers{threads: threads}
	threads.Do(func() {
		a.writer = workspace.NewWriter(dir, workspace.WriterOptions{
			ContainerPath: o.Workspace, HostPath: o.HostWorkspace,
		})
	})
	return a, nil
}

// Apply makes one change; see workspace.Writer.
func (a *Appliers) Apply(ctx context.Context, op workspace.Op) (change workspace.Change, err error) {
	a.threads.Do(func() { change, err = a.writer.Apply(ctx, op) })
	return change, err
}

// Readers read the workspace. They live as long as the process and are safe for
// concurrent use.
type Readers struct {
	threads *identity.Pool
	reader  *workspace.Reader
}

// NewReaders starts the threads and opens the workspace.
func NewReaders(o Options) (*Readers, error) {
	threads, dir, err := o.open()
	if err != nil {
		return nil, err
	}
	r := &Readers{threads: threads}
	threads.Do(func() {
		r.reader, err = workspace.NewReader(dir, workspace.ReaderOptions{OwnThread: true})
	})
	return r, err
}

// Do lends the Reader to f on one of the threads. f must read only on its own
// goroutine.
func (r *Readers) Do(f func(*workspace.Reader)) {
	r.threads.Do(func() { f(r.reader) })
}
