package docker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// The folder of the session's own files, below the session's folder, and what
// is in it.
const (
	filesFolder = "guest"
	nonceFile   = "nonce"
	hostsFile   = "hosts"
)

// hostsText is /etc/hosts of a container whose image has none of Caisson's:
// without a network the engine writes none.
const hostsText = "127.0.0.1 localhost caisson\n::1 localhost\n"

func (s *session) noncePath() string { return filepath.Join(s.spec.Dir, filesFolder, nonceFile) }
func (s *session) hostsPath() string { return filepath.Join(s.spec.Dir, filesFolder, hostsFile) }

// writeFiles writes /etc/hosts and a random number, which the guest reads
// through the engine's eyes: an engine that does not share this file system
// can't show it.
func (s *session) writeFiles() error {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("make nonce: %w", err)
	}
	s.nonce = hex.EncodeToString(raw)
	if err := os.Mkdir(filepath.Dir(s.noncePath()), 0o700); err != nil {
		return fmt.Errorf("write nonce: %w", err)
	}
	if err := writeReadable(s.noncePath(), s.nonce); err != nil {
		return fmt.Errorf("write nonce: %w", err)
	}
	if err := writeReadable(s.hostsPath(), hostsText); err != nil {
		return fmt.Errorf("write hosts: %w", err)
	}
	return nil
}

// writeReadable makes a file that everybody may read, whatever the umask is.
func writeReadable(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(0o444), f.Close())
}

// removeFiles removes what writeFiles wrote.
func (s *session) removeFiles() error {
	if len(s.entries) == 0 {
		return nil
	}
	for _, name := range []string{s.noncePath(), s.hostsPath(), filepath.Dir(s.noncePath())} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove session files: %w", err)
		}
	}
	return s.journal.Forget(s.entries[1])
}
