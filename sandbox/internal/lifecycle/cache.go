package lifecycle

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits/state"
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

// pruneCache removes what no start has used for cacheTime, and what a start
// that was killed left incomplete.
func pruneCache(dir string, now time.Time) error {
	return state.Expire(dir, now.Add(-cacheTime), func(name string) bool {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "."), "tmp-") // atomicwriter's
		return slices.ContainsFunc([]string{"guest-", "rootfs-", TargetPrefix, factPrefix}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}
