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

// Options configures a [Pool]. Size and StateDir are required.
type Options struct {
	// Size is the maximum number of sandboxes that are ready or being started,
	// for all specs together.
	Size int
	// StateDir is Caisson's state directory. Ready sandboxes have their
	// directories in "pool" below it.
	StateDir string
	// Logger receives errors of the background work; nil discards them.
	Logger *zap.Logger
}

const (
	// maxAge is the maximum age of a sandbox that Create returns. An older one may
	// have an outdated image or outdated programs of the machine, and is replaced.
	maxAge = 10 * time.Minute
	// forgetTime is the time without a Create or Prepare after which the sandboxes of
	// a spec are removed.
	forgetTime = time.Hour
)

// startTimeout bounds a start in the background. A start that would have to
// wait for admission fails earlier, so that it does not delay a session's
// start.
const startTimeout = time.Minute

// dirName is the name of the directory below the state directory.
const dirName = "pool"

// Pool is a backend that keeps sandboxes ready. The caller must close it after
// destroying the sandboxes that it returned, and before closing the backend. It
// is safe for concurrent use.
type Pool struct {
	backend sandbox.Backend
	opts    Options
	dir     string

	ctx  context.Context // of the background work; Close ends it
	stop context.CancelCauseFunc
	work sync.WaitGroup
	// startSlots bounds the starts in the background to the number of
	// processors. That is half of the starts that are admitted at once, so they
	// don't wait for each other's admission.
	startSlots chan struct{}

	mu       sync.Mutex
	closed   bool
	buckets  map[string]*bucket
	starting int             // of all buckets
	stuck    []*readySandbox // sandboxes that could not be destroyed, each once
}

var _ sandbox.Backend = (*Pool)(nil)

// New returns a pool in front of a backend, which the caller keeps. It returns
// sandbox.ErrInvalid if the options are invalid. It starts no sandbox before
// the first Create or Prepare.
func New(backend sandbox.Backend, o Options) (*Pool, error) {
	if backend == nil || o.Size <= 0 || !filepath.IsAbs(o.StateDir) {
		return nil, fmt.Errorf("make pool: %w: size %d, state directory %q", sandbox.ErrInvalid, o.Size, o.StateDir)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	p := &Pool{backend: backend, opts: o, dir: filepath.Join(o.StateDir, dirName), buckets: map[string]*bucket{}, startSlots: make(chan struct{}, runtime.NumCPU())}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.work.Go(p.runMaintenance)
	return p, nil
}

// Name returns the name of the backend.
func (p *Pool) Name() string { return p.backend.Name() }

// Check calls the backend.
func (p *Pool) Check(ctx context.Context) (sandbox.Info, error) { return p.backend.Check(ctx) }

// List calls the backend, whose list includes the ready sandboxes.
func (p *Pool) List(ctx context.Context) ([]sandbox.Listing, error) { return p.backend.List(ctx) }

// Sweep calls the backend. It also removes the empty directories of ready
// sandboxes whose owners are dead.
func (p *Pool) Sweep(ctx context.Context) ([]sandbox.Orphan, error) {
	left, err := p.backend.Sweep(ctx)
	return left, errors.Join(err, removeEmpty(p.dir, time.Now().Add(-forgetTime)))
}

// Create returns a ready sandbox or starts one; see sandbox.Backend. Its errors
// are the backend's.
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
		if err := r.checkUsable(ctx, maxAge); err != nil {
			p.opts.Logger.Info("replacing a ready sandbox", zap.String("sandbox", r.sandbox.ID()), zap.Error(err))
			p.discardReady(r)
			continue
		}
		return &pooledSandbox{Sandbox: r.sandbox, ready: r}, nil
	}
}

// createNow starts a sandbox for a session. Each time the start reports that it
// waits, a ready sandbox is evicted.
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
// before the first Create. It ignores Spec.Session and Spec.Dir, and does
// nothing for a spec that is not pooled.
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

// Ready returns the number of sandboxes that are ready now.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.countLocked() - p.starting
}

var errClosed = fmt.Errorf("%w: the pool is closed", sandbox.ErrState)

// Close destroys the ready sandboxes and waits for that. It returns the errors
// of those that could not be destroyed, which a later sweep finds. A second
// call tries them again.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop(errClosed)
	p.work.Wait() // no sandbox is started or returned any more
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
