package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/layer"
)

// treeVersion names what unpacking makes of an image: another number makes all
// trees anew.
const treeVersion = "tree 1"

// treeKey names the tree of an image by all that it is made of: the
// configuration names every layer by its content, and every volume.
func (s *Store) treeKey(id string) string {
	facts, err := json.Marshal([]any{treeVersion, id, s.o.Accounts})
	if err != nil {
		panic(err) // strings and numbers
	}
	return digest.Hex(digest.Of(facts))
}

// treePath is the folder of a tree: the root filesystem in root, and facts.json.
func (s *Store) treePath(key string) string { return filepath.Join(s.o.Dir, "trees", key) }

// make unpacks what was found, unless it is there. The caller has a lease on
// the tree. Of many who want the same tree one makes it and the others wait.
func (s *Store) makeTree(ctx context.Context, ref images.Reference, f *foundImage) error {
	key := f.record.Tree
	if s.isIntact(key) {
		return nil
	}
	unlock, ok, err := s.tryLock(key + ".make")
	if err != nil {
		return fmt.Errorf("lock image store: %w", err)
	}
	if !ok {
		s.reports.sendReport(Progress{Reference: ref, Phase: PhaseWait})
		if unlock, err = s.lock(ctx, key+".make", false, pollMake); err != nil {
			return err
		}
	}
	defer unlock()
	if s.isIntact(key) || s.verifyTree(ctx, key) {
		return nil
	}
	if err := s.discardTree(ctx, key); err != nil {
		return err
	}
	err = s.makeTreeOnce(ctx, f, key)
	if errors.Is(err, images.ErrDigest) && s.dropDamaged(f.record.Blobs) {
		err = s.makeTreeOnce(ctx, f, key) // the disk had damaged what the registry has whole
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
	temp, remove, err := s.makeTemp(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.unpackTree(ctx, im, temp, key), remove())
}

// dropDamaged removes those blobs whose content is not theirs any more, and
// says whether there were any.
func (s *Store) dropDamaged(list []string) (any bool) {
	for _, dgst := range list {
		f, err := s.blobs.openBlob(dgst)
		if err != nil {
			continue
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err == nil && digest.OfHash(sum) != dgst && os.Remove(s.blobs.blobPath(dgst)) == nil {
			any = true
		}
	}
	return any
}

// makeIn makes a tree in temp and gives it its name at the end, all at once.
func (s *Store) unpackTree(ctx context.Context, im *image, temp, key string) error {
	dir := filepath.Join(temp, "tree")
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(root, 0o755), os.Chmod(root, 0o755)); err != nil {
		return err
	}
	done, err := layer.Unpack(ctx, root, im.layers, s.o.Limits, func(l layer.Layer, done int64) {
		s.reports.sendReport(Progress{Reference: im.ref, Phase: PhaseUnpack, Digest: l.Digest, Done: done, Total: l.Size})
	})
	if err != nil {
		return err
	}
	end, err := layer.Finish(root, layer.FinishOptions{
		Files: accountFiles(s.o.Accounts), Volumes: im.listVolumes(), IsReserved: host.IsReserved, Limits: s.o.Limits,
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
	data, err := json.Marshal(facts{end, entries, bytes, bootID()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "facts.json"), data, 0o600); err != nil {
		return err
	}
	err = os.Rename(dir, s.treePath(key))
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, os.ErrExist) {
		return nil // another made it, of the same content
	}
	return err
}

// skippedText tells of devices and the like that were left out, but for those
// below /dev, which every sandbox makes its own.
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

// checkTop refuses a root whose entries can't all be mounted.
func checkTopEntries(root string, limit int) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	if len(entries) > limit {
		return fmt.Errorf("%w: %d entries in its root folder, at most %d", images.ErrRefused, len(entries), limit)
	}
	for _, e := range entries {
		name := e.Name()
		if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%w: an entry of its root folder is named %q", images.ErrRefused, name)
		}
	}
	return nil
}

// rootFS describes a tree as a root filesystem.
func (s *Store) describeTree(ref images.Reference, r *record) (*images.RootFS, error) {
	f, err := s.readFacts(r.Tree)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	root, err := host.Tree(ref, filepath.Join(s.treePath(r.Tree), "root"))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	root.Digest, root.Env, root.Volumes, root.Warnings = r.Digest, r.Env, f.Volumes, f.Warnings
	if r.EnvDropped > 0 {
		root.Warnings = append(root.Warnings, fmt.Sprintf("%d entries of the image's environment were left out: they are none, or too many", r.EnvDropped))
	}
	return root, nil
}

// maxEnv bounds what an image can put into every command's environment.
const (
	maxEnv      = 256
	maxEnvBytes = 64 << 10
)

// env is what the configuration declares, as far as it is an environment.
func (im *image) listEnv() (list []string, dropped int) {
	size := 0
	for _, e := range im.parsed.Config.Env {
		name, _, ok := strings.Cut(e, "=")
		if size += len(e); !ok || name == "" || strings.ContainsRune(e, 0) || len(list) == maxEnv || size > maxEnvBytes {
			dropped++
			continue
		}
		list = append(list, e)
	}
	return list, dropped
}

// volumes are the folders that the configuration declares, sorted.
func (im *image) listVolumes() []string {
	var list []string
	for v := range im.parsed.Config.Volumes {
		if path.IsAbs(v) {
			list = append(list, path.Clean(v))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
