package batch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// userDir names the variable for the directory with the programs of [TestOrdinaryUser].
const userDir = "CAISSON_BATCH_USER"

// TestOrdinaryUser repeats tests of trials as an ordinary user, if this is root.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user; the other tests are an ordinary user's here")
	}
	t.Parallel()
	const uid = 1000
	for backend, tests := range map[string][]string{"gvisor": {"TestDeepChanges"}, "runc": {"TestDeepChanges", "TestClosedDirectories", "TestHostileAgents"}} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "caisson-user-") //nolint:usetesting // the directory above t.TempDir is closed to others
			must(t, err)
			t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
			must(t, os.Chown(dir, uid, uid))
			programs := map[string]string{"test": os.Args[0], "caisson-guest": builtProgram(t, "caisson-guest")}
			if backend == "gvisor" {
				programs["runsc"] = builtProgram(t, "runsc")
			}
			for name, from := range programs {
				if out, err := exec.Command("cp", from, filepath.Join(dir, name)).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.v", fmt.Sprintf("-test.run=^(%s)$/^%s$", strings.Join(tests, "|"), backend))
			cmd.Dir = dir
			cmd.Env = []string{userDir + "=" + dir, "TMPDIR=" + dir, "HOME=" + dir, "PATH=" + os.Getenv("PATH")}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			out, err := cmd.CombinedOutput()
			for _, name := range tests {
				if err == nil && !strings.Contains(string(out), "--- PASS: "+name+"/"+backend) {
					err = fmt.Errorf("%s did not pass", name)
				}
			}
			if err != nil {
				t.Errorf("as uid %d: %v\n%s", uid, err, out)
			}
		})
	}
}
