package docker

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/docker/docker/api/types/mount"

	"github.com/caisson-run/caisson/sandbox/internal/harden"
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

// processorFiles are files that say how many processors there are, by the path
// that each is put over. Where the limit of CPU time amounts to all of this
// machine's there are none.
type processorFiles map[string]string

// writeProcessors writes them.
func (s *session) writeProcessors() error {
	p := harden.NewProcessors(s.spec.Resources.MilliCPUs)
	s.processors = processorFiles{}
	for path, text := range map[string]string{harden.OnlinePath: p.Online, harden.CPUInfoPath: p.CPUInfo} {
		if text == "" {
			continue
		}
		s.processors[path] = filepath.Join(s.spec.Dir, filesFolder, "cpu-"+filepath.Base(path))
		if err := writeReadable(s.processors[path], text); err != nil {
			return fmt.Errorf("write number of processors: %w", err)
		}
	}
	return nil
}

// mounts binds each file, which all runtimes allow for these two.
func (f processorFiles) mounts() []mount.Mount {
	var list []mount.Mount
	for _, path := range []string{harden.OnlinePath, harden.CPUInfoPath} {
		if f[path] != "" {
			list = append(list, bind(f[path], path, true))
		}
	}
	return list
}

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
	return s.writeProcessors()
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
	names := append(slices.Collect(maps.Values(s.processors)), s.noncePath(), s.hostsPath(), filepath.Dir(s.noncePath()))
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove session files: %w", err)
		}
	}
	return s.journal.Forget(s.entries[1])
}
