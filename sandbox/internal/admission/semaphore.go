package admission

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// DefaultWait is how long a start waits to be admitted: 64 sessions at once on
// two processors, each start a second on a loaded machine, are through in a
// quarter of it.
const DefaultWait = 5 * time.Minute

// Options says whom a [Gate] admits. StateDir and Group are required.
type Options struct {
	// StateDir is Caisson's state folder.
	StateDir string
	// Group names what the starts share: an engine, or this machine's
	// processors for runtimes without one. Letters, digits and "-".
	Group string
	// Starts is how many of the group start at once; zero means two for each
	// processor: starts wait for the kernel and for other processes half of
	// their time.
	Starts int
	// Wait bounds the wait; zero means [DefaultWait].
	Wait time.Duration
	// Memory asks the machine; nil, or a Total of 0, does not look at memory,
	// as for an engine on another machine. See [Machine].
	Memory func() (Memory, error)
}

// Semaphore admits starts. It holds nothing open when nobody starts. It is safe for
// concurrent use.
type Semaphore struct {
	opts  Options
	dir   string
	queue chan struct{} // held by the one of this process that may wait for the turn
}

// New returns a gate. It fails with sandbox.ErrInvalid without a state folder
// or group; it makes nothing yet.
func New(o Options) (*Semaphore, error) {
	if o.StateDir == "" || !isPlainName(o.Group) {
		return nil, fmt.Errorf("make gate: %w: state folder %q, group %q", sandbox.ErrInvalid, o.StateDir, o.Group)
	}
	if o.Starts <= 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.Wait <= 0 {
		o.Wait = DefaultWait
	}
	return &Semaphore{opts: o, dir: filepath.Join(o.StateDir, dirName), queue: make(chan struct{}, 1)}, nil
}

// dirName is below the state folder.
const dirName = "admit"

// Request is one sandbox that is to start.
type Request struct {
	// MemoryBytes is its limit of memory.
	MemoryBytes int64
	// Notify is told what the start waits for, if it does; nil is nobody.
	Notify func(waiting string)
}

// Acquire returns when the sandbox may start. The caller calls [Pass.Started]
// when it runs, or failed to, and [Pass.Close] when it is gone. Enter fails with
// an error wrapping context.Cause(ctx) when ctx ends, and with
// sandbox.ErrUnavailable after Options.Wait; it says what it waited for.
func (s *Semaphore) Acquire(ctx context.Context, r Request) (*Lease, error) {
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("admit sandbox: %w", err)
	}
	a := &acquisition{semaphore: s, request: r, lease: &Lease{}, began: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.Wait, errWaitTooLong)
	defer cancel()
	err := a.acquireAll(ctx)
	a.leaveQueue()
	if err == nil {
		return a.lease, nil
	}
	a.lease.Close()
	if errors.Is(err, errWaitTooLong) {
		err = fmt.Errorf("%w: it waited %s %s: run fewer sessions at once, or try again", sandbox.ErrUnavailable, s.opts.Wait, a.reason)
	}
	return nil, fmt.Errorf("admit sandbox: %w", err)
}

var errWaitTooLong = errors.New("the wait is over")

// makeDir makes the folder.
func (s *Semaphore) makeDir() error {
	if err := owner.CheckStateDir(s.opts.StateDir); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return owner.CheckStateDir(s.dir)
}

// newLock is a lock of this gate's folder, not taken yet.
func (s *Semaphore) newLock(name string) *flock.Flock {
	return flock.New(filepath.Join(s.dir, name), flock.SetPermissions(0o600))
}

// isPlainName says that a word is safe in a file name.
func isPlainName(word string) bool {
	for _, c := range []byte(word) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return word != "" && len(word) <= 100
}
