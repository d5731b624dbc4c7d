package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/admission"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/tools/workspace"
)

// container is one sandbox. What it is made of is set, in this order, by
// Create alone, and undone by Destroy, whatever of it there is.
type container struct {
	backend *Backend
	session string
	id      string
	dir     string
	life    sandbox.Lifecycle

	plan        plan
	release     func() // of the image; nil if nothing has to be let go
	lease       *admission.Lease
	lost        []string
	journal     *owner.Journal
	entries     []int
	guestSHA256 string
	prepared    *workmount.Prepared
	view        workspace.View // nil in bind mode
	bundle      *bundle
	stdio       *stdio
	log         *runtimeLog
	process     *hostProcess
	cgroup      cgroup
	conn        *guest.Conn
	attested    sandbox.Attestation

	watching sync.WaitGroup
	done     chan struct{}
	once     sync.Once // closes done

	mu      sync.Mutex // guards what follows, and that life does not leave stopped
	ending  bool       // Destroy was called
	err     error
	destroy sync.Mutex // held by the one Destroy that works; guards what follows
	cut     bool       // disconnect was done
	gone    bool       // nothing is left
}

var _ sandbox.Sandbox = (*container)(nil)

func newContainer(b *Backend, spec sandbox.Spec) *container {
	return &container{backend: b, session: spec.Session, id: cgroupPrefix + spec.Session, dir: spec.Dir, done: make(chan struct{})}
}

// ID is the container's name for the runtime.
func (c *container) ID() string { return c.id }

// State is where the sandbox is in its life.
func (c *container) State() sandbox.State { return c.life.State() }

// Attestation is what was observed once it ran.
func (c *container) Attestation() sandbox.Attestation { return c.attested }

// Start starts a command.
func (c *container) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if err := c.usable("start command"); err != nil {
		return nil, err
	}
	return c.conn.Start(ctx, cmd)
}

// Apply makes one change to the workspace.
func (c *container) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if err := c.usable("apply change"); err != nil {
		return workspace.Change{}, err
	}
	return c.conn.Apply(ctx, op)
}

// Ping asks the guest for a sign of life.
func (c *container) Ping(ctx context.Context) error {
	if err := c.usable("ping"); err != nil {
		return err
	}
	return c.conn.Ping(ctx)
}

// usable says why the sandbox can't be used: what it died of, if it did.
func (c *container) usable(action string) error {
	if err := c.Err(); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	return c.life.Require(action, sandbox.StateRunning)
}

// View is an overlay as commands see it.
func (c *container) View() workspace.View { return c.view }

// ended says that the sandbox is no more, and why.
func (c *container) ended() error {
	select {
	case <-c.done:
		if err := c.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%w: it was destroyed", sandbox.ErrLost)
	default:
		return nil
	}
}

// Done is closed when the sandbox has stopped.
func (c *container) Done() <-chan struct{} { return c.done }

// Err says why it stopped.
func (c *container) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// watch waits for the end of the guest's connection and, unless Destroy made
// it, finds out what the sandbox died of.
func (c *container) watch() {
	<-c.conn.Done()
	c.mu.Lock()
	ending := c.ending
	c.mu.Unlock()
	if !ending {
		err := c.cause(c.conn.Err())
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
	}
	c.stop()
}

// settle is how long a dying container may take to be dead, so that the
// kernel's counters are final. A guest that only broke the protocol lives on
// and is killed then.
const settle = 500 * time.Millisecond

// cause adds to the loss of the connection what the kernel and the guest say
// about it.
func (c *container) cause(err error) error {
	if err == nil {
		err = sandbox.ErrLost
	}
	c.process.wait(settle)
	// With the host's kernel a limit kills a command, not the sandbox.
	if c.plan.traits.ownKernel {
		if reached := c.cgroup.exceeded(); reached != nil {
			err = fmt.Errorf("%w: %w", err, reached)
		}
	}
	if said := c.stdio.stderr.text(); said != "" {
		err = fmt.Errorf("%w: its last words: %q", err, said)
	}
	return err
}

// commit makes the sandbox a running one, unless it was lost meanwhile.
func (c *container) commit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.State() == sandbox.StateStopped {
		return fmt.Errorf("%w: it ended as soon as it had started: %w", sandbox.ErrUnavailable, c.err)
	}
	c.life.Advance(sandbox.StateRunning)
	return nil
}

// stop kills what runs and tells those who wait for the end.
func (c *container) stop() {
	if c.process != nil {
		c.process.kill()
	}
	c.mu.Lock()
	c.life.Advance(sandbox.StateStopped)
	c.mu.Unlock()
	c.once.Do(func() { close(c.done) })
}

// destroyTime bounds one Destroy: gVisor on a loaded machine takes half a
// second, runc a tenth.
const destroyTime = 30 * time.Second

// Destroy kills what runs and removes everything that was made, and waits for
// it. What could not be removed is in the error, and in the journal for the
// next Sweep; a later call tries again.
func (c *container) Destroy(ctx context.Context) error {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.destroy.Lock()
	defer c.destroy.Unlock()
	if c.gone {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), destroyTime, fmt.Errorf("not destroyed within %s", destroyTime))
	defer cancel()
	c.disconnect()
	if err := c.remove(ctx); err != nil {
		if c.journal != nil {
			err = errors.Join(err, c.journal.GiveUp()) // a sweep may try, too
		}
		return fmt.Errorf("destroy %s sandbox %s: %w", c.backend.Name(), c.id, err)
	}
	c.releaseImage()
	c.lease.Close()
	c.gone = true
	return nil
}

// disconnect ends the guest, kills what is left and closes all descriptors,
// once.
func (c *container) disconnect() {
	if c.cut {
		return
	}
	c.cut = true
	if c.conn != nil {
		c.conn.Close() //nolint:errcheck // the container is killed next
	} else if c.stdio != nil {
		c.stdio.Close() //nolint:errcheck // the same
	}
	if c.process != nil && !c.process.wait(exitTime) {
		c.process.kill()
		thaw(c.plan.cgroup.dirs)
		c.process.wait(destroyTime / 2)
	}
	c.watching.Wait()
	c.stop()
	if c.stdio != nil {
		c.stdio.stderr.close() //nolint:errcheck // only read
	}
	if c.log != nil {
		c.log.close()
	}
	if c.process != nil {
		c.process.close()
	}
}

// exitTime is how long the guest may take to kill everything and exit by
// itself, which it does within milliseconds.
const exitTime = 2 * time.Second

// remove takes away what the container was on the host. Every step is tried
// only when what it lies under is gone: no folder is removed while the
// container may still use it.
func (c *container) remove(ctx context.Context) error {
	if c.journal == nil {
		return nil
	}
	if _, err := c.backend.runtime.delete(ctx, c.id); err != nil {
		return err
	}
	var errs []error
	for _, dir := range c.plan.cgroup.dirs {
		_, err := removeCgroup(dir, c.session)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if c.prepared != nil {
		errs = append(errs, c.prepared.Close(ctx))
	}
	errs = append(errs, c.removeBundle())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := c.journal.Forget(c.entries...); err != nil {
		return err
	}
	if err := c.journal.Close(); err != nil {
		return err
	}
	c.journal = nil
	return nil
}

func (c *container) removeBundle() error {
	base, err := os.Open(c.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer base.Close() //nolint:errcheck // only looked at
	return owner.RemoveTree(base, bundleDir)
}
