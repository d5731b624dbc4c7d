package admit

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

// Gate admits starts. It holds nothing open when nobody starts. It is safe for
// concurrent use.
type Gate struct {
	o     Options
	dir   string
	first chan struct{} // held by the one of this process that may wait for the turn
}

// New returns a gate. It fails with sandbox.ErrInvalid without a state folder
// or group; it makes nothing yet.
func New(o Options) (*Gate, error) {
	if o.StateDir == "" || !plain(o.Group) {
		return nil, fmt.Errorf("make gate: %w: state folder %q, group %q", sandbox.ErrInvalid, o.StateDir, o.Group)
	}
	if o.Starts <= 0 {
		o.Starts = 2 * runtime.NumCPU()
	}
	if o.Wait <= 0 {
		o.Wait = DefaultWait
	}
	return &Gate{o: o, dir: filepath.Join(o.StateDir, folder), first: make(chan struct{}, 1)}, nil
}

// folder is below the state folder.
const folder = "admit"

// Request is one sandbox that is to start.
type Request struct {
	// MemoryBytes is its limit of memory.
	MemoryBytes int64
	// Notify is told what the start waits for, if it does; nil is nobody.
	Notify func(waiting string)
}

// Enter returns when the sandbox may start. The caller calls [Pass.Started]
// when it runs, or failed to, and [Pass.Close] when it is gone. Enter fails with
// an error wrapping context.Cause(ctx) when ctx ends, and with
// sandbox.ErrUnavailable after Options.Wait; it says what it waited for.
func (g *Gate) Enter(ctx context.Context, r Request) (*Pass, error) {
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("admit sandbox: %w", err)
	}
	w := &wait{gate: g, request: r, pass: &Pass{}, began: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, g.o.Wait, errWait)
	defer cancel()
	err := w.through(ctx)
	w.leave()
	if err == nil {
		return w.pass, nil
	}
	w.pass.Close()
	if errors.Is(err, errWait) {
		err = fmt.Errorf("%w: it waited %s %s: run fewer sessions at once, or try again", sandbox.ErrUnavailable, g.o.Wait, w.reason)
	}
	return nil, fmt.Errorf("admit sandbox: %w", err)
}

var errWait = errors.New("the wait is over")

// open makes the folder.
func (g *Gate) open() error {
	if err := owner.CheckStateDir(g.o.StateDir); err != nil {
		return err
	}
	if err := os.Mkdir(g.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return owner.CheckStateDir(g.dir)
}

// lock is a lock of this gate's folder, not taken yet.
func (g *Gate) lock(name string) *flock.Flock {
	return flock.New(filepath.Join(g.dir, name), flock.SetPermissions(0o600))
}

// plain says that a word is safe in a file name.
func plain(word string) bool {
	for _, c := range []byte(word) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return word != "" && len(word) <= 100
}
