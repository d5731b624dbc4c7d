package e2e

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// killedAgents are the agents of TestBatchKilled besides a model, and killedTasks the number
// of its tasks.
const (
	killedAgents = 2
	killedTasks  = 4
)

// killedTasks writes tasks whose trials end in each way: they pass, change many files, reach
// a limit, or have no reward.
func (m *machine) killedTasks(t *testing.T, image string) (model string) {
	t.Helper()
	m.harborTask(t, "hello", image, smallTask, "echo hello > hello.txt")
	m.harborTask(t, "changes", image, smallTask, "rm given; mkdir -p a/b; for i in 1 2 3 4 5; do echo $i > a/b/$i; done; chmod 700 a/b; echo art > /logs/artifacts/art; echo new > /new")
	m.write(t, "tasks/changes/tests/test.sh", "#!/bin/sh\necho checking\nif [ ! -e given ] && [ \"$(cat a/b/5 /new)\" = \"5\nnew\" ]; then echo 1; else echo 0.5; fi > /logs/verifier/reward.txt\n")
	m.harborTask(t, "slow", image, smallTask+"[agent]\ntimeout_sec = 3\n", "echo begun > begun; exec sleep 60")
	m.harborTask(t, "empty", image, smallTask, "true")
	m.write(t, "tasks/empty/tests/test.sh", "#!/bin/sh\nexit 0\n")
	m.write(t, "model.yaml", "version: 1\nname: model\nturns:\n  - text: I do it.\n    calls:\n      - tool: shell\n        input: {command: echo hello > hello.txt}\n  - text: Done.\n")
	return "replay/" + filepath.Join(m.workspace, "model.yaml")
}

// TestBatchKilled kills a batch again and again, and nothing of it is left: its results,
// reports and files are those of a batch that ran beside it all the time and was not killed,
// whose sandboxes were not touched. BATCH_TRIALS, BATCH_BACKEND and BATCH_SEED change what it
// runs.
func TestBatchKilled(t *testing.T) {
	backend := cmp.Or(os.Getenv("BATCH_BACKEND"), "runc")
	needBackend(t, "docker")
	needBackend(t, backend)
	attempts := max(1, fromEnv(t, "BATCH_TRIALS", 12)/(killedTasks*(killedAgents+1)))
	seed := fromEnv(t, "BATCH_SEED", int(time.Now().UnixNano()&0xffffff))
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	t.Parallel()
	image := batchImage(t)
	m := newMachine(t)
	m.env = append(m.env, "TMPDIR="+filepath.Join(m.home, "tmp"))
	if err := os.Mkdir(filepath.Join(m.home, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	model := m.killedTasks(t, image)
	args := []string{"--backend", backend, "--agent", "oracle", "--agent", "nop", "--model", model, "--attempts", fmt.Sprint(attempts), "--parallel", "2"}
	m.patience = time.Hour
	beside := m.start(t, m.batchArgs("beside", args...)...)

	kills, sessions, began := 0, map[string]bool{}, time.Now()
	for ended := false; !ended; {
		run := m.start(t, m.batchArgs("out", args...)...)
		if kills%3 > 0 { // one of three dies at any moment of its start, on a busy machine too
			m.awaitTrial(t, run)
		}
		select {
		case <-run.ended:
			run.wait(t, time.Second).want(t, 60)
			ended = true
		case <-time.After(time.Duration(500+r.IntN(3500+500*kills)) * time.Millisecond): // some time a trial of 3 s ends
			run.kill(t)
			kills++
		}
		entries, err := os.ReadDir(filepath.Join(m.batchDir("out"), "state", "caisson", "sessions"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			sessions[e.Name()] = true
		}
	}
	_, kept := m.results(t, "out")
	for _, s := range kept {
		sessions[s] = true
	}
	t.Logf("BATCH_SEED=%d repeats the times: killed %d times in %s, %d sessions, of which %d are in results", seed, kills, time.Since(began).Round(time.Second), len(sessions), len(kept))
	if kills == 0 || len(sessions) <= len(kept) {
		t.Error("control: no sandbox lived when the batch was killed")
	}
	left := slices.Collect(maps.Keys(sessions))
	eventually(t, "nothing is left of the batch", time.Minute, func() bool {
		all := slices.Concat(processesNaming(t, append(left, m.batchDir("out")+"/")...), mountsNaming(t, append(left, m.batchDir("out")+"/")...), cgroupsNaming(t, left...), containersOf(t, left...))
		return len(all) == 0
	})
	out := beside.wait(t, time.Hour)
	out.want(t, 60)
	if _, err := os.Stat(filepath.Join(m.batchDir("out"), "state")); err == nil {
		t.Error("the state of sandboxes is left")
	}
	want, got := m.normalBatch(t, "beside", attempts), m.normalBatch(t, "out", attempts)
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("the batch that was killed differs (-undisturbed +killed):\n%.4000s", d)
	}
	if temporary := tree(t, filepath.Join(m.home, "tmp")); len(temporary) > 0 {
		t.Errorf("temporary files are left: %v", temporary)
	}
	m.wantNothingLeft(t)
}

// awaitTrial waits until a batch that goes on runs a trial, or has ended.
func (m *machine) awaitTrial(t *testing.T, run *running) {
	t.Helper()
	began := time.Now()
	eventually(t, "a trial runs", time.Minute, func() bool {
		select {
		case <-run.ended:
			return true
		default:
		}
		entries, err := os.ReadDir(filepath.Join(m.batchDir("out"), "running"))
		if err != nil || len(entries) == 0 {
			return false
		}
		info, err := entries[0].Info()
		return err == nil && info.ModTime().After(began) // not one of the process that was killed
	})
}

// normalBatch returns the files of a batch by their names, without what differs from run to
// run: times, ids of sessions, and the order of the trials.
func (m *machine) normalBatch(t *testing.T, out string, attempts int) map[string]string {
	t.Helper()
	dir := m.batchDir(out)
	results, err := batch.ReadResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[batch.Outcome]int{}
	normal := map[string]string{}
	for _, r := range results {
		if len(r.Faults) > 0 && out == "beside" {
			t.Errorf("%s was disturbed: %v", r.Name, r.Faults)
		}
		outcomes[r.Outcome]++
		if r.Image == "" {
			t.Errorf("%s has no image", r.Name)
		}
		// Two builds at the same time make two images of one Dockerfile.
		r.Started, r.Finished, r.Times, r.Sessions, r.Image = time.Time{}, time.Time{}, nil, nil, ""
		if _, twice := normal["result of "+r.Name]; twice {
			t.Errorf("%s: %s has two results", out, r.Name)
		}
		normal["result of "+r.Name] = mustJSON(t, r)
	}
	lines, err := os.ReadFile(filepath.Join(dir, batch.ResultsFile))
	if n := killedTasks * (killedAgents + 1) * attempts; err != nil || len(results) != n || bytes.Count(lines, []byte{'\n'}) != n {
		t.Errorf("%s: %d results, want %d: %v", out, len(results), n, err)
	}
	if outcomes[batch.Passed] == 0 || outcomes[batch.Failed] == 0 || outcomes[batch.Limit] == 0 {
		t.Errorf("control: outcomes %v", outcomes)
	}
	for name, text := range treeOf(t, dir) {
		mode, content, _ := strings.Cut(text, " ")
		base := filepath.Base(name)
		switch {
		case base == batch.ResultsFile, base == batch.ResultFile, base == batch.SpecFile:
			content = ""
		case base == "report.html":
			content = fmt.Sprint(strings.Count(content, `class="trial `), " rows of trials")
		case base == batch.StateFile:
			content = normalArchive(t, content)
		case base == batch.SummaryFile, base == "junit.xml", strings.HasPrefix(base, "predictions-"):
			lines := strings.Split(volatile.ReplaceAllString(content, ""), "\n")
			slices.Sort(lines)
			content = strings.Join(lines, "\n")
		case base == batch.TrajectoryFile, strings.Contains(name, "session"+string(filepath.Separator)): // times and ids
			content = ""
		}
		normal[name] = mode + " " + content
	}
	return normal
}

// volatile matches what differs in reports from run to run.
var volatile = regexp.MustCompile(`"(created_at|median_ms|total_ms)": [^,\n]*|(time|timestamp)="[^"]*"`)

// normalArchive returns the entries of an archive of changes without their times, and without
// those of the image: the first trial has what was unpacked for it. The directories of /logs
// are made just before changes count, and are in it where that took little time.
func normalArchive(t *testing.T, content string) string {
	t.Helper()
	var list []string
	in := tar.NewReader(strings.NewReader(content))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(list)
			return strings.Join(list, "\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(h.Name, ".caisson-names/")
		if !slices.ContainsFunc([]string{"app/", "logs/", "new", "tmp/"}, func(made string) bool { return strings.HasPrefix(name, made) }) {
			continue
		}
		if strings.HasPrefix(name, "logs/") && (name != h.Name || h.Typeflag == tar.TypeDir) {
			continue
		}
		list = append(list, fmt.Sprintf("%s %c %o %s %q", h.Name, h.Typeflag, h.Mode, h.Linkname, text))
	}
}

// TestBatchSandboxKilled kills the sandbox of an agent, and that of a verifier. The agent's
// commands could have done either, so the trial failed, and is not tried again.
func TestBatchSandboxKilled(t *testing.T) {
	needBackend(t, "docker")
	t.Parallel()
	image := batchImage(t)
	for _, backend := range sandboxtest.Sampled(t, "gvisor", "runc") {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			needBackend(t, backend)
			m := newMachine(t)
			m.harborTask(t, "hello", image, smallTask, "sleep 0.7; echo hello > hello.txt")
			m.write(t, "tasks/hello/tests/test.sh", "#!/bin/sh\nsleep 0.7; read a < hello.txt; [ \"$a\" = hello ] && echo 1 > /logs/verifier/reward.txt\n")
			killed := map[string]bool{}
			for _, what := range []string{"agent", "verifier"} {
				out := "out-" + what
				run := m.start(t, m.batchArgs(out, "--backend", backend, "--agent", "oracle", "--retries", "3")...)
				run.until(t, "the sandbox of the "+what, func() bool { return m.killSandbox(t, out, what == "agent", killed) })
				run.wait(t, deadline).want(t, 60)
				results, err := batch.ReadResults(m.batchDir(out))
				if err != nil || len(results) != 1 {
					t.Fatalf("%+v, %v", results, err)
				}
				if r := results[0]; r.Outcome != batch.Failed || r.Class != batch.SandboxLost || r.Cause == "" || len(r.Faults) != 0 {
					t.Errorf("%s: %+v", what, r)
				}
			}
			m.wantNothingLeft(t, slices.Collect(maps.Keys(killed))...)
		})
	}
}

// killSandbox kills a process of a sandbox that was not killed before, once its command runs:
// the guest, or gVisor's kernel. The first sandbox of a trial is the agent's.
func (m *machine) killSandbox(t *testing.T, out string, agent bool, killed map[string]bool) bool {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(m.batchDir(out), "state", "caisson", "sessions", "*", "trace.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		session := filepath.Base(filepath.Dir(path))
		text, err := os.ReadFile(path)
		mark := map[bool]string{true: "/solution/solve.sh", false: "/tests/test.sh"}[agent]
		if err != nil || killed[session] || !bytes.Contains(text, []byte(mark)) {
			continue
		}
		for _, p := range processesNaming(t, session) {
			var pid int
			if _, err := fmt.Sscanf(p, "process %d:", &pid); err != nil {
				t.Fatal(err)
			}
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if bytes.HasPrefix(line, []byte("/.caisson/guest")) || bytes.HasPrefix(line, []byte("runsc-sandbox")) {
				if syscall.Kill(pid, syscall.SIGKILL) == nil {
					killed[session] = true
					return true
				}
			}
		}
	}
	return false
}
