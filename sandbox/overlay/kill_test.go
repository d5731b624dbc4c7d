package overlay

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
)

// The environment of TestFreezeLoop, the child process of TestKillInFreeze: the
// directory in which it works, and the step after which it waits.
const (
	freezeRoot = "CAISSON_TEST_FREEZE"
	freezeLast = "CAISSON_TEST_FREEZE_LAST"
)

// freezeSteps is the number of freezes of TestFreezeLoop. The last one merges; it and
// the first three are those in which the process is killed.
const freezeSteps = MaxLowers + 1

// freezeForks is the number of forks after each of these.
const freezeForks = 3

// freezeState is one line of TestFreezeLoop's output.
type freezeState struct {
	Step int
	// Frozen is false before a freeze, with the changes and the merged directory,
	// and true after it and its forks, with the time that they took.
	Frozen  bool
	Changes []string
	Tree    string
	Took    time.Duration
}

// TestFreezeLoop changes, freezes and forks layers, until it is killed.
func TestFreezeLoop(t *testing.T) {
	root := os.Getenv(freezeRoot)
	if root == "" {
		return
	}
	w := newTestEnvIn(t, root, func(dir string) { runScript(t, dir, tree0+`; mkdir shared; echo x > shared/x`) })
	w.unmount()
	out := json.NewEncoder(os.Stdout)
	for i := range freezeSteps {
		w.mount()
		runScript(t, w.merged, fmt.Sprintf(`echo %[1]d > f%[1]d; rm -f f$((%[1]d - 3)) a.txt; rm -rf shared; mkdir shared; echo %[1]d > shared/y%[1]d
			mkdir d%[1]d; ln shared/y%[1]d d%[1]d/link; chmod %[2]d d%[1]d .`, i, 700+i%2*55))
		must(t, unix.Setxattr(filepath.Join(w.merged, fmt.Sprint("d", i)), "user.step", []byte{byte(i)}, 0))
		if i > 2 && i != MaxLowers {
			w.unmount()
			must(t, w.layers.Freeze(t.Context(), w.frozen()))
			continue
		}
		state := freezeState{Step: i, Changes: w.listChanges(), Tree: withoutLinks(describeTree(t, w.merged))}
		w.unmount()
		must(t, out.Encode(state))
		begun := time.Now()
		must(t, w.layers.Freeze(t.Context(), w.frozen()))
		for n := range freezeForks {
			f, err := w.layers.Fork(fmt.Sprintf("%s-%d-%d", w.layers.Dir(), i, n), "ses_fork")
			must(t, err)
			must(t, f.Close())
		}
		must(t, out.Encode(freezeState{Step: i, Frozen: true, Took: time.Since(begun)}))
		if os.Getenv(freezeLast) == fmt.Sprint(i) {
			must(t, unix.Pause())
		}
	}
}

// runFreezeLoop runs TestFreezeLoop in a mount namespace of its own, kills it at a
// time after the beginning of a freeze, and returns what it wrote.
func runFreezeLoop(t *testing.T, root string, step int, after func() time.Duration) []freezeState {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFreezeLoop$")
	cmd.Env = append(os.Environ(), freezeRoot+"="+root, freezeLast+"="+fmt.Sprint(step))
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var states []freezeState
	for in := bufio.NewScanner(pipe); in.Scan(); {
		var s freezeState
		if !strings.HasPrefix(in.Text(), "{") { // of the testing package
			continue
		}
		must(t, json.Unmarshal(in.Bytes(), &s))
		states = append(states, s)
		if s.Step == step && !s.Frozen {
			time.Sleep(after())
			must(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); (err != nil) != (step >= 0) {
		t.Fatalf("the child process: %v", err)
	}
	return states
}

// killRounds is the number of processes that TestKillInFreeze kills.
var killRounds = flag.Int("killrounds", 60, "processes that TestKillInFreeze kills")

// TestKillInFreeze kills processes at random moments of a freeze and of forks. The
// session has the same changes and goes on; each fork has the changes of its freeze or
// was not made; what is half made is removed by the sweep.
func TestKillInFreeze(t *testing.T) {
	newTestEnv(t, nil) // or skips
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	took := map[int]time.Duration{}
	for _, s := range runFreezeLoop(t, t.TempDir(), -1, nil) {
		took[s.Step] = s.Took
	}
	inFreeze, forks, half, round := 0, 0, 0, 0
	for ; round < *killRounds || inFreeze < *killRounds/3 && round < 10**killRounds; round++ {
		step := random.IntN(3)
		if round%4 == 0 {
			step = MaxLowers
		}
		root := t.TempDir()
		states := runFreezeLoop(t, root, step, func() time.Duration { return time.Duration(random.Int64N(int64(took[step]))) })
		for _, s := range states {
			if s.Frozen { // the machine's load changes
				took[s.Step] = s.Took
			}
		}
		last := states[len(states)-1]
		if !last.Frozen {
			inFreeze++
		}
		k := killedLayers{t: t, root: root, states: states, step: step}
		made, unmade := k.check()
		forks, half = forks+made, half+unmade
		if t.Failed() {
			t.Fatalf("round %d, step %d, killed after %+v", round, step, last)
		}
	}
	t.Logf("%d of %d processes were killed in a freeze; %d forks, %d half made", inFreeze, round, forks, half)
	if inFreeze < *killRounds/3 {
		t.Errorf("only %d of %d processes were killed in a freeze", inFreeze, round)
	}
}

// killedLayers are the layers of a killed TestFreezeLoop.
type killedLayers struct {
	t      *testing.T
	root   string
	states []freezeState
	step   int // in which it was killed
}

// before returns the state before the freeze of a step.
func (k *killedLayers) before(step int) freezeState {
	return k.states[slices.IndexFunc(k.states, func(s freezeState) bool { return s.Step == step })]
}

// open returns the layers in a directory as a test environment.
func (k *killedLayers) open(dir string) (*testEnv, error) {
	w := &testEnv{t: k.t, original: filepath.Join(k.root, "workspace"), merged: filepath.Join(k.root, "merged")}
	var err error
	if w.dir, err = os.Open(w.original); err != nil {
		return nil, err
	}
	k.t.Cleanup(func() { w.dir.Close() })
	w.layers, err = Open(dir)
	return w, err
}

// check checks the layers, and returns how many forks there were, whole and half made.
func (k *killedLayers) check() (made, unmade int) {
	t, dir := k.t, filepath.Join(k.root, "layers")
	w, err := k.open(dir)
	must(t, err)
	w.requireChanges(k.before(k.step).Changes...)

	dirs, err := filepath.Glob(dir + "-*")
	must(t, err)
	var forks []*testEnv
	for _, dir := range dirs {
		var step, number int
		_, err := fmt.Sscanf(filepath.Base(dir), "layers-%d-%d", &step, &number)
		must(t, err)
		if _, err := SweepUnmade(dir); err != nil {
			t.Error(err)
		}
		f, err := k.open(dir)
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Lstat(dir); step != k.step || err == nil {
				t.Errorf("fork %d of step %d is not made, and left: %v", number, step, err)
			}
			unmade++
			continue
		}
		must(t, err)
		f.requireChanges(k.before(step).Changes...)
		must(t, f.layers.Sweep())
		forks = append(forks, f)
	}
	must(t, errors.Join(w.layers.Sweep(), SweepFrozen(w.frozen())))
	requireTidy(t, w, forks)

	// The session's changes can be frozen, seen and applied.
	w.requireChanges(k.before(k.step).Changes...)
	must(t, errors.Join(w.layers.Lock(), w.layers.Freeze(t.Context(), w.frozen())))
	w.mount()
	t.Cleanup(w.unmount)
	want := k.before(k.step).Tree
	if diff := cmp.Diff(want, withoutLinks(describeTree(t, w.merged))); diff != "" {
		t.Errorf("merged:\n%s", diff)
	}
	if r := w.apply(ApplyOptions{}); r.State != Applied {
		t.Errorf("applied: %+v", r)
	}
	if diff := cmp.Diff(withoutAttributes(want), withoutLinks(describeTree(t, w.original))); diff != "" {
		t.Errorf("applied:\n%s", diff)
	}
	for _, f := range forks {
		must(t, errors.Join(f.layers.Lock(), f.layers.End(Discarded), f.layers.Close()))
	}
	if n := w.frozenLayers(); n != 0 {
		t.Errorf("%d frozen layers are left", n)
	}
	return len(forks), unmade
}

// requireTidy requires that nothing is left but what a session and its forks need.
func requireTidy(t *testing.T, w *testEnv, forks []*testEnv) {
	t.Helper()
	used := map[string]bool{}
	for _, f := range append(forks, w) {
		names, err := os.ReadDir(filepath.Join(f.layers.Dir(), lowersDir))
		must(t, errors.Join(state.IgnoreMissing(err)))
		if len(names) != len(f.layers.Lowers()) {
			t.Errorf("%d links to %d frozen layers", len(names), len(f.layers.Lowers()))
		}
		for _, name := range names {
			used[name.Name()] = true
		}
		names, err = os.ReadDir(f.layers.Dir())
		must(t, err)
		for _, name := range names {
			if !slices.Contains([]string{UpperDir, WorkDir, baseFile, stampsFile, lowersFile, lowersDir, lockFile}, name.Name()) {
				t.Errorf("%s is left in %s", name.Name(), f.layers.Dir())
			}
		}
	}
	names, err := os.ReadDir(w.frozen())
	must(t, state.IgnoreMissing(err))
	for _, name := range names {
		if !used[name.Name()] {
			t.Errorf("the frozen layer %s is left", name.Name())
		}
	}
}
