package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
)

// DefaultWait is the default of [Options.Wait]. 64 sessions on two processors
// need a quarter of it if each start takes one second.
const DefaultWait = 5 * time.Minute

// Options configures a [Semaphore]. StateDir and Group are required.
type Options struct {
	StateDir string
	// Group names what the starts share: an engine, or this machine's
	// processors for runtimes without an engine. It begins the names of files.
	Group string
	// Starts is how many sandboxes of the group may start at once. Zero means
	// two per processor, since a start spends half of its time waiting.
	Starts int
	// Wait bounds how long a start waits; zero means [DefaultWait].
	Wait time.Duration
	// Memory returns the machine's memory, like [ReadMemory]. If it is nil or
	// returns a Total of 0, memory does not bound the starts. That is for an
	// engine on another machine.
	Memory func() (Memory, error)
}

// Semaphore admits the starts of sandboxes. It holds no files open unless a
// start waits or a [Lease] is held. It is safe for concurrent use.
type Semaphore struct {
	opts  Options
	dir   string
	queue chan struct{} // holds a value while a call of this process waits for the head
}

// New returns a semaphore. It creates no files.
func New(o Options) *Semaphore {
	if o.Starts <= 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.Wait <= 0 {
		o.Wait = DefaultWait
	}
	return &Semaphore{opts: o, dir: filepath.Join(o.StateDir, dirName), queue: make(chan struct{}, 1)}
}

const dirName = "admission"

// Request describes a sandbox that is to start.
type Request struct {
	// MemoryBytes is the sandbox's memory limit.
	MemoryBytes int64
	// Job is nil if the sandbox has limits of its own.
	Job *Job
	// Notify, if not nil, is called with the reason why the start has to wait.
	Notify func(waiting string)
}

// Acquire waits until the sandbox may start. The caller must call
// [Lease.FinishStart] once the sandbox runs or its start failed, and
// [Lease.Close] once the sandbox is gone.
//
// If ctx ends, the error wraps context.Cause(ctx). After Options.Wait it wraps
// sandbox.ErrUnavailable and names the reason for the wait.
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

func (s *Semaphore) makeDir() error {
	if err := state.CheckDir(s.opts.StateDir); err != nil {
		return err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return state.CheckDir(s.dir)
}

func (s *Semaphore) file(name string) string { return filepath.Join(s.dir, name) }

// isStopped reports whether a process is stopped (T) or traced (t), according
// to the third field of /proc/PID/stat; see proc(5). The second field is the
// program's name in parentheses and may contain any character.
func isStopped(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte(" "))
	return ok && len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't')
}

// tryLock takes the lock on a file and writes our PID into it, or returns nil
// if it is held.
func tryLock(path string) (*state.Lock, error) {
	lock, err := state.TryAcquire(path)
	if errors.Is(err, state.ErrHeld) {
		return nil, nil
	}
	if err == nil {
		err = writePID(path)
	}
	if err != nil {
		_ = lock.Release() // the error counts
		return nil, err
	}
	return lock, nil
}

// writePID overwrites a file's content with our PID. It does not truncate the
// file: some file systems would then write it out at once, which takes longer
// than everything else.
func writePID(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%-10d\n", os.Getpid())
	return errors.Join(err, f.Close())
}

// holderStopped reports whether the process that holds a lock is stopped, for
// instance by Ctrl-Z, so that it keeps its locks without making progress. The
// PID in the file may be outdated or from another PID namespace. A wrong result
// only affects the order of starts, never the bound on memory.
func holderStopped(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return err == nil && pid > 0 && pid != os.Getpid() && isStopped(pid)
}

// Lease is the permission for one sandbox to start and run. A nil Lease's
// methods do nothing. It is safe for concurrent use.
type Lease struct {
	mu      sync.Mutex
	slot    *state.Lock
	memory  *state.Lock
	threads int64
}

// Threads returns how many threads of the machine the sandbox may use, at most
// Job.MostThreads. It is 0 if there is no limit, or no Job.
func (l *Lease) Threads() int64 { return l.threads }

// FinishStart lets the next sandbox start. Further calls do nothing.
func (l *Lease) FinishStart() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.slot.Release() // the lock ends with the process at the latest
}

// Close calls FinishStart and releases the sandbox's reserved memory. Further
// calls do nothing.
func (l *Lease) Close() {
	if l == nil {
		return
	}
	l.FinishStart()
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.memory.Release() // as in FinishStart
}
