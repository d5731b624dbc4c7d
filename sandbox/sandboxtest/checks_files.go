package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

func fileChecks() []check {
	return []check{
		{name: "write creates and overwrites", run: checkWrite},
		{name: "patch needs one match", run: checkPatch},
		{name: "delete, mkdir and rename", run: checkDeleteMkdirRename},
		{name: "no change leaves the workspace", run: checkApplyEscapes},
		{name: "files belong to the workspace's owner", shared: true, run: checkOwnership},
		{name: "host and sandbox see each other's files", shared: true, run: checkCoherence},
		{name: "an overlay leaves the workspace alone", run: checkOverlay},
		{name: copyCheck, run: checkCopy},
		{name: "the workspace is where it was asked for", run: checkTarget},
	}
}

func checkWrite(ctx context.Context, e *env) error {
	content := []byte("one\x00\xff\n")
	c, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpWrite, Path: "w/a.txt", Content: content})
	if err != nil {
		return err
	}
	if !c.Created || c.Path != "w/a.txt" || c.Bytes != int64(len(content)) || c.HasBefore {
		return fmt.Errorf("first write: %+v", c)
	}
	if err := e.hostHolds(ctx, "w/a.txt", content); err != nil {
		return err
	}
	c, err = e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpWrite, Path: "/workspace/w/a.txt", Content: nil})
	if err != nil {
		return err
	}
	if c.Created || !c.HasBefore || string(c.Before) != string(content) {
		return fmt.Errorf("second write: %+v", c)
	}
	for range 2 {
		if _, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpAppend, Path: "w/a.txt", Content: content}); err != nil {
			return err
		}
	}
	return e.hostHolds(ctx, "w/a.txt", slices.Concat(content, content))
}

func (e *env) hostHolds(ctx context.Context, path string, want []byte) error {
	at, err := e.hostPath(ctx, path)
	if err != nil {
		return err
	}
	got, err := os.ReadFile(at)
	if err != nil {
		return err
	}
	if string(got) != string(want) {
		return fmt.Errorf("%s holds %q, want %q", path, got, want)
	}
	return nil
}

func checkPatch(ctx context.Context, e *env) error {
	write := workspace.Op{Kind: workspace.OpWrite, Path: "p.txt", Content: []byte("a b a\n")}
	if _, err := e.sb.Apply(ctx, write); err != nil {
		return err
	}
	for _, old := range []string{"missing", "a"} {
		_, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpPatch, Path: "p.txt", Old: old, New: "c"})
		if err := wantKind(err, workspace.KindNoMatch); err != nil {
			return fmt.Errorf("patch of %q: %w", old, err)
		}
	}
	if _, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpPatch, Path: "p.txt", Old: "b", New: "B"}); err != nil {
		return err
	}
	c, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpPatch, Path: "p.txt", Old: "a", New: "A", ReplaceAll: true})
	if err != nil {
		return err
	}
	if c.Replacements != 2 {
		return fmt.Errorf("replacements %d, want 2", c.Replacements)
	}
	return e.hostHolds(ctx, "p.txt", []byte("A B A\n"))
}

// checkTarget mounts the workspace elsewhere: commands start there, Apply's
// paths are relative to it, and a repository is protected, except in a copy.
func checkTarget(ctx context.Context, e *env) (err error) {
	other := newEnv(e.target, filepath.Join(e.base, "elsewhere"))
	other.mountPoint = "/srv/deep/app"
	other.plant = func(o *env) error {
		git, sub := filepath.Join(o.workspace, ".git"), filepath.Join(o.workspace, "sub")
		return errors.Join(os.Mkdir(git, 0o777), os.Mkdir(sub, 0o777), os.Chmod(git, 0o777), os.Chmod(sub, 0o777))
	}
	if err := other.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(ctx)) }()
	if at := other.sb.Attestation(); at.WorkspaceTarget != other.mountPoint {
		return fmt.Errorf("attested mount point %q, want %q", at.WorkspaceTarget, other.mountPoint)
	}
	probe := other.mountPoint + "/" + probeName
	for dir, want := range map[string]string{"": other.mountPoint, other.mountPoint + "/sub": other.mountPoint + "/sub"} {
		r, err := other.run(ctx, sandbox.Command{Argv: []string{probe, "cwd"}, Dir: dir})
		if err != nil {
			return err
		}
		env, err := other.run(ctx, sandbox.Command{Argv: []string{probe, "env"}, Dir: dir})
		if err != nil {
			return err
		}
		if r.out != want {
			return fmt.Errorf("cwd with dir %q is %q, want %q", dir, r.out, want)
		}
		if err := containsVariables(env.out, "PWD="+want); err != nil {
			return fmt.Errorf("with dir %q: %w", dir, err)
		}
	}
	for _, dir := range []string{sandbox.WorkspaceDir, "/srv", other.mountPoint + "s"} {
		if _, err := other.run(ctx, sandbox.Command{Argv: []string{probe, "cwd"}, Dir: dir}); !isInvalid(err) {
			return errorf("dir %q: error %w, want ErrInvalid", dir, err)
		}
	}
	if _, err := other.sb.Apply(ctx, writeOp(other.mountPoint+"/by-apply")); err != nil {
		return err
	}
	if _, err := other.sb.Apply(ctx, writeOp(sandbox.WorkspaceDir+"/by-apply")); err == nil {
		return fmt.Errorf("a change below %s was made", sandbox.WorkspaceDir)
	} else if err := wantKind(err, workspace.KindEscape); err != nil {
		return err
	}
	if _, err := other.expectOutput(ctx, "touch", "sub/by-command"); err != nil {
		return err
	}
	if r, err := other.runProbe(ctx, "touch", ".git/config"); err != nil || r.Status.Success() != other.copied {
		return errorf("a command wrote to the repository: %s, %w", r.Status, err)
	}
	return errors.Join(other.hostHolds(ctx, "by-apply", []byte("x")), other.hostHolds(ctx, "sub/by-command", []byte("x")))
}

func wantKind(err error, kinds ...workspace.Kind) error {
	we, ok := errors.AsType[*workspace.Error](err)
	if !ok {
		return errorf("no workspace error: %w", err)
	}
	if !slices.Contains(kinds, we.Kind) {
		return fmt.Errorf("kind %s, want %v: %w", we.Kind, kinds, err)
	}
	return nil
}

func checkDeleteMkdirRename(ctx context.Context, e *env) error {
	for _, op := range []workspace.Op{
		{Kind: workspace.OpMkdir, Path: "d/e"},
		writeOp("d/e/f"),
		{Kind: workspace.OpRename, Path: "d/e/f", To: "d/g"},
	} {
		if _, err := e.sb.Apply(ctx, op); err != nil {
			return fmt.Errorf("%s %s: %w", op.Kind, op.Path, err)
		}
	}
	if err := e.hostHolds(ctx, "d/g", []byte("x")); err != nil {
		return err
	}
	_, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpDelete, Path: "d"})
	if err := wantKind(err, workspace.KindIsDir); err != nil {
		return err
	}
	c, err := e.sb.Apply(ctx, workspace.Op{Kind: workspace.OpDelete, Path: "d", Recursive: true})
	if err != nil {
		return err
	}
	at, err := e.hostPath(ctx, "d")
	if err != nil {
		return err
	}
	if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) || c.Removed < 3 {
		return errorf("after delete: %w, removed %d", err, c.Removed)
	}
	return nil
}

// checkApplyEscapes tries to write outside by name and by symlink. The positive
// control is a command that follows the symlinks outside.
func checkApplyEscapes(ctx context.Context, e *env) error {
	links := map[string]string{"esc": "/", "tmplink": "/tmp", "up": "../"}
	for name, target := range links {
		if _, err := e.expectOutput(ctx, "symlink", target, name); err != nil {
			return err
		}
	}
	if _, err := e.expectOutput(ctx, "stat", "esc/tmp"); err != nil {
		return fmt.Errorf("positive control: %w", err)
	}
	for _, path := range []string{
		"../out", "a/../../out", "/etc/out", "esc/tmp/out", "tmplink/out", "up/out", "esc", "tmplink", "", ".", "a\x00b",
	} {
		_, err := e.sb.Apply(ctx, writeOp(path))
		if err := wantKind(err, workspace.KindEscape, workspace.KindInvalid, workspace.KindIsDir, workspace.KindNotRegular); err != nil {
			return fmt.Errorf("write to %q: %w", path, err)
		}
	}
	if _, err := e.expectOutput(ctx, "absent", "/tmp/out"); err != nil {
		return fmt.Errorf("a write went outside: %w", err)
	}
	return nil
}

func checkOwnership(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "touch", "by-command"); err != nil {
		return err
	}
	if _, err := e.sb.Apply(ctx, writeOp("own/by-apply")); err != nil {
		return err
	}
	want, err := ownerOf(e.workspace)
	if err != nil {
		return err
	}
	for _, name := range []string{"by-command", "own", "own/by-apply"} {
		got, err := ownerOf(filepath.Join(e.workspace, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s belongs to %s, want the workspace's owner %s", name, got, want)
		}
	}
	if at := e.sb.Attestation(); at.WorkspaceOwner != want {
		return fmt.Errorf("attested owner %q, want %q", at.WorkspaceOwner, want)
	}
	return nil
}

func checkCoherence(ctx context.Context, e *env) error {
	path := filepath.Join(e.workspace, "shared.txt")
	for _, text := range []string{"first", "second, longer", "3"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		if err := e.expectAnswer(ctx, text, "read", "shared.txt"); err != nil {
			return err
		}
	}
	if _, err := e.expectOutput(ctx, "touch", "from-inside"); err != nil {
		return err
	}
	_, err := os.Lstat(filepath.Join(e.workspace, "from-inside"))
	return err
}

// checkOverlay starts a sandbox on a copy-on-write view: the view shows at once
// what commands and Apply change, and the workspace does not.
func checkOverlay(ctx context.Context, e *env) (err error) {
	other := newEnv(e.target, filepath.Join(e.base, "overlaid"))
	other.overlay, other.mountPoint = true, "/srv/overlaid"
	if err := other.start(ctx, nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(ctx)) }()
	view := other.sb.View()
	if mode := other.sb.Attestation().WorkspaceMode; view == nil || mode != string(sandbox.ModeOverlay) {
		return fmt.Errorf("view %v, attested mode %q", view, mode)
	}
	if _, err := other.expectOutput(ctx, "touch", "by-command"); err != nil {
		return err
	}
	if _, err := other.sb.Apply(ctx, writeOp("by-apply")); err != nil {
		return err
	}
	if _, err := other.expectOutput(ctx, "read", frozenFile); err != nil {
		return fmt.Errorf("a file of a frozen layer: %w", err)
	}
	for _, name := range []string{"by-command", "by-apply", frozenFile} {
		f, err := view.ReadFile(ctx, other.mountPoint+"/"+name, 0, 100)
		if err != nil || string(f.Data) != "x" {
			return errorf("the view's %s: %q, %w", name, f.Data, err)
		}
		if _, err := os.Lstat(filepath.Join(other.workspace, name)); !errors.Is(err, os.ErrNotExist) {
			return errorf("%s is in the workspace itself: %w", name, err)
		}
	}
	// Control: in bind mode the command's file is there.
	if _, err := e.expectOutput(ctx, "touch", "by-command-in-bind-mode"); err != nil {
		return err
	}
	at, err := e.hostPath(ctx, "by-command-in-bind-mode")
	if err != nil {
		return err
	}
	_, err = os.Lstat(at)
	return err
}

const copyCheck = "a copy comes back as its changes"

// hostPath returns where the host finds a file that commands or Apply changed:
// in the upper layer if the workspace is a copy.
func (e *env) hostPath(ctx context.Context, path string) (string, error) {
	if !e.copied {
		return filepath.Join(e.workspace, path), nil
	}
	if err := e.sb.Collect(ctx); err != nil {
		return "", fmt.Errorf("collect changes: %w", err)
	}
	return filepath.Join(e.layersDir, overlay.UpperDir, path), nil
}

func plantCopied(e *env) error {
	for _, name := range []string{"changed", "gone", "opaque/old", "moved/f", "shut/in", "tolink/f", "kept/f"} {
		path := filepath.Join(e.workspace, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("planted"), 0o644), giveToOwner(path, filepath.Dir(path))); err != nil {
			return err
		}
	}
	return nil
}

var copiedChanges = []string{
	"added by-command", "added elsewhere", "added elsewhere/f", "added " + frozenFile, "added kept/new", "added link", "added odd\nname", "added opaque/new",
	"deleted gone", "deleted moved", "deleted moved/f", "deleted opaque/old", "deleted tolink/f", "mode shut", "modified changed", "type tolink",
}

// checkCopy starts a sandbox on a copy of the workspace. What commands and
// Apply change is collected as changes, and the workspace stays as it is.
func checkCopy(ctx context.Context, e *env) (err error) {
	if err := e.sb.Collect(ctx); !e.copied && !errors.Is(err, sandbox.ErrState) {
		return errorf("collected from a workspace that is no copy: %w, want ErrState", err)
	}
	other := newEnv(e.target, filepath.Join(e.base, "copied"))
	other.copied, other.plant = true, plantCopied
	err = other.start(ctx, nil)
	if !e.target.Copies {
		return other.expectRefused(ctx, err, sandbox.ErrUnsupported, "overlay") // the mode to use
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.close(ctx)) }()
	if mode := other.sb.Attestation().WorkspaceMode; mode != string(sandbox.ModeCopy) {
		return fmt.Errorf("attested mode %q", mode)
	}
	if err := changeCopy(ctx, other); err != nil {
		return err
	}
	for range 2 { // the second finds nothing new
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
		return errorf("the symlink leads to %q, %w", target, err)
	}
	f, err := other.sb.View().ReadFile(ctx, sandbox.WorkspaceDir+"/changed", 0, 100)
	if err != nil || string(f.Data) != "changed" {
		return errorf("the view's file: %q, %w", f.Data, err)
	}
	if _, err := other.sb.Apply(ctx, workspace.Op{Kind: workspace.OpDelete, Path: "by-command"}); err != nil {
		return err
	}
	return checkCollected(ctx, other, copiedChanges[1:])
}

func changeCopy(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "read", frozenFile); err != nil {
		return fmt.Errorf("a file of a frozen layer: %w", err)
	}
	for _, op := range []workspace.Op{
		{Kind: workspace.OpWrite, Path: "changed", Content: []byte("changed")},
		{Kind: workspace.OpDelete, Path: "gone"},
		{Kind: workspace.OpDelete, Path: "opaque", Recursive: true},
		writeOp("opaque/new"),
		{Kind: workspace.OpRename, Path: "moved", To: "elsewhere"},
		{Kind: workspace.OpChmod, Path: "shut", Mode: 0o711},
		{Kind: workspace.OpDelete, Path: "tolink", Recursive: true},
		writeOp("kept/new"),
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

// checkCollected collects the changes and compares them. The workspace must be
// as planted.
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
			return errorf("the workspace's own %s holds %q, %w", name, text, err)
		}
	}
	return nil
}
