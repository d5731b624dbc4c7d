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

// sessionPrefix is the prefix of a ready sandbox's name, as of a session's
// (sandbox.Spec.Session).
const sessionPrefix = "ses_"

// readySandbox is a sandbox that was started ahead of time. Create may have
// returned it since.
type readySandbox struct {
	sandbox   sandbox.Sandbox
	spec      sandbox.Spec
	layout    workmount.Layout // of the workspace since before it was started
	started   time.Time
	mu        sync.Mutex
	destroyed bool
}

// startReady starts a sandbox for a spec. After an error nothing is left.
func (p *Pool) startReady(template sandbox.Spec) (_ *readySandbox, err error) {
	spec := template
	spec.Session = sessionPrefix + ulid.Make().String()
	spec.Dir = filepath.Join(p.dir, spec.Session)
	spec.Workspace.Dir, err = duplicateDir(template.Workspace.Dir)
	if err != nil {
		return nil, err
	}
	r := &readySandbox{spec: spec, started: time.Now()}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, p.cleanUpStart(r, err)
	}
	before, err := workmount.LayoutOf(spec.Workspace, spec.Git)
	if err != nil {
		return nil, p.cleanUpStart(r, err)
	}
	ctx, giveUp := context.WithCancelCause(p.ctx)
	defer giveUp(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("%w: no ready sandbox within %s", sandbox.ErrUnavailable, startTimeout))
	defer cancel()
	spec.Notify = func(waiting string) {
		giveUp(fmt.Errorf("%w: a background start makes way for sessions instead of %s", sandbox.ErrUnavailable, waiting))
	}
	r.sandbox, err = p.backend.Create(ctx, spec)
	if err != nil {
		r.sandbox = nil // not a typed nil
		return nil, p.cleanUpStart(r, err)
	}
	// The guards were made between the two calls of LayoutOf.
	r.layout, err = workmount.LayoutOf(spec.Workspace, spec.Git)
	if err != nil {
		return nil, p.cleanUpStart(r, err)
	}
	if !before.AllowsFrom(r.layout) {
		return nil, p.cleanUpStart(r, errChanged)
	}
	return r, nil
}

// cleanUpStart removes everything that a failed start made, and returns err.
func (p *Pool) cleanUpStart(r *readySandbox, err error) error {
	if left := r.destroy(); left != nil {
		p.recordStuck(r, left)
	}
	return err
}

var errChanged = errors.New("what is guarded in the workspace has changed")

// pingTimeout bounds a ping, which usually takes a fraction of a millisecond.
const pingTimeout = time.Second

// checkUsable returns an error if Create must not return the sandbox any more.
func (r *readySandbox) checkUsable(ctx context.Context, maxAge time.Duration) error {
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
	ctx, cancel := context.WithTimeoutCause(ctx, pingTimeout, fmt.Errorf("%w: no answer to a ping within %s", sandbox.ErrLost, pingTimeout))
	defer cancel()
	return r.sandbox.Ping(ctx)
}

// destroy removes the sandbox and everything that was made for it. It is
// idempotent, and may be called again after an error.
func (r *readySandbox) destroy() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.destroyed {
		return nil
	}
	if r.sandbox != nil {
		if err := r.sandbox.Destroy(context.Background()); err != nil { // not the context of the caller: the sandbox must go
			return err
		}
	}
	if err := os.Remove(r.spec.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory of ready sandbox: %w", err)
	}
	r.destroyed = true
	return r.spec.Workspace.Dir.Close()
}

// pooledSandbox is a ready sandbox that Create returned.
type pooledSandbox struct {
	sandbox.Sandbox
	ready *readySandbox
}

// Destroy destroys the sandbox; see sandbox.Sandbox.
func (s *pooledSandbox) Destroy(context.Context) error { return s.ready.destroy() }

// Serve sets the handler of connections; see sandbox.EgressServer.
func (s *pooledSandbox) Serve(h sandbox.EgressHandler) {
	if server, ok := s.Sandbox.(sandbox.EgressServer); ok {
		server.Serve(h)
	}
}

// removeEmpty removes the empty directories in dir that were last modified
// before older.
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
			_ = os.Remove(filepath.Join(dir, e.Name())) // a directory that is not empty is in use
		}
	}
	return nil
}
