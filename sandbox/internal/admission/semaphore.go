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

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
)

// DefaultWait is the longest time for which a start waits. 64 sessions on two
// processors need a quarter of it if each start takes one second.
const DefaultWait = 5 * time.Minute

// Options configures a [Semaphore]. StateDir and Group are required.
type Options struct {
	// StateDir is Caisson's state directory.
	StateDir string
	// Group names the resource that the starts share: an engine, or this
	// machine's processors for runtimes without an engine. It consists of
	// letters, digits, "_" and "-".
	Group string
	// Starts is the number of sandboxes of the group that may start at once.
	// Zero means two per processor, since a start spends half of its time
	// waiting.
	Starts int
	// Wait is the longest time for which a start waits; zero means
	// [DefaultWait].
	Wait time.Duration
	// Memory returns the machine's memory, as [ReadMemory] does. If it is nil
	// or returns a Total of 0, memory does not bound the starts. Use that for
	// an engine on another machine.
	Memory func() (Memory, error)
}

// Semaphore admits the starts of sandboxes. It holds no files open unless a
// start waits or a [Lease] is held. It is safe for concurrent use.
type Semaphore struct {
	opts  Options
	dir   string
	queue chan struct{} // holds one value while a call of this process waits for the head
}

// New returns a semaphore. It returns sandbox.ErrInvalid if the state directory
// or the group is missing or invalid. It creates no files.
func New(o Options) (*Semaphore, error) {
	if o.StateDir == "" || !isPlainName(o.Group) {
		return nil, fmt.Errorf("make admission semaphore: %w: state directory %q, group %q", sandbox.ErrInvalid, o.StateDir, o.Group)
	}
	if o.Starts <= 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.Wait <= 0 {
		o.Wait = DefaultWait
	}
	return &Semaphore{opts: o, dir: filepath.Join(o.StateDir, dirName), queue: make(chan struct{}, 1)}, nil
}

// dirName is the name of the directory below the state directory.
const dirName = "admission"

// Request describes a sandbox that is about to start.
type Request struct {
	// MemoryBytes is the memory limit of the sandbox.
	MemoryBytes int64
	// Notify is called with the reason for which the start has to wait. It may
	// be nil.
	Notify func(waiting string)
}

// Acquire waits until the sandbox may start. The caller must call
// [Lease.FinishStart] once the sandbox runs or its start failed, and
// [Lease.Close] once the sandbox is gone.
//
// If ctx ends, the error wraps context.Cause(ctx). After Options.Wait it wraps
// sandbox.ErrUnavailable and names the reason of the wait.
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

// makeDir creates the directory of the lock files and checks its permissions.
func (s *Semaphore) makeDir() error {
	if err := state.CheckDir(s.opts.StateDir); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return state.CheckDir(s.dir)
}

// file returns the path of a file of the directory.
func (s *Semaphore) file(name string) string { return filepath.Join(s.dir, name) }

// isPlainName reports whether a name can be part of a file name.
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
