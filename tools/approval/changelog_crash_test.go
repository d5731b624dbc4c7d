package approval

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// changeCrashEnv makes this test's program the one that is killed: it names the
// folder; changeEarlyEnv lets it acknowledge before it changes anything.
const (
	changeCrashEnv = "CAISSON_TEST_CHANGES_DIR"
	changeEarlyEnv = "CAISSON_TEST_CHANGES_EARLY"
)

// TestChangesSurviveAKill kills a program that approves phrases as fast as it
// can: each acknowledged approval is stored, each stored approval is in the log, the
// log can be read whole, and at most one logged change was not made. The control
// acknowledges too early, and the same check finds what is missing.
func TestChangesSurviveAKill(t *testing.T) {
	if dir := os.Getenv(changeCrashEnv); dir != "" {
		changeUntilKilled(dir, os.Getenv(changeEarlyEnv) != "")
		return
	}
	for after := range 12 {
		dir := t.TempDir()
		killedChanger(t, dir, 1+after)
		if missing := missingChanges(t, dir, 1+after); missing != "" {
			t.Fatal(missing)
		}
	}
	missing := ""
	for range 30 {
		dir := t.TempDir()
		killedChanger(t, dir, 1, changeEarlyEnv+"=1")
		if missing = missingChanges(t, dir, 1); missing != "" {
			break
		}
	}
	if missing == "" {
		t.Error("one that acknowledges before it changes anything misses nothing: the test sees no loss")
	}
}

// TestFullDisk: a line that is written in part is taken back, and its change is
// not made.
func TestFullDisk(t *testing.T) {
	g, path := testGrants(t)
	// The limit holds for all files of this process: what the testing package writes
	// meanwhile must stay below it.
	long := g.As(Author{By: strings.Repeat("x", 8<<20)})
	if err := long.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: "a", Decision: DecisionAllow}); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(filepath.Dir(path), ChangeLogFile)
	before, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(len(before)) + 10, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	failed := g.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: "b", Decision: DecisionAllow})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(log)
	if !errors.Is(failed, unix.EFBIG) || !strings.Contains(failed.Error(), "write change log") || err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v; the log has %d bytes, before it had %d, %v", failed, len(after), len(before), err)
	}
	if list, err := g.List(); len(list) != 1 || err != nil {
		t.Errorf("approved are %v, %v", list, err)
	}
}

// changeUntilKilled has a line of standard output for each phrase that is
// approved, or, early, that will be.
func changeUntilKilled(dir string, early bool) {
	grants := NewGrants(filepath.Join(dir, "approvals.json"))
	for i := 0; ; i++ {
		if early {
			fmt.Println(i)
		}
		if err := grants.Add(Grant{Tool: "shell", Workspace: "/p", Phrase: fmt.Sprint(i), Decision: DecisionAllow}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if !early {
			fmt.Println(i)
		}
	}
}

// killedChanger kills a changer after some acknowledgements.
func killedChanger(t *testing.T, dir string, after int, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChangesSurviveAKill$")
	cmd.Env = append(append(os.Environ(), changeCrashEnv+"="+dir), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range after {
		if !lines.Scan() {
			t.Errorf("it ended by itself: %v", lines.Err())
			break
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // by the signal
}

// missingChanges describes what is wrong after a kill that followed some
// acknowledgements; "" if nothing is.
func missingChanges(t *testing.T, dir string, acknowledged int) string {
	t.Helper()
	changes, err := ReadChanges(dir)
	if err != nil {
		return err.Error()
	}
	list, err := NewGrants(filepath.Join(dir, "approvals.json")).List()
	if err != nil {
		return err.Error()
	}
	if len(list) < acknowledged || len(changes) < len(list) || len(changes) > len(list)+1 {
		return fmt.Sprintf("%d were acknowledged, %d are logged, %d are stored", acknowledged, len(changes), len(list))
	}
	for i, g := range list {
		if len(changes[i].Added) != 1 || !strings.Contains(string(changes[i].Added[0]), fmt.Sprintf(`"phrase":%q`, g.Phrase)) {
			return fmt.Sprintf("change %d of %d is %+v, stored is %+v", i+1, len(changes), changes[i], g)
		}
	}
	return ""
}
