package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// cacheTime is how long a copy of the guest or a skeleton is kept after the
// last start that used it: longer than any session that may still have it
// mounted.
const cacheTime = 7 * 24 * time.Hour

// cacheDir holds what sessions share and never change, named by its hash.
func (b *Backend) cacheDir() string { return filepath.Join(b.options.StateDir, "oci") }

// used notes that an entry of the cache is used now. Where that fails it is
// made again one day.
func used(name string) {
	now := time.Now()
	os.Chtimes(name, now, now) //nolint:errcheck // see above
}

// pruneCache removes what no start has used for cacheTime, and what a start
// that was killed left half made.
func pruneCache(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := strings.TrimPrefix(e.Name(), ".")
		if !strings.HasPrefix(name, "guest-") && !strings.HasPrefix(name, "rootfs-") {
			continue
		}
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > cacheTime {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
