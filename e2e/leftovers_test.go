package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
)

// wantNothingLeft fails the test if processes, mounts, cgroups, containers or
// bundles of a machine's sessions are left. The kernel and the engine have a
// minute to remove them.
func (m *machine) wantNothingLeft(t *testing.T, sessions ...string) {
	t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left behind:\n  %s", strings.Join(left, "\n  "))
		}
	}()
	eventually(t, "nothing is left of "+strings.Join(sessions, ", "), time.Minute, func() bool {
		left = m.leftovers(t, sessions...)
		return len(left) == 0
	})
}

// leftovers lists everything that names one of the sessions or the machine's folders.
func (m *machine) leftovers(t *testing.T, sessions ...string) []string {
	t.Helper()
	names := append([]string{filepath.Dir(m.home)}, sessions...)
	left := processesNaming(t, names...)
	left = append(left, mountsNaming(t, names...)...)
	left = append(left, cgroupsNaming(t, sessions...)...)
	left = append(left, containersOf(t, sessions...)...)
	return append(left, m.bundles(t)...)
}

// processesNaming lists processes whose arguments or cgroups contain one of the
// words, except the test's own process.
func processesNaming(t *testing.T, words ...string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, file := range []string{"cmdline", "cgroup"} {
			text, err := os.ReadFile(filepath.Join("/proc", entry.Name(), file))
			if err == nil && containsAny(text, words) {
				found = append(found, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
				break
			}
		}
	}
	return found
}

// mountsNaming lists mounts of this mount namespace.
func mountsNaming(t *testing.T, words ...string) []string {
	t.Helper()
	text := readFile(t, "/proc/self/mountinfo")
	var found []string
	for line := range bytes.Lines(text) {
		if containsAny(line, words) {
			found = append(found, "mount "+strings.TrimSpace(string(line)))
		}
	}
	return found
}

// cgroupsNaming lists the cgroups of all hierarchies.
func cgroupsNaming(t *testing.T, words ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // a cgroup that goes away while it is read
		}
		if entry.IsDir() && containsAny([]byte(path), words) {
			found = append(found, "cgroup "+path)
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// containersOf lists the engine's containers whose name or labels contain one of
// the words. Without an engine it returns none.
func containersOf(t *testing.T, words ...string) []string {
	t.Helper()
	if probeBackend(t, "docker") != nil {
		return nil
	}
	all, err := engine(t).ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs()})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, c := range all {
		text := fmt.Sprint(c.ID, c.Names, c.Labels)
		if containsAny([]byte(text), words) {
			found = append(found, "container "+text)
		}
	}
	return found
}

// bundles lists the files that a backend keeps in the state folder only while a
// session lives.
func (m *machine) bundles(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"config.json", "*.sock", "rootfs"} {
		matches, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "*", pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, matches...)
	}
	return found
}

// containsAny reports whether a text contains one of the words.
func containsAny(text []byte, words []string) bool {
	for _, word := range words {
		if word != "" && bytes.Contains(text, []byte(word)) {
			return true
		}
	}
	return false
}
