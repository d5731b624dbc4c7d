// Package apply makes changes to the workspace as the identity of commands, so
// that the kernel refuses to the guest what it refuses to them.
package apply

import (
	"context"
	"fmt"
	"os"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Threads is the number of changes that are made at once: two, so that one
// that hangs on a stuck file system doesn't hold all.
const Threads = 2

// Options says as whom and where changes are made.
type Options struct {
	UID, GID uint32
	// Separate says that the guest is another user and may become this one.
	Separate bool
	// Workspace is the path in the container and HostWorkspace the one by
	// which the host calls it.
	Workspace, HostWorkspace string
}

// Appliers are threads that have the commands' effective user and group, no
// other groups and no effective capability, for good. Real and saved ids stay
// the guest's, so that commands can't signal them. They live as long as the
// process. They are safe for concurrent use.
type Appliers struct {
	work   chan func()
	writer *workspace.Writer
}

// New starts the threads and opens the workspace.
func New(o Options) (*Appliers, error) {
	a := &Appliers{work: make(chan func())}
	var dir *os.File
	ready := make(chan error)
	for range Threads {
		identity.Dedicate(func() { a.run(o, ready) })
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	var err error
	a.do(func() { dir, err = os.Open(o.Workspace) })
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	a.do(func() {
		a.writer = workspace.NewWriter(dir, workspace.WriterOptions{
			ContainerPath: o.Workspace, HostPath: o.HostWorkspace,
		})
	})
	return a, nil
}

func (a *Appliers) run(o Options, ready chan<- error) {
	if o.Separate {
		if err := identity.ClearGroups(); err != nil {
			ready <- err
			return
		}
		if err := identity.SetEffective(o.UID, o.GID); err != nil {
			ready <- err
			return
		}
	}
	ready <- nil
	for f := range a.work {
		f()
	}
}

func (a *Appliers) do(f func()) {
	done := make(chan struct{})
	a.work <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Apply makes one change; see workspace.Writer.
func (a *Appliers) Apply(ctx context.Context, op workspace.Op) (change workspace.Change, err error) {
	a.do(func() { change, err = a.writer.Apply(ctx, op) })
	return change, err
}
