//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// copyCheck is the name of the check of copies.
const copyCheck = "a copy comes back as its changes"

// hostPath returns where the host finds a file of the workspace that commands or Apply
// changed: in the upper layer, where the workspace is a copy.
func (e *env) hostPath(ctx context.Context, path string) (string, error) {
	if !e.copied {
		return filepath.Join(e.workspace, path), nil
	}
	if err := e.sb.Collect(ctx); err != nil {
		return "", fmt.Errorf("collect changes: %w", err)
	}
	return filepath.Join(e.layersDir, overlay.UpperDir, path), nil
}

// plantCopied fills a workspace for checkCopy.
func plantCopied(e *env) error {
	owner := -1
	if os.Geteuid() == 0 {
		owner = ownerID
	}
	for _, name := range []string{"changed", "gone", "opaque/old", "moved/f", "shut/in", "tolink/f", "kept/f"} {
		path := filepath.Join(e.workspace, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("planted"), 0o644)); err != nil {
			return err
		}
		for _, made := range []string{path, filepath.Dir(path)} {
			if err := os.Lchown(made, owner, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// copiedChanges are the changes that checkCopy makes.
var copiedChanges = []string{
	"added by-command", "added elsewhere", "added elsewhere/f", "added " + frozenFile, "added kept/new", "added link", "added odd\nname", "added opaque/new",
	"deleted gone", "deleted moved", "deleted moved/f", "deleted opaque/old", "deleted tolink/f", "mode shut", "modified changed", "type tolink",
}

// checkCopy starts a sandbox on a copy of the workspace: what commands and Apply change
// is collected as changes of the workspace, which stays as it is.
func checkCopy(ctx context.Context, e *env) (err error) {
	if err := e.sb.Collect(ctx); !e.copied && !errors.Is(err, sandbox.ErrState) {
		return fmt.Errorf("collected from a workspace that is no copy: %w, want ErrState", err)
	}
	other := newEnv(e.target, filepath.Join(e.base, "copied"))
	other.copied, other.plant = true, plantCopied
	err = other.start(ctx, nil)
	if !e.target.Copies {
		if err == nil {
			return errors.Join(errors.New("copy mode is taken, and can't be had"), other.close(context.WithoutCancel(ctx)))
		}
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "overlay") {
			return fmt.Errorf("copy mode: %w, want ErrUnsupported and the mode to use", err)
		}
		return errors.Join(other.layers.Close(), other.nothingLeft())
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(context.WithoutCancel(ctx))) }()
	if mode := other.sb.Attestation().WorkspaceMode; mode != string(sandbox.ModeCopy) {
		return fmt.Errorf("attested mode %q", mode)
	}
	if err := changeCopy(ctx, other); err != nil {
		return err
	}
	for range 2 { // of which the second finds nothing new
		if err := checkCollected(ctx, other, copiedChanges); err != nil {
			return err
		}
	}
	for name, want := range map[string]string{"by-command": "x", "changed": "changed", "elsewhere/f": "planted"} {
		if err := other.hostHolds(ctx, name, []byte(want)); err != nil {
			return err
		}
	}
	if target, err := os.Readlink(filepath.Join(other.layersDir, overlay.UpperDir, "tolink")); err != nil || target != "/etc" {
		return fmt.Errorf("the symlink leads to %q, %w", target, err)
	}
	f, err := other.sb.View().ReadFile(ctx, sandbox.WorkspaceDir+"/changed", 0, 100)
	if err != nil || string(f.Data) != "changed" {
		return fmt.Errorf("the view's file: %q, %w", f.Data, err)
	}
	if _, err := other.sb.Apply(ctx, workspace.Op{Kind: workspace.OpDelete, Path: "by-command"}); err != nil {
		return err
	}
	return checkCollected(ctx, other, copiedChanges[1:])
}

// changeCopy makes the changes.
func changeCopy(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "read", frozenFile); err != nil {
		return fmt.Errorf("a file of a frozen layer: %w", err)
	}
	for _, op := range []workspace.Op{
		{Kind: workspace.OpWrite, Path: "changed", Content: []byte("changed")},
		{Kind: workspace.OpDelete, Path: "gone"},
		{Kind: workspace.OpDelete, Path: "opaque", Recursive: true},
		{Kind: workspace.OpWrite, Path: "opaque/new", Content: []byte("x")},
		{Kind: workspace.OpRename, Path: "moved", To: "elsewhere"},
		{Kind: workspace.OpChmod, Path: "shut", Mode: 0o711},
		{Kind: workspace.OpDelete, Path: "tolink", Recursive: true},
		{Kind: workspace.OpWrite, Path: "kept/new", Content: []byte("x")},
	} {
		if _, err := e.sb.Apply(ctx, op); err != nil {
			return fmt.Errorf("%s %s: %w", op.Kind, op.Path, err)
		}
	}
	for _, verb := range [][]string{{"touch", "by-command"}, {"touch", "odd\nname"}, {"symlink", "/etc", "tolink"}, {"symlink", "kept", "link"}} {
		if _, err := e.expectOutput(ctx, verb...); err != nil {
			return err
		}
	}
	return nil
}

// checkCollected collects the changes and compares them, and the workspace with what was
// planted.
func checkCollected(ctx context.Context, e *env, want []string) error {
	if err := e.sb.Collect(ctx); err != nil {
		return err
	}
	list, err := e.layers.Changes(ctx, e.dir, overlay.ReadOptions{})
	if err != nil {
		return err
	}
	var got []string
	for _, c := range list.List {
		got = append(got, string(c.Kind)+" "+c.Path)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("collected %q, want %q", got, want)
	}
	for _, name := range []string{"changed", "gone", "opaque/old", "moved/f", "tolink/f"} {
		if text, err := os.ReadFile(filepath.Join(e.workspace, name)); err != nil || string(text) != "planted" {
			return fmt.Errorf("the workspace's own %s holds %q, %w", name, text, err)
		}
	}
	return nil
}
