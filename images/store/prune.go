package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/store/internal/reader"
	"github.com/caisson-run/caisson/limits/state"
)

func describeRecord(s *Store, r *record) images.Image {
	im := images.Image{
		Digest: r.Digest, ID: r.ID, Platform: r.Platform, Created: r.Created, Pulled: r.Pulled, Used: r.used, Config: r.Config,
	}
	im.Reference, _ = images.ParseReference(r.Reference) // valid when written
	for _, b := range r.Blobs {
		if info, err := os.Lstat(s.blobs.blobPath(b)); err == nil {
			im.Size += info.Size()
		}
	}
	for _, key := range []string{r.Tree, ownedKey(r.Tree)} {
		if f, err := s.trees.readFacts(key); err == nil {
			im.Unpacked, im.Size, im.Config.Volumes = true, im.Size+f.Bytes, f.Volumes
		}
	}
	return im
}

// List returns the store's images, sorted by reference, without damaged
// records, which Prune removes.
func (s *Store) List(ctx context.Context) ([]images.Image, error) {
	unlock, err := s.locks.lock(ctx, lockStore, false)
	if err != nil {
		return nil, err
	}
	defer unlock()
	records, _, err := s.records.listRecords()
	if err != nil {
		return nil, err
	}
	list := []images.Image{}
	for _, r := range records {
		im := describeRecord(s, r)
		if im.InUse, err = s.isUsed(r); err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		list = append(list, im)
	}
	slices.SortFunc(list, func(a, b images.Image) int {
		return strings.Compare(a.Reference.String()+a.Digest, b.Reference.String()+b.Digest)
	})
	return list, nil
}

// References returns the sorted references of the images in the store in dir.
// It creates nothing and waits for no lock.
func References(dir string) ([]string, error) {
	list, _, err := records{dir: dir}.listRecords()
	var names []string
	for _, r := range list {
		if ref, err := images.ParseReference(r.Reference); err == nil {
			names = append(names, ref.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Remove forgets ref and frees content that no other image needs. It fails with
// [images.ErrNotFound], and with [images.ErrInUse] while a session uses the
// image.
func (s *Store) Remove(ctx context.Context, ref images.Reference) (Pruned, error) {
	names := []string{ref.String()}
	if ref.Scheme == images.SchemeName {
		if reg, err := reader.OpenRegistry(ref, &s.reading); err == nil {
			names = append(names, reg.Name())
		}
	}
	paths := map[string]bool{}
	for _, name := range names {
		for _, from := range []origin{originRegistry, originEngine, originLocal, originBuild} {
			paths[s.records.recordPath(from, name)] = true
		}
	}
	done, err := s.collectGarbage(ctx, func(path string, _ *record) bool { return paths[path] })
	switch {
	case err != nil:
		return done, err
	case len(done.Kept) > 0:
		return done, fmt.Errorf("image %s: %w: end its sessions first", ref, images.ErrInUse)
	case len(done.Images) == 0:
		return done, fmt.Errorf("image %s: %w in the store", ref, images.ErrNotFound)
	}
	return done, nil
}

// Prune forgets images that no session has used for the duration unused, frees
// content that no image needs, and removes what dead processes left. Images in
// use stay; unreferenced layers stay while an image is being fetched.
func (s *Store) Prune(ctx context.Context, unused time.Duration) (Pruned, error) {
	before := time.Now().Add(-unused)
	return s.collectGarbage(ctx, func(_ string, r *record) bool { return !r.used.After(before) })
}

// collectGarbage forgets the records that drop selects, unless their trees are
// leased, and removes unreferenced content.
func (s *Store) collectGarbage(ctx context.Context, drop func(path string, r *record) bool) (Pruned, error) {
	var done Pruned
	var err error
	done.Orphans, done.Bytes, err = s.locks.sweepOrphans(ctx)
	if err != nil {
		return done, fmt.Errorf("prune images: %w", err)
	}
	trash, remove, err := s.detachUnused(ctx, &done, drop)
	if err != nil {
		return done, fmt.Errorf("prune images: %w", err)
	}
	// No other process sees trash, so no lock is needed.
	done.Bytes += diskSize(trash)
	if err := remove(); err != nil {
		return done, fmt.Errorf("prune images: %w", err)
	}
	return done, nil
}

// detachUnused does the quick part under the store lock: it removes records and
// moves unreferenced trees and blobs to a temporary directory.
func (s *Store) detachUnused(ctx context.Context, done *Pruned, drop func(path string, r *record) bool) (trash string, remove func() error, err error) {
	unlock, err := s.locks.lock(ctx, lockStore, false)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	trash, remove, err = s.locks.makeTempLocked()
	if err != nil {
		return "", nil, err
	}
	left, err := s.forgetRecords(done, drop)
	if err == nil {
		err = s.trees.dropTrees(left, trash)
	}
	if err == nil {
		err = s.dropBlobs(left, trash)
	}
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return trash, remove, nil
}

func (s *Store) forgetRecords(done *Pruned, drop func(path string, r *record) bool) (left []*record, err error) {
	records, damaged, err := s.records.listRecords()
	if err != nil {
		return nil, err
	}
	for _, path := range damaged {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		done.Orphans++
	}
	for _, r := range records {
		path := r.path
		if !drop(path, r) {
			left = append(left, r)
			continue
		}
		used, err := s.isUsed(r)
		if err != nil {
			return nil, err
		}
		im := describeRecord(s, r)
		if im.InUse = used; used {
			done.Kept, left = append(done.Kept, im), append(left, r)
			continue
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		done.Images = append(done.Images, im)
	}
	return left, nil
}

// dropBlobs moves unreferenced blobs to trash, except while an image is being
// fetched, whose record may not be written yet.
func (s *Store) dropBlobs(left []*record, trash string) error {
	lock, err := state.TryAcquire(s.locks.lockPath(lockFetch))
	if errors.Is(err, state.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }() // the kernel releases it in any case
	named := map[string]bool{}
	for _, r := range left {
		for _, b := range r.Blobs {
			named[digest.Hex(b)] = true
		}
	}
	dir := filepath.Join(s.o.Dir, "blobs", "sha256")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if named[e.Name()] {
			continue
		}
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(trash, "blob-"+e.Name())); err != nil {
			return err
		}
	}
	return nil
}
