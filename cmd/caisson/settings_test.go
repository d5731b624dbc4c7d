package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
)

// TestResourcesAreSharedByServedSessions: the machine's size counts only for a process
// with one session, and only without configuration.
func TestResourcesAreSharedByServedSessions(t *testing.T) {
	dir := t.TempDir()
	a := &app{environ: environ{"HOME=" + dir}}
	a.deps.requirements = filepath.Join(dir, "none")
	a.deps.resources = func() limits.Resources { return limits.ResourcesAlone(12<<30, 7) }
	memory := func(load func(*app, config.File, string) (*settings, error)) [3]int64 {
		t.Helper()
		s, err := load(a, config.File{}, "")
		must(t, err)
		r, err := s.conf.SandboxResources()
		must(t, err)
		return [3]int64{r.MemoryBytes, r.MilliCPUs, r.TmpBytes}
	}
	if got := memory(loadSettings); got != [3]int64{6 << 30, 7000, 3 << 30} {
		t.Errorf("one session has %d", got)
	}
	for name, load := range map[string]func(*app, config.File, string) (*settings, error){"server": loadServerSettings, "client": loadClientSettings} {
		if got := memory(load); got != [3]int64{2 << 30, 2000, 512 << 20} {
			t.Errorf("%s: a session has %d", name, got)
		}
	}
	path := filepath.Join(dir, "config.yaml")
	must(t, os.WriteFile(path, []byte("resources: {memory: 1GiB}\n"), 0o600))
	a.environ = append(a.environ, configEnv+"="+path)
	if got := memory(loadSettings); got != [3]int64{1 << 30, 7000, 512 << 20} {
		t.Errorf("with 1 GiB configured, one session has %d", got)
	}
	must(t, os.WriteFile(path, []byte("resources: {memory: 1GiB, tmp: 1GiB}\n"), 0o600))
	if got := memory(loadSettings); got != [3]int64{1 << 30, 7000, 1 << 30} {
		t.Errorf("with 1 GiB of /tmp configured, one session has %d", got)
	}
}

// TestSettingsOfAReplacedWorkspace: settings read for one directory, including secrets
// of env_from, don't apply to another one of the same name.
func TestSettingsOfAReplacedWorkspace(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	s := &settings{}
	check := func(workspace string) error {
		return s.checkSettingsOf(&runner.Workspace{Path: filepath.Join(dir, workspace)})
	}
	if err := check("one"); err != nil {
		t.Errorf("without settings of one workspace: %v", err)
	}
	s.workspaceDir = resolvePath(filepath.Join(dir, "one"))
	if err := check("one"); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"two", "gone"} {
		if err := check(other); err == nil {
			t.Errorf("%s has the settings of one", other)
		}
	}
}

func TestMachineMemory(t *testing.T) {
	memory := machineMemory()
	if memory < 64<<20 || memory > 1<<50 {
		t.Errorf("this machine has %d bytes", memory)
	}
}
