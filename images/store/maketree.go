package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
	"github.com/caisson-run/caisson/limits/state"
)

// makeTree unpacks f unless its tree with that key is intact. The caller has a
// lease on it. If several processes need the tree, one makes it and the others
// wait.
func (s *Store) makeTree(ctx context.Context, ref images.Reference, f *foundImage, key string) error {
	if s.trees.isIntact(key) {
		return nil
	}
	lock, err := state.TryAcquire(s.locks.lockPath(key + ".make"))
	if errors.Is(err, state.ErrHeld) {
		s.reports.sendReport(Progress{Reference: ref, Phase: PhaseWait})
		lock, err = state.Acquire(ctx, s.locks.lockPath(key+".make"), state.Forever)
	}
	if err != nil {
		return fmt.Errorf("lock image store: %w", err)
	}
	defer func() { _ = lock.Release() }() // the kernel releases it in any case
	if s.trees.isIntact(key) || s.trees.verifyTree(ctx, key) {
		return nil
	}
	if err := s.trees.discardTree(ctx, key); err != nil {
		return err
	}
	err = s.makeTreeOnce(ctx, f, key)
	if errors.Is(err, images.ErrDigest) && s.blobs.dropDamaged(f.record.Blobs) {
		err = s.makeTreeOnce(ctx, f, key) // a blob on disk was damaged; the registry still has it
	}
	if err != nil {
		return fmt.Errorf("image %s: %w", ref, err)
	}
	return nil
}

func (s *Store) makeTreeOnce(ctx context.Context, f *foundImage, key string) error {
	im, err := f.open(ctx)
	if err != nil {
		return err
	}
	temp, remove, err := s.locks.makeTemp(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.unpackTree(ctx, im, temp, key, key == ownedKey(f.record.Tree)), remove())
}

func (s *Store) unpackTree(ctx context.Context, im *reader.Image, temp, key string, owners bool) error {
	dir := filepath.Join(temp, "tree")
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return err
	}
	done, err := layer.Unpack(ctx, root, im.Layers, s.o.Limits, owners, func(l layer.Layer, done int64) {
		s.reports.sendReport(Progress{Reference: im.Ref, Phase: PhaseUnpack, Digest: l.Digest, Done: done, Total: l.Size})
	})
	if err != nil {
		return err
	}
	end, err := layer.Finish(root, layer.FinishOptions{
		Files: accountFiles(s.o.Accounts), Volumes: im.Run.Volumes, WorkingDir: im.Run.WorkingDir, IsReserved: host.IsReserved, Limits: s.o.Limits,
	})
	if err != nil {
		return err
	}
	end.Warnings = append(end.Warnings, describeSkipped(done)...)
	if err := checkTopEntries(root, s.o.Limits.Top); err != nil {
		return err
	}
	entries, bytes, err := measureTree(root)
	if err != nil {
		return err
	}
	data, err := json.Marshal(facts{end, entries, bytes, state.BootID()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "facts.json"), data, 0o600); err != nil {
		return err
	}
	err = os.Rename(dir, s.trees.treePath(key))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, os.ErrExist) {
		return nil // another process made it from the same content
	}
	return err
}

// describeSkipped returns a warning about skipped devices and the like, except
// below /dev, which every sandbox makes itself.
func describeSkipped(done layer.Result) []string {
	var list []string
	for _, p := range done.Skipped {
		if !strings.HasPrefix(p, "/dev/") {
			list = append(list, fmt.Sprintf("%.100q", p))
		}
	}
	if len(list) == 0 {
		return nil
	}
	text := "devices, pipes or sockets of the image were left out: " + strings.Join(list, ", ")
	if done.SkippedMore > 0 {
		text += fmt.Sprintf(" and %d more", done.SkippedMore)
	}
	return []string{text}
}

func checkTopEntries(root string, limit int) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	if len(entries) > limit {
		return fmt.Errorf("%w: %d entries in its root directory: want at most %d", images.ErrRefused, len(entries), limit)
	}
	for _, e := range entries {
		name := e.Name()
		if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%w: invalid name %q in its root directory", images.ErrRefused, name)
		}
	}
	return nil
}
