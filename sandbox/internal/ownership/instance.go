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
)

// instanceFile holds the random part of an instance id.
const instanceFile = "instance"

// Instance returns the id of a state folder on this machine, and makes it when
// it is first asked for. It is a hash of a random number in the folder and of
// the machine's own id, so that a home folder on a network file system has
// another one on each machine. The folder must exist and belong to the caller
// alone (see [CheckStateDir]).
func Instance(stateDir string) (string, error) {
	if err := CheckStateDir(stateDir); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(stateDir)
	if err != nil {
		return "", fmt.Errorf("open state folder: %w", err)
	}
	defer root.Close()
	seed, err := readSeed(root)
	if errors.Is(err, fs.ErrNotExist) {
		seed, err = makeSeed(root)
	}
	if err != nil {
		return "", fmt.Errorf("read instance id in %s: %w", stateDir, err)
	}
	return instanceID(seed), nil
}

func instanceID(seed string) string {
	sum := sha256.Sum256([]byte(seed + "\x00" + machineID()))
	return hex.EncodeToString(sum[:16])
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

// makeSeed writes a new seed, and takes another process's where that came
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
	defer root.Remove(temp) //nolint:errcheck // a leftover is harmless and seen below
	if err := root.Link(temp, instanceFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readSeed(root)
}

// machineID is what tells this machine from others that share a home folder.
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
