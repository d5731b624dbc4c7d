package oci

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// bundleDir is the bundle's name in the session's folder, as the journal has
// it.
const bundleDir = "bundle"

// bundle is a container's folder on the host. Whoever made it removes it.
type bundle struct {
	dir   string
	nonce string // content of the file by which the guest proves this host
}

// newBundle makes the folder with a fresh nonce. On an error what is there is
// left for the caller's undo.
func newBundle(sessionDir string) (*bundle, error) {
	b := &bundle{dir: filepath.Join(sessionDir, bundleDir)}
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	b.nonce = hex.EncodeToString(raw)
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make bundle: %w", err)
	}
	if err := os.WriteFile(b.noncePath(), []byte(b.nonce+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("make bundle: %w", err)
	}
	return b, nil
}

func (b *bundle) noncePath() string { return filepath.Join(b.dir, "nonce") }
func (b *bundle) pidFile() string   { return filepath.Join(b.dir, "pid") }
func (b *bundle) logPath() string   { return filepath.Join(b.dir, "log.json") }

// write writes config.json.
func (b *bundle) write(s *specs.Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// pid reads what the runtime wrote: the container's first process, or the
// sandbox's for gVisor, on the host.
func (b *bundle) pid() (int, error) {
	data, err := os.ReadFile(b.pidFile())
	if err != nil {
		return 0, fmt.Errorf("read container's pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("read container's pid: %q is none", data)
	}
	return pid, nil
}
