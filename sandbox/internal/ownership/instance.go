package ownership

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
)

// instanceFile contains the random part of an instance ID.
const instanceFile = "instance"

// Instance returns the ID of a state directory on this machine, and creates it
// at the first call. It is a hash of a random number in the directory and of
// the machine's own ID, so that a home directory on a network file system has a
// different one on each machine. The directory must exist and belong to the
// caller alone (see [state.CheckDir]).
func Instance(stateDir string) (string, error) {
	root, err := state.OpenDir(stateDir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	seed, err := readSeed(root)
	if errors.Is(err, fs.ErrNotExist) {
		seed, err = makeSeed(root)
	}
	if err != nil {
		return "", fmt.Errorf("read instance id in %s: %w", stateDir, err)
	}
	sum := sha256.Sum256([]byte(seed + "\x00" + machineID()))
	return hex.EncodeToString(sum[:16]), nil
}

func readSeed(root *os.Root) (string, error) {
	data, err := root.ReadFile(instanceFile)
	if err != nil {
		return "", err
	}
	seed := strings.TrimSpace(string(data))
	if len(seed) != 32 || !isPlainWord(seed) {
		return "", fmt.Errorf("file %q is damaged: remove it", instanceFile)
	}
	return seed, nil
}

// makeSeed writes a new seed, or returns that of another process that was
// first: link(2) fails on an existing name, and shows whole files only.
func makeSeed(root *os.Root) (string, error) {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	seed := hex.EncodeToString(raw)
	temp := "." + instanceFile + "-" + seed
	if err := root.WriteFile(temp, []byte(seed+"\n"), 0o600); err != nil {
		return "", err
	}
	defer func() { _ = root.Remove(temp) }() // a file that stays does no harm
	if err := root.Link(temp, instanceFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readSeed(root)
}

// machineID returns text that distinguishes this machine from others that share
// a home directory.
func machineID() string {
	for _, name := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if data, err := os.ReadFile(filepath.Clean(name)); err == nil && len(data) > 0 {
			return strings.TrimSpace(string(data))
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
