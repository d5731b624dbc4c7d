package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of the scripts whose content an approval covers.
const (
	maxScripts     = 32
	maxScriptBytes = 4 << 20
)

// ProjectCommands returns what an approval of commands covers besides their text:
// the identity of the directory dir that they run in, and the content of workspace
// files that they name as scripts, even if these don't exist. dir is relative to
// the workspace, which view reads. It returns an error if dir goes through a
// symlink or is no directory: then nothing is covered.
func ProjectCommands(ctx context.Context, view workspace.View, dir string, commands []string) (tools.Projection, error) {
	sum := sha256.New()
	if err := identifyDir(ctx, view, dir, sum); err != nil {
		return tools.Projection{}, err
	}
	var shown tools.Projection
	var search scriptSearch
	for _, command := range commands {
		search.searchScript(command, 0)
	}
	slices.Sort(search.names)
	names := slices.Compact(search.names)
	room := int64(maxScriptBytes)
	for i, name := range names {
		at := name
		if !path.IsAbs(name) {
			at = path.Join(dir, name)
		}
		state, used, err := identifyScript(ctx, view, at, room)
		switch {
		case err != nil:
			return tools.Projection{}, err
		case i >= maxScripts || state == "":
			shown.NotCovered = append(shown.NotCovered, name)
			continue
		case search.moved && !path.IsAbs(name):
			shown.NotCovered = append(shown.NotCovered, name+", which another directory may have")
		case used > 0:
			shown.Covers = append(shown.Covers, at)
		}
		room -= used
		fmt.Fprintf(sum, "%q %s\n", at, state)
	}
	slices.Sort(search.gaps)
	shown.NotCovered = append(shown.NotCovered, slices.Compact(search.gaps)...)
	if len(names) > 0 || path.Clean(dir) != "." {
		shown.State = hex.EncodeToString(sum.Sum(nil))
	}
	return shown, nil
}

// identifyDir writes the identity of a directory, whose path may not contain a
// symlink. The workspace itself has none: it can't be replaced, and has another
// inode once a sandbox shows it through an overlay.
func identifyDir(ctx context.Context, view workspace.View, dir string, sum hash.Hash) error {
	rel, err := view.Relative(dir)
	if err != nil {
		return fmt.Errorf("identify directory: %w", err)
	}
	at := "."
	for name := range strings.SplitSeq(rel, "/") {
		at = path.Join(at, name)
		info, err := view.Lstat(ctx, at)
		if err != nil {
			return fmt.Errorf("identify directory: %w", err)
		}
		if info.Type != workspace.TypeDir {
			return fmt.Errorf("identify directory: %w", &workspace.Error{Kind: workspace.KindInvalid, Path: at, Detail: fmt.Sprintf("is a %s, no directory", info.Type)})
		}
		if at != "." {
			fmt.Fprintf(sum, "%q %d\n", at, info.Inode)
		}
	}
	return nil
}

// identifyScript returns the identity of a file's content and its size, or "" if it
// is larger than room. A missing file has an identity too: one that appears later
// was not shown.
func identifyScript(ctx context.Context, view workspace.View, at string, room int64) (state string, used int64, err error) {
	f, err := view.ReadFile(ctx, at, 0, max(room, 1))
	var refused *workspace.Error
	switch {
	case errors.As(err, &refused):
		return string(refused.Kind), 0, nil
	case err != nil:
		err = fmt.Errorf("identify script: %w", err)
	case !f.Truncated:
		state = fmt.Sprintf("%x", sha256.Sum256(f.Data))
		used = max(int64(len(f.Data)), 1)
	}
	return state, used, err
}
