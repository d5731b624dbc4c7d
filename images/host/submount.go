package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/caisson-run/caisson/images"
)

// addSubmounts adds a bind for every mount below a bound directory, because
// binds are not recursive: a /usr/local on its own filesystem would be empty
// otherwise.
func (b *builder) addSubmounts(ctx context.Context) error {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, bind := range slices.Clone(b.fs.Binds) {
		for _, m := range mounts {
			if !bind.IsDir || !isBelow(m.Mountpoint, bind.Source) {
				continue
			}
			info, err := os.Stat(m.Mountpoint)
			if err != nil {
				continue // unreadable, or covered by a later mount
			}
			p := filepath.Join(bind.Path, strings.TrimPrefix(m.Mountpoint, bind.Source))
			if !slices.ContainsFunc(b.fs.Binds, func(have images.Bind) bool { return have.Path == p }) {
				b.fs.Binds = append(b.fs.Binds, images.Bind{Source: m.Mountpoint, Path: p, IsDir: info.IsDir()})
			}
		}
	}
	return context.Cause(ctx)
}
