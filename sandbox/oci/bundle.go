package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// bundle is the directory of a container's bundle: that of the session's files.
type bundle struct{ dir string }

func (b bundle) pidFile() string { return filepath.Join(b.dir, "pid") }
func (b bundle) logPath() string { return filepath.Join(b.dir, "log.json") }

// writeConfig writes config.json.
func (b bundle) writeConfig(s *specs.Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

// readPID reads the PID that the runtime wrote: the container's first process,
// or the sandbox's for gVisor, on the host.
func (b bundle) readPID() (int, error) {
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
