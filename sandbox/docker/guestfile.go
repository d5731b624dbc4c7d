package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
)

// guestFile is the guest's binary: its absolute path without links, and what
// is in it.
type guestFile struct {
	path, sha256 string
	info         os.FileInfo
}

// guestFile checks the guest's binary and hashes it, once as long as it does
// not change.
func (b *Backend) guestFile() (guestFile, error) {
	path, err := filepath.Abs(b.options.GuestPath)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return guestFile{}, fmt.Errorf("find the guest: %w: %w: run make build, or configure where caisson-guest is", sandbox.ErrNotFound, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return guestFile{}, fmt.Errorf("find the guest: %w: %w", sandbox.ErrUnavailable, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return guestFile{}, fmt.Errorf("find the guest: %w: %w", sandbox.ErrUnavailable, err)
	}
	// The guest has no DAC_OVERRIDE, and a command is started from it too.
	const usable = os.FileMode(0o005)
	if !info.Mode().IsRegular() || info.Mode().Perm()&usable != usable && filepath.Separator == '/' {
		return guestFile{}, fmt.Errorf("find the guest: %w: %s has mode %v: others must be able to read and execute it (chmod 755)",
			sandbox.ErrUnavailable, path, info.Mode())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.guest; known.path == path && os.SameFile(known.info, info) && known.info.Size() == info.Size() && known.info.ModTime().Equal(info.ModTime()) {
		return known, nil
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return guestFile{}, fmt.Errorf("read the guest: %w: %w", sandbox.ErrUnavailable, err)
	}
	b.guest = guestFile{path: path, sha256: hex.EncodeToString(hash.Sum(nil)), info: info}
	return b.guest, nil
}
