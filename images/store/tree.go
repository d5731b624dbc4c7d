package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/limits/state"
)

// treeVersion is part of every tree's key. Increment it if unpacking changes,
// so that all trees are made again.
const treeVersion = "tree 2"

type trees struct {
	dir      string
	accounts []images.Account // in every tree
	locks    locks
}

// treeKey returns the key of an image's tree. It depends on all that the tree
// does: the configuration names every layer by content, and every volume.
func (t trees) treeKey(id string) string {
	facts, err := json.Marshal([]any{treeVersion, id, t.accounts})
	if err != nil {
		panic(err) // strings and numbers
	}
	return digest.Hex(digest.Of(facts))
}

// ownedKey returns the key of the tree with the image's owners and modes, given
// the other tree's key.
func ownedKey(key string) string { return digest.Hex(digest.Of([]byte("owners " + key))) }

func (s *Store) isUsed(r *record) (bool, error) {
	used, err := s.locks.isLeased(r.Tree)
	if used || err != nil {
		return used, err
	}
	return s.locks.isLeased(ownedKey(r.Tree))
}

// treePath returns a tree's directory, which has the root filesystem in root,
// and facts.json.
func (t trees) treePath(key string) string { return filepath.Join(t.dir, "trees", key) }

type facts struct {
	layer.FinishResult
	// Entries and Bytes are the tree's, by measureTree.
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Boot is the boot in which the tree was made or last verified; see
	// isIntact.
	Boot string `json:"boot"`
}

func (t trees) readFacts(key string) (facts, error) {
	var f facts
	data, err := os.ReadFile(filepath.Join(t.treePath(key), "facts.json"))
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%w: read facts of tree %s: %w", images.ErrInvalid, key, err)
	}
	return f, nil
}

// isIntact reports whether a tree exists and is complete. A new tree is not
// synced to disk, which could take minutes on a machine that is busy writing
// (measured). Until the next boot, reads come from the same page cache and are
// complete. After a boot, which may follow a power cut, a file whose data never
// reached the disk is shorter (ext4, xfs and btrfs set the size with the data),
// so verifyTree finds it.
func (t trees) isIntact(key string) bool {
	f, err := t.readFacts(key)
	return err == nil && f.Boot == state.BootID()
}

// verifyTree reports whether a tree from an earlier boot is complete. The
// caller holds its make lock.
func (t trees) verifyTree(ctx context.Context, key string) bool {
	f, err := t.readFacts(key)
	if err != nil {
		return false
	}
	entries, size, err := measureTree(filepath.Join(t.treePath(key), "root"))
	if err != nil || entries != f.Entries || size != f.Bytes {
		return false
	}
	f.Boot = state.BootID()
	data, err := json.Marshal(f)
	if err != nil {
		return false
	}
	temp, remove, err := t.locks.makeTemp(ctx)
	if err != nil {
		return false
	}
	err = placeFile(temp, filepath.Join(t.treePath(key), "facts.json"), bytes.NewReader(data), nil)
	return errors.Join(err, remove()) == nil
}

// discardTree removes an incomplete tree. The caller holds its make lock and a
// lease. No session uses it, since it was not handed out in this boot.
func (t trees) discardTree(ctx context.Context, key string) error {
	temp, remove, err := t.locks.makeTemp(ctx)
	if err != nil {
		return err
	}
	err = os.Rename(t.treePath(key), filepath.Join(temp, "tree"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, remove())
}

func measureTree(dir string) (entries int, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		entries++
		if e.Type().IsRegular() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			bytes += info.Size()
		}
		return nil
	})
	return entries, bytes, err
}

// dropTrees moves unreferenced trees without a lease to trash and removes the
// locks of missing trees.
func (t trees) dropTrees(left []*record, trash string) error {
	entries, err := os.ReadDir(filepath.Join(t.dir, "trees"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		key := e.Name()
		if slices.ContainsFunc(left, func(r *record) bool { return r.Tree == key || ownedKey(r.Tree) == key }) {
			continue
		}
		if used, err := t.locks.isLeased(key); err != nil || used {
			if err != nil {
				return err
			}
			continue
		}
		if err := os.Rename(t.treePath(key), filepath.Join(trash, key)); err != nil {
			return err
		}
	}
	return t.dropLocks()
}

func (t trees) dropLocks() error {
	entries, err := os.ReadDir(filepath.Join(t.dir, "locks"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		key, _, ok := strings.Cut(e.Name(), ".")
		if !ok || pathExists(t.treePath(key)) {
			continue
		}
		lock, err := state.TryAcquire(t.locks.lockPath(e.Name()))
		if err == nil {
			err = lock.Remove()
		}
		if err != nil && !errors.Is(err, state.ErrHeld) {
			return err
		}
	}
	return nil
}

func (t trees) describeTree(ref images.Reference, r *record, key string) (*images.RootFS, error) {
	f, err := t.readFacts(key)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	root, err := host.Tree(ref, filepath.Join(t.treePath(key), "root"))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	root.Digest, root.Config, root.Warnings = r.Digest, r.Config, f.Warnings
	root.Config.Volumes = f.Volumes
	for _, a := range t.accounts {
		root.Added = append(root.Added, a.Name)
	}
	if r.EnvDropped > 0 {
		root.Warnings = append(root.Warnings, fmt.Sprintf("%d entries of the image's environment were left out: they are invalid or too many", r.EnvDropped))
	}
	return root, nil
}
