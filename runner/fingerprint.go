package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

// freshEntries bounds the siblings that are looked at beside one file.
const freshEntries = 10_000

// fingerprintBytes bounds a file that counts for a fingerprint.
const fingerprintBytes = 1 << 20

// fingerprint tells whether what a git of the host obeys or runs in a repository
// is what it was: where a .git file leads, or the configuration and the hooks of
// a folder, of its submodules and worktrees too. Objects, refs and the index are
// not part of it. It is "" where that could not be read whole.
func fingerprint(ctx context.Context, r workspace.View, repo string) string {
	info, err := r.Lstat(ctx, repo)
	if err != nil {
		return ""
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n", info.Type)
	whole := false
	switch info.Type {
	case workspace.TypeFile:
		whole = addContent(ctx, sum, r, repo)
	case workspace.TypeDir:
		whole = addObeyed(ctx, sum, r, repo)
	case workspace.TypeLink:
		whole = addLink(ctx, sum, r, repo)
	default:
		whole = true
	}
	if !whole {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// addObeyed adds what git obeys in a repository's folder.
func addObeyed(ctx context.Context, sum hash.Hash, r workspace.View, repo string) (whole bool) {
	whole = true
	walked, err := r.Walk(ctx, repo, workspace.WalkOptions{MaxEntries: snapshotEntries}, func(e workspace.Entry) error {
		rest := strings.TrimPrefix(e.Path, repo+"/")
		if e.Type == workspace.TypeDir {
			if !holdsObeyed(rest) {
				return workspace.SkipDir
			}
			return nil
		}
		if !obeyedFile(rest) {
			return nil
		}
		fmt.Fprintf(sum, "%q %s %o %q\n", rest, e.Type, e.Mode, e.Target)
		if e.Type == workspace.TypeFile {
			whole = addContent(ctx, sum, r, e.Path) && whole
		}
		return nil
	})
	return whole && err == nil && !walked.Truncated && len(walked.Incomplete) == 0
}

// holdsObeyed says whether to look into a folder of a repository: hooks, info,
// and the repositories of submodules and worktrees, but not their objects.
func holdsObeyed(rest string) bool {
	names := strings.Split(rest, "/")
	switch names[0] {
	case "hooks", "info":
		return true
	case "modules", "worktrees":
		return !slices.Contains([]string{"objects", "refs", "logs", "lfs"}, names[len(names)-1])
	}
	return false
}

// obeyedFile says whether git obeys or runs a file of a repository.
func obeyedFile(rest string) bool {
	switch path.Base(rest) {
	case "config", "config.worktree", "commondir", "gitdir", "attributes":
		return true
	}
	return slices.Contains(strings.Split(path.Dir(rest), "/"), "hooks")
}

// addContent adds a file's content, and says whether all of it could be read.
func addContent(ctx context.Context, sum hash.Hash, r workspace.View, name string) bool {
	f, err := r.ReadFile(ctx, name, 0, fingerprintBytes)
	if err != nil || f.Truncated {
		return false
	}
	fmt.Fprintf(sum, "%d\n", len(f.Data))
	sum.Write(f.Data)
	return true
}

// addLink adds where a link says that it leads.
func addLink(ctx context.Context, sum hash.Hash, r workspace.View, name string) bool {
	found := false
	_, err := r.Walk(ctx, path.Dir(name), workspace.WalkOptions{MaxDepth: 1, MaxEntries: freshEntries}, func(e workspace.Entry) error {
		if e.Path != name {
			return nil
		}
		found = true
		fmt.Fprintf(sum, "%q\n", e.Target)
		return workspace.SkipAll
	})
	return err == nil && found
}
