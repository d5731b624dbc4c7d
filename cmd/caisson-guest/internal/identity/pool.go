package identity

import "github.com/caisson-run/caisson/sandbox/guest/wire"

// Pool is threads that have the commands' effective user and group, the given other
// groups and no effective capability but root commands', for good. Real and saved ids stay the
// guest's, so that commands can't signal them. They live as long as the process.
// It is safe for concurrent use.
type Pool struct{ work chan func() }

// PoolOptions says as whom the threads act.
type PoolOptions struct {
	UID, GID uint32
	// Groups are the supplementary groups, if Separate is set.
	Groups []uint32
	// Separate reports whether the guest is another user and may become this
	// one.
	Separate bool
	// Root reports whether the commands' identity is the guest's user with
	// fewer capabilities.
	Root bool
	// Threads is how many there are, and so how many calls of Do work at once.
	Threads int
}

// NewPool starts the threads.
func NewPool(o PoolOptions) (*Pool, error) {
	p := &Pool{work: make(chan func())}
	ready := make(chan error)
	for range o.Threads {
		Dedicate(func() { p.runThread(o, ready) })
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Pool) runThread(o PoolOptions, ready chan<- error) {
	if o.Separate {
		if err := SetGroups(o.Groups...); err != nil {
			ready <- err
			return
		}
		if err := SetEffective(o.UID, o.GID); err != nil {
			ready <- err
			return
		}
	}
	if o.Root {
		if err := LimitCapabilities(wire.RootCapabilities); err != nil {
			ready <- err
			return
		}
	}
	ready <- nil
	for f := range p.work {
		f()
	}
}

// Do runs f on one of the threads, once one is free, and waits for it.
func (p *Pool) Do(f func()) { p.DoUnless(nil, f) }

// DoUnless is Do, and returns without running f if stop is closed before a thread is free.
func (p *Pool) DoUnless(stop <-chan struct{}, f func()) {
	done := make(chan struct{})
	select {
	case p.work <- func() {
		defer close(done)
		f()
	}:
		<-done
	case <-stop:
	}
}
