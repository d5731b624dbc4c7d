package livesandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// View reads the workspace of an overlay session as its commands see it. Before a sandbox is
// ready, nothing can have changed, so it reads the original directory. After that, each call
// reads through the running sandbox, or waits for a fresh one. A call that meets a loss fails
// like a command.
type View struct {
	sandbox  *Sandbox
	original *workspace.Reader
}

var _ workspace.View = (*View)(nil)

// NewView returns a view of an overlay on the directory of original.
func NewView(sandbox *Sandbox, original *workspace.Reader) *View {
	return &View{sandbox: sandbox, original: original}
}

var errNoView = fmt.Errorf("%w: the backend shows the host no overlay workspace", sandbox.ErrUnsupported)

// readThrough calls read with the original directory or the running sandbox's view.
func readThrough[T any](ctx context.Context, v *View, read func(workspace.View) (T, error)) (T, error) {
	if v.sandbox.IsUntouched() {
		return read(v.original)
	}
	var none T
	g, err := v.sandbox.waitRunning(ctx)
	if err != nil {
		return none, err
	}
	view := g.sandbox.View()
	if view == nil {
		return none, errNoView
	}
	got, err := read(view)
	if err != nil {
		return got, v.sandbox.checkLoss(g, err)
	}
	return got, nil
}

// Relative checks only the spelling.
func (v *View) Relative(path string) (string, error) { return v.original.Relative(path) }

// Scope checks a path before a call. Without a sandbox it returns nil, and the call fails.
func (v *View) Scope(ctx context.Context, path string) error {
	if _, err := v.original.Relative(path); err != nil {
		return err
	}
	_, err := readThrough(ctx, v, func(w workspace.View) (struct{}, error) { return struct{}{}, w.Scope(ctx, path) })
	if err != nil && !errors.As(err, new(*workspace.Error)) {
		return nil
	}
	return err
}

// Stat describes what a path leads to.
func (v *View) Stat(ctx context.Context, path string) (workspace.Info, error) {
	return readThrough(ctx, v, func(w workspace.View) (workspace.Info, error) { return w.Stat(ctx, path) })
}

// Lstat describes what a path itself names.
func (v *View) Lstat(ctx context.Context, path string) (workspace.Info, error) {
	return readThrough(ctx, v, func(w workspace.View) (workspace.Info, error) { return w.Lstat(ctx, path) })
}

// List returns the entries of a directory.
func (v *View) List(ctx context.Context, path string, depth int) (workspace.Listing, error) {
	return readThrough(ctx, v, func(w workspace.View) (workspace.Listing, error) { return w.List(ctx, path, depth) })
}

// Search searches files below a path.
func (v *View) Search(ctx context.Context, path string, o workspace.SearchOptions) (workspace.SearchSummary, error) {
	var own error // Visit's error is returned as it is, whatever it wraps
	visit := o.Visit
	o.Visit = func(name string, f workspace.SearchResult) error {
		own = visit(name, f)
		return own
	}
	walked, err := readThrough(ctx, v, func(w workspace.View) (workspace.SearchSummary, error) {
		walked, err := w.Search(ctx, path, o)
		if own != nil {
			err = nil
		}
		return walked, err
	})
	if own != nil && !errors.Is(own, workspace.SkipAll) {
		return walked, own
	}
	return walked, err
}

// ReadFile reads a piece of a file.
func (v *View) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	return readThrough(ctx, v, func(w workspace.View) (workspace.File, error) { return w.ReadFile(ctx, path, offset, most) })
}
