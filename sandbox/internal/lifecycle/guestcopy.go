package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moby/sys/atomicwriter"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// GuestCopy is an unchanging copy of the guest's binary. A rebuild or an
// upgrade during a session would otherwise change the session's PID 1, and the
// attested hash would be another file's.
type GuestCopy struct {
	Path   string
	SHA256 string
}

// maxGuest bounds the binary's size; the guest has about 3 MB.
const maxGuest = 64 << 20

// CheckGuest returns sandbox.ErrNotFound if there is no guest binary.
func (b *Backend) CheckGuest() error {
	if _, err := os.Stat(b.GuestPath); err != nil {
		return fmt.Errorf("guest binary: %w: build it (make build) and keep it beside caisson: %w", sandbox.ErrNotFound, err)
	}
	return nil
}

// copyGuest returns a copy of the guest's binary, which it makes if needed.
// Copies stay for further sessions; see pruneCache.
func (b *Backend) copyGuest() (GuestCopy, error) {
	if err := b.CheckGuest(); err != nil {
		return GuestCopy{}, err
	}
	g, err := copyGuest(b.GuestPath, CacheDir(b.StateDir))
	if err == nil {
		err = programs.CheckExec(g.Path)
	}
	if err != nil {
		return GuestCopy{}, fmt.Errorf("copy guest binary: %w: %w", sandbox.ErrUnavailable, err)
	}
	return g, nil
}

// copyGuest copies source to a file in dir that is named by its hash, unless
// that exists with the right content.
func copyGuest(source, dir string) (GuestCopy, error) {
	sum, err := recallHash(dir, source)
	if err != nil {
		return GuestCopy{}, err
	}
	g := nameGuestCopy(dir, sum)
	if have, err := recallHash(dir, g.Path); err == nil && have == sum {
		state.MarkUsed(g.Path)
		return g, nil
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return GuestCopy{}, err
	}
	g = nameGuestCopy(dir, sha256.Sum256(data)) // the source may have changed
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return GuestCopy{}, err
	}
	// A process forked while the file is open for writing would hold it open
	// until it executes its own program. Until then the guest could not be
	// executed (ETXTBSY, go.dev/issue/22315).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return g, atomicwriter.WriteFile(g.Path, data, 0o555)
}

func nameGuestCopy(dir string, sum [sha256.Size]byte) GuestCopy {
	name := hex.EncodeToString(sum[:])
	return GuestCopy{Path: filepath.Join(dir, "guest-"+name[:32]), SHA256: name}
}

const hashFact = "sha256"

// recallHash is hashGuest, cached in dir. Hashing the guest and its copy takes
// 6 ms.
func recallHash(dir, name string) (sum [sha256.Size]byte, err error) {
	known, keep := RecallFact(dir, hashFact, name)
	if raw, err := hex.DecodeString(known); err == nil && len(raw) == sha256.Size {
		return [sha256.Size]byte(raw), nil
	}
	if sum, err = hashGuest(name); err == nil {
		keep(hex.EncodeToString(sum[:]))
	}
	return sum, err
}

// hashGuest returns the hash of a file of at most maxGuest bytes.
func hashGuest(name string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(name)
	if err != nil {
		return sum, err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, maxGuest+1))
	if err == nil && n > maxGuest {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxGuest)
	}
	h.Sum(sum[:0])
	return sum, err
}
