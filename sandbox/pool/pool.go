package pool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
)

// Options says what to keep ready. Size and StateDir are required.
type Options struct {
	// Size is how many sandboxes are ready or being started at most, for all
	// specs together.
	Size int
	// StateDir is Caisson's state folder; ready sandboxes have their folders
	// in "pool" below it.
	StateDir string
	// MaxAge is how old a sandbox may be when it is given out; older ones are
	// replaced. Zero means [DefaultMaxAge].
	MaxAge time.Duration
	// Forget is how long a spec that nobody asks for is kept ready; zero means
	// [DefaultForget].
	Forget time.Duration
	// Logger gets what can't be returned; nil discards.
	Logger *zap.Logger
}

// A sandbox that is older than DefaultMaxAge could have an image, or a machine's
// programs, of before an update. What nobody asked for in DefaultForget is not
// worth its memory.
const (
	DefaultMaxAge = 10 * time.Minute
	DefaultForget = time.Hour
)

// startTimeout bounds a start in the background. One that has to wait to be admitted
// ends before: it gives its place to somebody's session.
const startTimeout = time.Minute

// dirName is below the state folder.
const dirName = "pool"

// Pool is a backend that keeps sandboxes ready. Whoever made it closes it, after
// the sandboxes that it gave out were destroyed, and before the backend. It is
// safe for concurrent use.
type Pool struct {
	backend sandbox.Backend
	opts    Options
	dir     string

	ctx  context.Context // of the background work; Close ends it
	stop context.CancelCauseFunc
	work sync.WaitGroup
	// startSlots is held by starts in the background: as many as there are processors,
	// which is half of what is admitted at once, so that they do not wait for each
	// other's admission.
	startSlots chan struct{}

	mu       sync.Mutex
	closed   bool
	buckets  map[string]*bucket
	starting int             // in all
	stuck    []*readySandbox // what could not be destroyed, each once
}

var _ sandbox.Backend = (*Pool)(nil)

// New returns a pool in front of a backend, which stays the caller's. It
// fails with sandbox.ErrInvalid for options that can't be right, and starts
// nothing before the first Create or Prepare.
func New(backend sandbox.Backend, o Options) (*Pool, error) {
	if backend == nil || o.Size <= 0 || !filepath.IsAbs(o.StateDir) || o.MaxAge < 0 || o.Forget < 0 {
		return nil, fmt.Errorf("make pool: %w: size %d, state folder %q", sandbox.ErrInvalid, o.Size, o.StateDir)
	}
	if o.MaxAge == 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.Forget == 0 {
		o.Forget = DefaultForget
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	p := &Pool{backend: backend, opts: o, dir: filepath.Join(o.StateDir, dirName), buckets: map[string]*bucket{}, startSlots: make(chan struct{}, runtime.NumCPU())}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.work.Go(p.runMaintenance)
	return p, nil
}

// Name is the backend's.
func (p *Pool) Name() string { return p.backend.Name() }

// Check asks the backend.
func (p *Pool) Check(ctx context.Context) (sandbox.Info, error) { return p.backend.Check(ctx) }

// List asks the backend: ready sandboxes are among its own.
func (p *Pool) List(ctx context.Context) ([]sandbox.Listing, error) { return p.backend.List(ctx) }

// Sweep asks the backend, and removes the folders of ready sandboxes of the
// dead once they are empty.
func (p *Pool) Sweep(ctx context.Context) ([]sandbox.Leftover, error) {
	left, err := p.backend.Sweep(ctx)
	return left, errors.Join(err, removeEmpty(p.dir, time.Now().Add(-p.opts.Forget)))
}

// Create gives out a ready sandbox or starts one; see sandbox.Backend. Its
// errors are the backend's.
func (p *Pool) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if !isPoolable(spec) {
		return p.createNow(ctx, spec)
	}
	b, err := p.acquireBucket(spec)
	if err != nil {
		return nil, fmt.Errorf("take sandbox from pool: %w", err)
	}
	defer p.releaseBucket(b)
	defer p.fillBucket(b, refillDelay)
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, fmt.Errorf("take sandbox from pool: %w", err)
		}
		r := p.takeReady(b)
		if r == nil {
			return p.createNow(ctx, spec)
		}
		if err := r.checkUsable(ctx, p.opts.MaxAge); err != nil {
			p.opts.Logger.Info("a ready sandbox is replaced", zap.String("sandbox", r.sandbox.ID()), zap.Error(err))
			p.discardReady(r)
			continue
		}
		return &pooledSandbox{Sandbox: r.sandbox, ready: r}, nil
	}
}

// createNow starts a session's sandbox. Each time that it says what it waits for, one
// that is ready makes room.
func (p *Pool) createNow(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	notify := spec.Notify
	spec.Notify = func(waiting string) {
		p.evictOldest()
		if notify != nil {
			notify(waiting)
		}
	}
	return p.backend.Create(ctx, spec)
}

// Prepare starts sandboxes for a spec in the background, up to Options.Size,
// before anybody asks for one. Spec.Session and Spec.Dir are not used. It
// does nothing for a spec that is not pooled.
func (p *Pool) Prepare(spec sandbox.Spec) error {
	if !isPoolable(spec) {
		return nil
	}
	b, err := p.acquireBucket(spec)
	if err != nil {
		return fmt.Errorf("prepare pool: %w", err)
	}
	defer p.releaseBucket(b)
	p.fillBucket(b, 0)
	return nil
}

// Ready is how many sandboxes are ready now.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.countLocked() - p.starting
}

var errClosed = fmt.Errorf("%w: the pool is closed", sandbox.ErrState)

// Close destroys what is ready and waits for that. It returns what could not
// be destroyed, which a later sweep finds; a second call tries that again.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop(errClosed)
	p.work.Wait() // nothing is started or given out any more
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.buckets {
		p.stuck = append(p.stuck, b.ready...)
		b.closeDir()
	}
	clear(p.buckets)
	var errs []error
	p.stuck = slices.DeleteFunc(p.stuck, func(r *readySandbox) bool {
		err := r.destroy()
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}
