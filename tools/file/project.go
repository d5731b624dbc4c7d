package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// diffBytes bounds each side of a diff: people read no more, and the time to
// compare grows faster than the size.
const diffBytes = 1 << 20

// projectedDiff returns the unified diff that a write, patch or delete would make,
// and the state of the file. It fails if the change would fail. A file that is too
// large or not text is described in one line instead.
func projectedDiff(ctx context.Context, r workspace.View, op workspace.Op) (tools.Projection, error) {
	path, err := r.Relative(op.Path)
	if err != nil {
		return tools.Projection{}, err
	}
	if info, err := r.Lstat(ctx, op.Path); op.Kind == workspace.OpDelete && err == nil && info.Type != workspace.TypeFile {
		return tools.Projection{Diff: fmt.Sprintf("--- a/%s\n+++ /dev/null\nNo file: a %s.\n", path, info.Type)}, nil
	}
	before, exists, err := readCurrent(ctx, r, op.Path)
	if err != nil {
		return tools.Projection{}, err
	}
	after := op.Content
	switch {
	case op.Kind == workspace.OpPatch && exists:
		after, _, err = op.PatchContent(before)
	case op.Kind == workspace.OpPatch, op.Kind == workspace.OpDelete && !exists:
		err = &workspace.Error{Kind: workspace.KindNotFound, Path: op.Path, Detail: "no such file or directory"}
	case op.Kind == workspace.OpDelete:
		after = nil
	case op.Kind != workspace.OpWrite:
		err = fmt.Errorf("project change: no diff for %s", op.Kind)
	}
	if err != nil {
		return tools.Projection{}, err
	}
	diff := unifiedDiff(path, before, after, exists, op.Kind == workspace.OpDelete)
	return tools.Projection{State: stateOf(before, exists).sum, Diff: diff}, nil
}

func readCurrent(ctx context.Context, r workspace.View, path string) (content []byte, exists bool, err error) {
	f, err := r.ReadFile(ctx, path, 0, workspace.MaxWriteBytes)
	if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindNotFound {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if f.Truncated {
		return nil, false, &workspace.Error{
			Kind: workspace.KindTooLarge, Path: path,
			Detail: fmt.Sprintf("has %d bytes; a diff can be shown of at most %d", f.Size, workspace.MaxWriteBytes),
		}
	}
	return f.Data, true, nil
}

func unifiedDiff(path string, before, after []byte, existed, deleted bool) string {
	from, to := "a/"+path, "b/"+path
	if !existed {
		from = "/dev/null"
	}
	if deleted {
		to = "/dev/null"
	}
	switch {
	case len(before) > diffBytes, len(after) > diffBytes:
		return fmt.Sprintf("--- %s\n+++ %s\nToo large for a diff: %d bytes before, %d after.\n", from, to, len(before), len(after))
	case bytes.IndexByte(before, 0) >= 0, bytes.IndexByte(after, 0) >= 0:
		return fmt.Sprintf("--- %s\n+++ %s\nBinary: %d bytes before, %d after.\n", from, to, len(before), len(after))
	}
	return udiff.Unified(from, to, string(before), string(after))
}
