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

// cacheTime is how long an entry of the cache is kept after the last start that
// used it: longer than any session that may still have it mounted.
const cacheTime = 7 * 24 * time.Hour

// CacheDir returns the directory that sessions share. Its entries never change
// and are named by hashes: guest-HASH, rootfs-HASH for an image's skeleton,
// [TargetPrefix] for an image that was examined, and fact-HASH of [RecallFact].
func CacheDir(stateDir string) string { return filepath.Join(stateDir, "cache") }

// TargetPrefix begins the names of empty files. Each means that an engine's
// image has no symlink at a mount point.
const TargetPrefix = "target-"

// pruneCache removes entries that no start has used for cacheTime, and
// incomplete ones of killed starts.
func pruneCache(dir string, now time.Time) error {
	return state.Expire(dir, now.Add(-cacheTime), func(name string) bool {
		name = strings.TrimPrefix(strings.TrimPrefix(name, "."), "tmp-") // atomicwriter's
		return slices.ContainsFunc([]string{"guest-", "rootfs-", TargetPrefix, factPrefix}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// factPrefix begins the names of RecallFact's files.
const factPrefix = "fact-"

// factAge is how long a file must be unchanged for a fact about it to be kept:
// a file that changes twice within one tick of the kernel's clock keeps its
// times. Tests set it.
var factAge = 2 * time.Second

// RecallFact returns a fact about a file, such as its hash, that an earlier
// call gave to keep, or "" if there is none or the file is no longer the same:
// by device, inode, size and times, including the inode's change time, which no
// program can set. keep ignores errors: the next start finds the fact out
// again.
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

// fileIdentity identifies the content of a file until a program writes to it or
// replaces it. Times are in nanoseconds since 1970.
type fileIdentity struct {
	device, inode           uint64
	size, modified, changed int64
}

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
