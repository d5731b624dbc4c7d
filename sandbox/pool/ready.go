package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// prefix begins the name of a ready sandbox, as it does a session's
// (sandbox.Spec.Session).
const prefix = "ses_"

// ready is a sandbox that nobody uses yet, or one that was given out.
type ready struct {
	box     sandbox.Sandbox
	spec    sandbox.Spec
	layout  workmount.Layout // of the workspace since before it was started
	started time.Time
	mu      sync.Mutex
	gone    bool
}

// start starts one. On an error nothing is left.
func (p *Pool) start(template sandbox.Spec) (_ *ready, err error) {
	spec := template
	spec.Session = prefix + ulid.Make().String()
	spec.Dir = filepath.Join(p.dir, spec.Session)
	if spec.Workspace.Dir, err = again(template.Workspace.Dir); err != nil {
		return nil, err
	}
	r := &ready{spec: spec, started: time.Now()}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, p.undone(r, err)
	}
	before, err := workmount.LayoutOf(spec.Workspace, spec.Git)
	if err != nil {
		return nil, p.undone(r, err)
	}
	ctx, giveUp := context.WithCancelCause(p.ctx)
	defer giveUp(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("%w: no ready sandbox within %s", sandbox.ErrUnavailable, startTime))
	defer cancel()
	spec.Notify = func(waiting string) {
		giveUp(fmt.Errorf("%w: a start ahead leaves its place to somebody's session instead of %s", sandbox.ErrUnavailable, waiting))
	}
	if r.box, err = p.backend.Create(ctx, spec); err != nil {
		r.box = nil // not a typed nil
		return nil, p.undone(r, err)
	}
	// The guards were made somewhere between the two looks.
	if r.layout, err = workmount.LayoutOf(spec.Workspace, spec.Git); err != nil {
		return nil, p.undone(r, err)
	}
	if !before.Reserves(r.layout) {
		return nil, p.undone(r, errChanged)
	}
	return r, nil
}

// undone removes what a start that failed has made.
func (p *Pool) undone(r *ready, err error) error {
	if left := r.destroy(); left != nil {
		p.keep(r, left)
	}
	return err
}

var errChanged = errors.New("what is guarded in the workspace has changed")

// pingTime bounds the sign of life: a round trip takes a fraction of a
// millisecond.
const pingTime = time.Second

// fit says why it must not be given out any more.
func (r *ready) fit(ctx context.Context, maxAge time.Duration) error {
	if age := time.Since(r.started); age > maxAge {
		return fmt.Errorf("it is %s old", age.Round(time.Second))
	}
	layout, err := workmount.LayoutOf(r.spec.Workspace, r.spec.Git)
	if err != nil {
		return err
	}
	if !layout.Equal(r.layout) {
		return errChanged
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pingTime, fmt.Errorf("%w: no answer to a ping within %s", sandbox.ErrLost, pingTime))
	defer cancel()
	return r.box.Ping(ctx)
}

// destroy removes it and all that was made for it. It is idempotent, and may be
// called again after an error.
func (r *ready) destroy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return nil
	}
	if r.box != nil {
		if err := r.box.Destroy(context.Background()); err != nil { //nolint:contextcheck // it has to go
			return err
		}
	}
	if err := os.Remove(r.spec.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove folder of ready sandbox: %w", err)
	}
	r.gone = true
	return r.spec.Workspace.Dir.Close()
}

// given is a sandbox of the pool in a session's hands.
type given struct {
	sandbox.Sandbox
	ready *ready
}

// Destroy destroys the sandbox for good; see sandbox.Sandbox.
func (g *given) Destroy(context.Context) error { return g.ready.destroy() }

// removeEmpty removes the empty folders in dir that are older than a time.
func removeEmpty(dir string, older time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep pool: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(older) {
			os.Remove(filepath.Join(dir, e.Name())) //nolint:errcheck // one that is not empty is still somebody's
		}
	}
	return nil
}
