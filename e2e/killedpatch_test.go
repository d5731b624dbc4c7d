package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// killedPatchFiles is the number of files that each part of longPatch changes.
const killedPatchFiles = 60

// longPatch fills the workspace and returns a patch that takes a while: it changes
// files, makes some, moves one and deletes some. Old and updated are the
// workspace before it and after it.
func longPatch(t *testing.T, m *machine) (patch string, old, updated map[string]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("*** Begin Patch\n")
	old, updated = map[string]string{}, map[string]string{}
	const mode = "-rw-r--r-- "
	for i := range killedPatchFiles {
		name := fmt.Sprintf("changed%03d", i)
		m.write(t, name, "old\n")
		fmt.Fprintf(&b, "*** Update File: %s\n@@\n-old\n+new\n", name)
		old[name], updated[name] = mode+"old\n", mode+"new\n"
		name = fmt.Sprintf("added%03d", i)
		fmt.Fprintf(&b, "*** Add File: %s\n+new\n", name)
		updated[name] = mode + "new\n"
		name = fmt.Sprintf("deleted%03d", i)
		m.write(t, name, "old\n")
		fmt.Fprintf(&b, "*** Delete File: %s\n", name)
		old[name] = mode + "old\n"
	}
	m.write(t, "run.sh", "old\n")
	if err := os.Chmod(filepath.Join(m.workspace, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.WriteString("*** Update File: run.sh\n*** Move to: moved.sh\n@@\n-old\n+new\n*** End Patch")
	old["run.sh"], updated["moved.sh"] = "-rwxr-xr-x old\n", "-rwxr-xr-x new\n"
	return b.String(), old, updated
}

// patchedTree is the workspace without the placeholder that a session which was
// killed leaves for the next one to remove.
func patchedTree(t *testing.T, m *machine) map[string]string {
	t.Helper()
	tree := treeOf(t, m.workspace)
	delete(tree, ".git")
	return tree
}

// eachOldOrNew fails the test where a file is neither, and reports whether some are
// old and others new. Temporary files don't count.
func eachOldOrNew(t *testing.T, now, old, updated map[string]string) (mixed bool) {
	t.Helper()
	for name, got := range now {
		moved := name == "moved.sh" && got == old["run.sh"]
		if got != old[name] && got != updated[name] && !moved && !strings.HasSuffix(name, ".tmp") {
			t.Errorf("%s is neither old nor new: %q", name, got)
		}
	}
	return cmp.Diff(old, now) != "" && cmp.Diff(updated, now) != ""
}

// TestKilledPatchIsReported kills caisson, and the guest, with SIGKILL in the
// middle of a patch. Then each file is old or new, and stays so. The next session
// warns of the patch, once, or the same one does that has lost its guest. The
// control is a kill that leaves some files old and some new.
func TestKilledPatchIsReported(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		t.Run("caisson", func(t *testing.T) {
			untilMidway(t, func(t *testing.T) bool {
				m := newMachine(t)
				patch, old, updated := longPatch(t, m)
				run := m.patching(t, backend, patch)
				run.signal(t, os.Kill)
				run.wait(t, time.Minute)
				session := readRecords(t, run.stdout.String())[0].Session
				eventually(t, "the guest ends with its caisson", time.Minute, func() bool {
					return len(containersOf(t, session)) == 0 && len(processesNaming(t, session)) == 0
				})
				left := patchedTree(t, m)
				mixed := eachOldOrNew(t, left, old, updated)
				out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t)...)...)
				out.want(t, 0)
				if diff := cmp.Diff(left, patchedTree(t, m)); diff != "" {
					t.Errorf("the next session changed files (-before +after):\n%s", diff)
				}
				if said := warned(t, out.records); mixed && !strings.Contains(said, "apply_patch of session "+session+" was cut off while changing added000, ") {
					t.Errorf("the next session's warnings:\n%s", said)
				}
				again := m.runTask(t, append([]string{"--backend", backend}, m.playing(t)...)...)
				if said := warned(t, again.records); strings.Contains(said, "apply_patch") {
					t.Errorf("reported again:\n%s", said)
				}
				m.wantNothingLeft(t, session, out.records[0].Session, again.records[0].Session)
				return mixed
			})
		})
		t.Run("guest", func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("needs root: the guest is killed from outside")
			}
			untilMidway(t, func(t *testing.T) bool {
				m := newMachine(t)
				patch, old, updated := longPatch(t, m)
				run := m.patching(t, backend, patch)
				if !(&chaos{}).strikeInside(faultGuest, backend, run.stdout.String()) {
					t.Log("the guest was gone before it could be killed")
				}
				out := run.wait(t, deadline)
				out.records = readRecords(t, out.stdout)
				if out.status != 0 && out.status != 45 {
					t.Errorf("exit status %d\n%s", out.status, out.stderr)
				}
				mixed := eachOldOrNew(t, patchedTree(t, m), old, updated)
				said := strings.Contains(warned(t, out.records), "apply_patch was cut off while changing added000, ")
				if mixed && !said {
					t.Errorf("the session's warnings:\n%s", warned(t, out.records))
				}
				m.wantNothingLeft(t, out.records[0].Session)
				return mixed && said
			})
		})
	})
}

// TestKilledPatchInAnOverlay: the workspace is as it was, and caisson diff and
// caisson apply report the patch.
func TestKilledPatchInAnOverlay(t *testing.T) {
	t.Parallel()
	backend := anyBackend(t)
	untilMidway(t, func(t *testing.T) bool {
		m := newMachine(t)
		patch, old, _ := longPatch(t, m)
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t, []scriptCall{call("apply_patch", map[string]any{"patch": patch})})...)...)...)
		run.until(t, "the patch has begun", func() bool {
			found, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", "overlay", "upper", "changed*"))
			return err == nil && len(found) > 0
		})
		run.signal(t, os.Kill)
		run.wait(t, time.Minute)
		if diff := cmp.Diff(old, patchedTree(t, m)); diff != "" {
			t.Errorf("the workspace changed (-want +got):\n%s", diff)
		}
		session := readRecords(t, run.stdout.String())[0].Session
		if _, err := os.Stat(filepath.Join(m.stateDir(), "sessions", session, "patch.json")); err != nil {
			return false
		}
		for _, command := range []string{"diff", "apply"} {
			args := []string{command, session}
			if command == "apply" {
				args = append(args, "--dry-run")
			}
			if out := m.run(t, args...); !strings.Contains(out.stderr, "apply_patch was cut off while changing ") {
				t.Errorf("%s does not report it:\n%s", command, out.stderr)
			}
		}
		return true
	})
}

// untilMidway repeats a test until the kill came in the middle of the patch.
func untilMidway(t *testing.T, test func(t *testing.T) (midway bool)) {
	t.Helper()
	for range 10 {
		if test(t) || t.Failed() {
			return
		}
	}
	t.Error("control: no kill came in the middle of the patch")
}

// patching starts a session that makes the patch, and waits until the patch has
// changed something.
func (m *machine) patching(t *testing.T, backend, patch string) *running {
	t.Helper()
	run := m.start(t, taskArgs(m, append([]string{"--backend", backend}, m.playing(t, []scriptCall{call("apply_patch", map[string]any{"patch": patch})})...)...)...)
	run.until(t, "the patch has begun", func() bool {
		text, err := os.ReadFile(filepath.Join(m.workspace, "changed000"))
		return err == nil && string(text) == "new\n"
	})
	return run
}

// warned returns the texts of all warnings.
func warned(t *testing.T, all records) string {
	t.Helper()
	var b strings.Builder
	for _, r := range all.of("warning") {
		b.WriteString(decode[struct{ Message string }](t, r).Message + "\n")
	}
	return b.String()
}
