package fakesandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

func (b *Sandbox) sendCopy(ctx context.Context) (err error) {
	w := b.Spec.Workspace
	dir := filepath.Join(b.Spec.Dir, fmt.Sprintf("copy-%d", b.Number))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	read, write := io.Pipe()
	go func() {
		write.CloseWithError(overlay.WriteTree(ctx, write, w.Layers, w.Lowers, w.Dir, overlay.DefaultCopyBounds))
	}()
	if err := archive.Unpack(read, dir, archive.Bounds{}); err != nil {
		return err
	}
	if b.Dir, err = os.Open(dir); err != nil {
		return err
	}
	r, err := workspace.NewReader(b.Dir, workspace.ReaderOptions{})
	if err == nil {
		b.copy, err = overlay.OpenCopy(ctx, w.Layers, r, overlay.DefaultCopyBounds)
	}
	return err
}

// Collect collects the changes of a copy.
func (b *Sandbox) Collect(ctx context.Context) error {
	if b.copy == nil || b.State() == sandbox.StateStopped {
		return sandbox.ErrState
	}
	do := func() error { return b.copy.Collect(ctx) }
	if f := b.backend.OnCollect; f != nil {
		return f(b, do)
	}
	return do()
}
