package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/caisson-run/caisson/sandbox"
)

// guestFile is a copy of the guest's binary that does not change: a rebuild or
// an upgrade while a session runs would otherwise change its PID 1 under it,
// and the hash that is attested would be of another file.
type guestFile struct {
	path   string
	sha256 string
	source fs.FileInfo // of the file that it was copied from
}

// maxGuest bounds what is copied; the guest has about 3 MB.
const maxGuest = 64 << 20

// guestCopy returns the copy of the guest's binary, and makes it if there is
// none of its content yet. A session leaves it for the next one; see
// pruneCache.
func (b *Backend) guestCopy() (guestFile, error) {
	info, err := os.Stat(b.options.GuestPath)
	if err != nil {
		return guestFile{}, fmt.Errorf("guest binary: %w: %w", sandbox.ErrNotFound, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.guest; g.source != nil && sameFile(g.source, info) {
		if _, err := os.Stat(g.path); err == nil {
			used(g.path)
			return g, nil
		}
	}
	g, err := copyGuest(b.options.GuestPath, b.cacheDir())
	if err != nil {
		return guestFile{}, fmt.Errorf("copy guest binary: %w", err)
	}
	g.source = info
	b.guest = g
	return g, nil
}

func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// copyGuest puts the content of source into dir under the name of its hash. A
// file that has the name already is read again: a name proves nothing.
func copyGuest(source, dir string) (guestFile, error) {
	data, err := readBounded(source, maxGuest)
	if err != nil {
		return guestFile{}, err
	}
	sum := sha256.Sum256(data)
	g := guestFile{sha256: hex.EncodeToString(sum[:])}
	g.path = filepath.Join(dir, "guest-"+g.sha256[:32])
	if have, err := readBounded(g.path, maxGuest); err == nil && sha256.Sum256(have) == sum {
		used(g.path)
		return g, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return guestFile{}, err
	}
	// A process that is started while the file is open for writing would hold it
	// until it has executed its own program, and the guest could not be executed
	// so long (ETXTBSY, go.dev/issue/22315).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	temp, err := os.CreateTemp(dir, ".guest-*")
	if err != nil {
		return guestFile{}, err
	}
	defer os.Remove(temp.Name()) //nolint:errcheck // gone after the rename; otherwise a leftover that the error explains
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(0o555), temp.Close())
	if err != nil {
		return guestFile{}, err
	}
	return g, os.Rename(temp.Name(), g.path)
}

func readBounded(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, most)
	}
	return data, err
}
