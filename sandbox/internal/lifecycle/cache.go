package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// cacheTime is the time for which an entry of the cache is kept after the last
// start that used it: longer than any session that may still have it mounted.
const cacheTime = 7 * 24 * time.Hour

// CacheDir returns the directory of what sessions share. Its entries never
// change and are named by their hashes: guest-HASH, rootfs-HASH for an image's
// skeleton, [TargetPrefix] with a hash for an image that was examined, and fact-HASH
// of [RecallFact].
func CacheDir(stateDir string) string { return filepath.Join(stateDir, "cache") }

// TargetPrefix begins the names of empty files, one for each image of an engine and
// mount point that was found to be free of symlinks.
const TargetPrefix = "target-"

// markTime is how exactly the last use of an entry is recorded. To record it changes the
// identity of the file; see [RecallFact].
const markTime = time.Hour

// MarkUsed records that an entry of the cache is used now.
func MarkUsed(name string) {
	now := time.Now()
	if info, err := os.Stat(name); err == nil && now.Sub(info.ModTime()).Abs() < markTime {
		return
	}
	_ = os.Chtimes(name, now, now) // an entry that is pruned too early is made again
}

// pruneCache removes what no start has used for cacheTime, and what a start
// that was killed left incomplete.
func pruneCache(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := strings.TrimPrefix(strings.TrimPrefix(e.Name(), "."), "tmp-") // atomicwriter's
		if !strings.HasPrefix(name, "guest-") && !strings.HasPrefix(name, "rootfs-") && !strings.HasPrefix(name, TargetPrefix) && !strings.HasPrefix(name, factPrefix) {
			continue
		}
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > cacheTime {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
