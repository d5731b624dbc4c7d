package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/atomicwriter"

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

// factPrefix begins the names of the files of [RecallFact].
const factPrefix = "fact-"

// factAge is how long ago a file must have changed last for a fact about it to be kept.
// A file that changes twice within one tick of the kernel's clock keeps its times.
// Tests set it.
var factAge = 2 * time.Second

// RecallFact returns what an earlier call of keep recorded about a file in a cache
// directory, such as its hash, or "" if the file is not the same as then. A file is the
// same if its device, inode, size and times are. On systems that don't report the time
// of the last change of an inode, which no program can set, nothing is kept. An error
// while it is kept is ignored: the next start finds the fact out again.
func RecallFact(cacheDir, kind, path string) (fact string, keep func(fact string)) {
	id, ok := identifyFile(path)
	if !ok || cacheDir == "" {
		return "", func(string) {}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%+v", kind, path, id))
	name := filepath.Join(cacheDir, factPrefix+hex.EncodeToString(sum[:16]))
	if text, err := os.ReadFile(name); err == nil {
		state.MarkUsed(name)
		fact = string(text)
	}
	return fact, func(fact string) {
		now, ok := identifyFile(path)
		if !ok || now != id || time.Since(time.Unix(0, id.changed)) < factAge {
			return
		}
		_ = atomicwriter.WriteFile(name, []byte(fact), 0o600)
	}
}

// fileIdentity identifies the content of a file as long as no program has
// written to it or replaced it. Times are in nanoseconds since 1970.
type fileIdentity struct {
	device, inode           uint64
	size, modified, changed int64
}

// identifyFile returns the identity of the regular file that path leads to.
func identifyFile(path string) (fileIdentity, bool) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return fileIdentity{}, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileIdentity{}, false
	}
	return fileIdentity{device: st.Dev, inode: st.Ino, size: st.Size, modified: st.Mtim.Nano(), changed: st.Ctim.Nano()}, true
}
