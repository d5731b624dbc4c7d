package runner

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// The environment of TestForkLoop, the child process of TestKillInFork: the directory
// in which it works, and the number of the fork after which it waits.
const (
	forkRoot = "CAISSON_TEST_FORK"
	forkLast = "CAISSON_TEST_FORK_LAST"
)

// forkChanges are the changes of a session before each of its forks.
var forkChanges = []string{"common original", "common original second"}

// TestForkLoop runs a session that is forked twice, until it is killed.
func TestForkLoop(t *testing.T) {
	root := os.Getenv(forkRoot)
	if root == "" {
		return
	}
	b := newBenchIn(t, root, "  - calls: [{tool: shell, input: {command: step0}}]\n"+lastTurn+"  - calls: [{tool: shell, input: {command: step1}}]\n"+lastTurn).overlaid()
	b.file("original", "o\n")
	b.backend.Scripts["step0"], b.backend.Scripts["step1"] = bash(t, `echo common > common; rm original`), bash(t, `echo two > second`)
	s := b.opened()
	for i := range forkChanges {
		startTurn(t, s, "go on")
		fmt.Printf("{forking %d %s\n", i, s.opts.Dir.Session)
		begun := time.Now()
		if _, err := s.Fork(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("{forked %d %d\n", i, time.Since(begun))
		if os.Getenv(forkLast) == strconv.Itoa(i) {
			_ = unix.Pause()
		}
	}
	_ = unix.Pause()
}

// killInFork runs TestForkLoop in a mount namespace of its own, kills it at a time
// after the beginning of a fork, and returns the session, and the time of the fork or
// 0 if it had not ended.
func killInFork(t *testing.T, root string, number int, after time.Duration) (session string, took time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestForkLoop$")
	cmd.Env = append(os.Environ(), forkRoot+"="+root, forkLast+"="+strconv.Itoa(number), "TMPDIR="+t.TempDir()) // killed, it removes nothing
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewScanner(pipe); in.Scan(); {
		if n, _ := fmt.Sscanf(in.Text(), "{forking "+strconv.Itoa(number)+" %s", &session); n == 1 {
			time.Sleep(after)
			err = cmd.Process.Kill()
		}
		_, _ = fmt.Sscanf(in.Text(), "{forked "+strconv.Itoa(number)+" %d", &took)
	}
	if wait := cmd.Wait(); session == "" || err != nil || wait == nil {
		t.Fatalf("the child process: session %q, %v, %v", session, err, wait)
	}
	return session, took
}

// forkKills is the number of processes that TestKillInFork kills.
const forkKills = 52

// TestKillInFork kills processes at random moments of Session.Fork. The next start
// finds the session with all of its changes, and each fork whole or removes it.
func TestKillInFork(t *testing.T) {
	newBench(t, lastTurn).overlaid() // or skips
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	_, whole := killInFork(t, t.TempDir(), 1, 10*time.Second)
	inFork, forks := 0, 0
	// On a busy machine the first fork takes longer than most.
	for round := 0; round < forkKills || inFork < forkKills/4 && round < 4*forkKills; round++ {
		root, number := t.TempDir(), random.IntN(len(forkChanges))
		session, took := killInFork(t, root, number, time.Duration(random.Int64N(int64(whole))))
		if took == 0 {
			inFork++
		}
		forks += checkKilledForks(t, root, session, number)
		if t.Failed() {
			t.Fatalf("round %d: killed in fork %d, which took %s", round, number, took)
		}
	}
	t.Logf("%d processes were killed in a fork; %d forks", inFork, forks)
	if inFork < forkKills/4 {
		t.Errorf("only %d processes were killed in a fork", inFork)
	}
}

// checkKilledForks checks what a process left that was killed in a fork, and returns
// the number of forks.
func checkKilledForks(t *testing.T, root, session string, number int) int {
	t.Helper()
	state := filepath.Join(root, "state")
	dirs, err := filepath.Glob(sessiondir.Path(state, "ses_*"))
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	for _, dir := range dirs {
		if err := os.Chtimes(dir, long, long); err != nil { // the sweep leaves what may be in the making
			t.Fatal(err)
		}
	}
	// As the next start does.
	if _, err := sessiondir.Sweep(state); err != nil {
		t.Error(err)
	}
	if gone, err := sessiondir.ExpireChanges(state, time.Hour); err != nil || len(gone) > 0 {
		t.Errorf("expired %q, %v", gone, err)
	}
	ids, err := sessiondir.List(state)
	if err != nil {
		t.Fatal(err)
	}
	// A later session works, and is forked.
	b := newBenchIn(t, root, "  - calls: [{tool: read_file, input: {path: original}}]\n"+lastTurn).overlaid()
	later := b.opened()
	if r := startTurn(t, later, "read"); r.Reason != loop.StopAnswered {
		t.Errorf("a later session: %+v", r)
	}
	later.Close()

	count := map[string]int{}
	for _, id := range ids {
		want := forkChanges[number]
		if id != session {
			created := of[record.SessionCreated](t, b.records(Report{Dir: sessiondir.Path(state, id)}))[0]
			if created.Parent == nil || created.Parent.Session != session {
				t.Errorf("%s is no fork of %s: %+v", id, session, created.Parent)
				continue
			}
			count[created.Parent.Turn]++
			want = forkChanges[len(count)-1]
		}
		l, err := sessiondir.OpenChanges(state, id)
		if err != nil {
			t.Fatal(err)
		}
		if got := keptPaths(t, b, l); got != want {
			t.Errorf("%s changed %s, want %s", id, got, want)
		}
		if id == session {
			continue
		}
		if err := sessiondir.DiscardChanges(sessiondir.Path(state, id), ""); err != nil {
			t.Error(err)
		}
	}
	applyKilled(t, b, state, session, number)
	return len(ids) - 1
}

// keptPaths returns the changed files of layers.
func keptPaths(t *testing.T, b *bench, l *overlay.Layers) string {
	t.Helper()
	list, err := l.Changes(t.Context(), b.opts.Workspace.Dir, changes.ReadBounds)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, c := range list.List {
		paths = append(paths, c.Path)
	}
	return strings.Join(paths, " ")
}

// applyKilled applies the changes of a session whose process was killed.
func applyKilled(t *testing.T, b *bench, state, session string, number int) {
	t.Helper()
	l, err := sessiondir.OpenChanges(state, session)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if r, err := l.Apply(t.Context(), b.opts.Workspace.Dir, overlay.ApplyOptions{}); err != nil || r.State != overlay.Applied {
		t.Errorf("applied %+v, %v", r, err)
	}
	names, err := filepath.Glob(filepath.Join(b.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		names[i] = filepath.Base(name)
	}
	if want := []string{"common", "common second"}[number]; strings.Join(names, " ") != want {
		t.Errorf("the workspace has %q, want %s", names, want)
	}
	if n := b.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
}
