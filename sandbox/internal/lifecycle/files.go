package lifecycle

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
)

// The directory of a session's files, below the session's directory, and the
// file with the nonce.
const (
	filesDir  = "container"
	nonceFile = "nonce"
)

// HostsFile is mounted over an image's own /etc/hosts.
const HostsFile = "hosts"

// Files is the directory of one container's files.
type Files struct {
	dir        string
	nonce      string            // proves that the guest sees this file system
	processors map[string]string // sources by their paths in the container
}

// newFiles makes the directory and a random nonce. After an error, Destroy
// removes it.
func newFiles(sessionDir string) (*Files, error) {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	f := &Files{dir: filepath.Join(sessionDir, filesDir), nonce: hex.EncodeToString(raw), processors: map[string]string{}}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make session files: %w", err)
	}
	return f, errors.Join(f.Write(nonceFile, f.nonce), f.Write(HostsFile, images.Hosts))
}

// writeProcessors writes the files that show the number of processors that a
// limit of CPU time amounts to. It writes none if that is all processors.
func (f *Files) writeProcessors(milliCPUs int64) error {
	p := harden.NewProcessors(milliCPUs)
	for path, text := range map[string]string{harden.OnlinePath: p.Online, harden.CPUInfoPath: p.CPUInfo} {
		if text == "" {
			continue
		}
		name := "cpu-" + filepath.Base(path)
		if err := f.Write(name, text); err != nil {
			return err
		}
		f.processors[path] = f.Path(name)
	}
	return nil
}

// Dir returns the directory's path.
func (f *Files) Dir() string { return f.dir }

// Path returns a file's path.
func (f *Files) Path(name string) string { return filepath.Join(f.dir, name) }

// Write makes a file that every user may read, whatever the umask is.
func (f *Files) Write(name, text string) error {
	file, err := os.OpenFile(f.Path(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("make session files: %w", err)
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Chmod(0o444), file.Close()); err != nil {
		return fmt.Errorf("make session files: %w", err)
	}
	return nil
}
