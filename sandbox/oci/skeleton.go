package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits/state"
)

// skeletonFor returns the directory with an image's mount points, symlinks and
// synthetic files: the container's root. It is mounted read-only and contains
// nothing of a session, so all containers of one layout share it: making its
// forty entries takes longer than everything else that is written for a start.
// It is named by the hash of its content. If it exists, it is complete, because
// it is renamed last.
func skeletonFor(image *images.RootFS, dir string) (string, error) {
	sum := sha256.New()
	if err := host.WriteSkeletonTar(image, sum); err != nil {
		return "", err
	}
	name := filepath.Join(dir, "rootfs-"+hex.EncodeToString(sum.Sum(nil))[:32])
	if _, err := os.Stat(name); err == nil {
		state.MarkUsed(name)
		return name, nil
	}
	temp, err := os.MkdirTemp(dir, ".rootfs-*")
	if err != nil {
		return "", fmt.Errorf("make image skeleton: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // renamed, unless an error is returned
	// Other uids than its owner's enter the container's root.
	if err := errors.Join(os.Chmod(temp, 0o755), host.WriteSkeleton(image, temp)); err != nil {
		return "", err
	}
	if err := os.Rename(temp, name); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make image skeleton: %w", err)
	}
	return name, nil
}
