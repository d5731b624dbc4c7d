package workmount

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/tools/workspace"
)

// View returns a view of the overlay for sandbox.Sandbox.View, or nil if this
// process mounted none. ended returns the reason if the sandbox can no longer
// be used. Closing p ends the view.
func (p *Mounts) View(hostPath string, ended func() error) (workspace.View, error) {
	root, layers := p.cleanup.overlayRoot()
	if root == nil {
		return nil, nil
	}
	r, err := workspace.NewReader(root, workspace.ReaderOptions{HostPath: hostPath, ContainerPath: p.Target, Layers: layers})
	if err != nil {
		return nil, fmt.Errorf("view workspace: %w", err)
	}
	return &view{reader: r, ended: ended}, nil
}

// view is a Reader whose calls fail when the sandbox has ended.
type view struct {
	reader *workspace.Reader
	ended  func() error
}

// readUnlessEnded calls read, unless the sandbox has ended. If the sandbox ends
// meanwhile and read fails, it returns the sandbox's error: read failed because
// its directory was closed.
func readUnlessEnded[T any](v *view, read func() (T, error)) (T, error) {
	var none T
	if err := v.ended(); err != nil {
		return none, fmt.Errorf("read workspace: %w", err)
	}
	got, err := read()
	if err != nil {
		if ended := v.ended(); ended != nil {
			return none, fmt.Errorf("read workspace: %w", ended)
		}
	}
	return got, err
}

func (v *view) Relative(path string) (string, error) { return v.reader.Relative(path) }

func (v *view) Scope(ctx context.Context, path string) error {
	_, err := readUnlessEnded(v, func() (struct{}, error) { return struct{}{}, v.reader.Scope(ctx, path) })
	return err
}

func (v *view) Stat(ctx context.Context, path string) (workspace.Info, error) {
	return readUnlessEnded(v, func() (workspace.Info, error) { return v.reader.Stat(ctx, path) })
}

func (v *view) Lstat(ctx context.Context, path string) (workspace.Info, error) {
	return readUnlessEnded(v, func() (workspace.Info, error) { return v.reader.Lstat(ctx, path) })
}

func (v *view) List(ctx context.Context, path string, depth int) (workspace.Listing, error) {
	return readUnlessEnded(v, func() (workspace.Listing, error) { return v.reader.List(ctx, path, depth) })
}

// Search returns Visit's error, even if the sandbox ends meanwhile.
func (v *view) Search(ctx context.Context, path string, o workspace.SearchOptions) (workspace.SearchSummary, error) {
	var last error
	visit := o.Visit
	o.Visit = func(name string, f workspace.SearchResult) error {
		last = visit(name, f)
		return last
	}
	walked, err := readUnlessEnded(v, func() (workspace.SearchSummary, error) { return v.reader.Search(ctx, path, o) })
	if err != nil && last != nil {
		return walked, last
	}
	return walked, err
}

func (v *view) ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error) {
	return readUnlessEnded(v, func() (workspace.File, error) { return v.reader.ReadFile(ctx, path, offset, most) })
}
