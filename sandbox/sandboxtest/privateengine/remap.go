package privateengine

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const remapVariable = "CAISSON_TEST_REMAPPED"

const remapUser = "nobody"

// NewRemapped starts an engine with userns-remap, whose containers have the
// 65536 IDs from first on. The engine reads the range from /etc/subuid and
// /etc/subgid. To leave the machine's alone, the test runs again in a process
// with a mount namespace that has others, so that the engine sees the test's
// mounts. NewRemapped returns nil in the process that waits for it.
func NewRemapped(t *testing.T, first int, args ...string) *Engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: an engine of its own")
	}
	if os.Getenv(remapVariable) != t.Name() {
		runInMountNamespace(t)
		return nil
	}
	u, err := user.Lookup(remapUser)
	must(t, err)
	group, err := user.LookupGroupId(u.Gid)
	must(t, err)
	ranges := filepath.Join(t.TempDir(), "ranges")
	must(t, os.WriteFile(ranges, fmt.Appendf(nil, "%s:%d:65536\n%s:%d:65536\n", remapUser, first, group.Name, first), 0o644))
	for _, name := range []string{"/etc/subuid", "/etc/subgid"} {
		if err := unix.Mount(ranges, name, "", unix.MS_BIND, ""); err != nil {
			skipOrFail(t, fmt.Sprintf("needs to replace %s: %v", name, err))
		}
	}
	return New(t, append([]string{"--userns-remap", remapUser + ":" + group.Name}, args...)...)
}

// passing matches output lines that name a test, except failures.
var passing = regexp.MustCompile(`(?m)^ *(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|SKIP)).*\n`)

// runInMountNamespace runs the selected parts of the test again in a new mount
// namespace, and fails or skips like it.
func runInMountNamespace(t *testing.T) {
	t.Helper()
	run := "^" + t.Name() + "$"
	if _, parts, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		run += "/" + parts
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run="+run)
	cmd.Env = append(os.Environ(), remapVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", passing.ReplaceAll(out, nil))
	if strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Skip("see above")
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a mount namespace of its own: %v", err)
	}
}
