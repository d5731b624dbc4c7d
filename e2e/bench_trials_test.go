package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// Sizes of [BenchmarkTrials]. The image has as many files as that of a small
// distribution, since what a trial costs may depend on them.
const (
	trialsPerRound  = 20
	trialWidth      = 2
	trialImageDirs  = 800
	trialImageFiles = 9 // in each directory
)

// BenchmarkTrials runs trials of a task that does nothing by `caisson batch`, on each
// backend, and beside them what a user would do without it: two `docker run --rm` for each
// trial, of the same image, without a network, as many at a time. The batches include the
// start of the program, records and reports, and a round of each kind takes turns. Processor
// time is that of everything in a cgroup that has all of it: programs, sandboxes, the
// engine, its containerd and shims. The engine is one of the benchmark's own.
func BenchmarkTrials(b *testing.B) {
	for _, name := range backendNames {
		if name != "docker" {
			needBackend(b, name)
		}
	}
	group := accountGroup(b)
	private := privateengine.New(b, "--cgroup-parent=/"+filepath.Base(group))
	b.Setenv("DOCKER_HOST", private.Host())
	image := engineImage(b, trialFiles(b), "ENV PATH=/bin")
	m := newMachine(b)
	m.write(b, "lines.jsonl", `{"id":"noop","prompt":"Do nothing.","verify":"true","image":"`+image+`"}`+"\n")
	for file, text := range map[string]string{
		"task.toml": "version = \"1.0\"\n[environment]\ndocker_image = \"" + image + "\"\n", "instruction.md": "Do nothing.\n",
		"tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
	} {
		m.write(b, filepath.Join("noop", file), text)
	}
	rounds := 0
	batches := func(backend, task string) side {
		return side{name: backend + "-", op: func() error {
			rounds++
			out := filepath.Join(m.home, backend+strconv.Itoa(rounds))
			r := m.start(b, "batch", "--backend", backend, "--agent", "nop", "--attempts", strconv.Itoa(trialsPerRound), "--parallel", strconv.Itoa(trialWidth), "--out", out, filepath.Join(m.workspace, task))
			r.wait(b, deadline).want(b, 0)
			return os.RemoveAll(out)
		}}
	}
	sides := []side{batches("runc", "noop"), batches("gvisor", "noop"), batches("docker", "lines.jsonl"), {name: "hand-", op: func() error { return runByHand(b, m, image) }}}
	for i := range sides { // images are unpacked, and what is measured once is known
		if err := sides[i].op(); err != nil {
			b.Fatal(err)
		}
		sides[i].used = func() time.Duration { return groupTime(b, group) }
	}
	compare(b, sides...)
}

// Numbers of trials that run at once in [BenchmarkTrialMemory].
const fewTrials, manyTrials = 2, 26

// BenchmarkTrialMemory measures by how much the memory of `caisson batch` grows with each
// trial that runs: the peak of what is resident with many trials less that with few. Each
// waits for a command of its model when it is stopped; the harness has no other process for a trial than its sandbox.
func BenchmarkTrialMemory(b *testing.B) {
	needBackend(b, "runc")
	m := newMachine(b)
	command := fmt.Sprintf("sleep 900.%d", os.Getpid())
	m.write(b, "sleep.yaml", "version: 1\nname: sleep\nturns:\n  - text: I sleep.\n    calls:\n      - tool: shell\n        input: {command: "+command+"}\n  - text: Done.\n")
	m.write(b, "tasks.jsonl", `{"id":"sleep","prompt":"Sleep.","verify":"true","limits":{"cpus":0.01,"memory_mb":64}}`+"\n")
	measure := func(n int) (resident int64) {
		out := filepath.Join(m.home, strconv.Itoa(n))
		r := m.start(b, "batch", "--backend", "runc", "--command-time", "20m", "--model", "replay/"+filepath.Join(m.workspace, "sleep.yaml"),
			"--attempts", strconv.Itoa(n), "--parallel", strconv.Itoa(n), "--out", out, filepath.Join(m.workspace, "tasks.jsonl"))
		watched := watchMemory(r.process.Process.Pid, "VmRSS")
		for deadline := time.Now().Add(5 * time.Minute); countCommands(b, command) < n; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				b.Fatalf("%d of %d trials run: %s", countCommands(b, command), n, r.stderr)
			}
		}
		r.signal(b, os.Interrupt)
		r.wait(b, 5*time.Minute)
		return <-watched
	}
	var growth []int64
	for b.Loop() {
		few := measure(fewTrials)
		growth = append(growth, (measure(manyTrials)-few)/(manyTrials-fewTrials))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(slices.Max(growth))/1024, "KiB-a-trial")
}

// countCommands counts the processes with a command line.
func countCommands(b *testing.B, command string) (n int) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.ReplaceAll(strings.TrimSuffix(string(line), "\x00"), "\x00", " ") == command {
			n++
		}
	}
	return n
}

// runByHand runs trials by the command line of the engine.
func runByHand(b *testing.B, m *machine, image string) error {
	var g errgroup.Group
	g.SetLimit(trialWidth)
	for range trialsPerRound {
		g.Go(func() error {
			for _, command := range []string{"true", "echo 1 > reward.txt"} {
				c := exec.CommandContext(b.Context(), "docker", "run", "--rm", "--network=none", image, "sh", "-c", command)
				c.Env = m.env
				if out, err := c.CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// trialFiles returns the files of the image of [BenchmarkTrials].
func trialFiles(b *testing.B) map[string][]byte {
	files := userland(b, "true")
	for dir := range trialImageDirs {
		for file := range trialImageFiles {
			files[fmt.Sprintf("usr/share/%d/%d", dir, file)] = []byte("x\n")
		}
	}
	return files
}

// accountGroup moves this process to a cgroup that accounts for processor time, and
// returns its directory. Sandboxes have cgroups below that of who starts them.
func accountGroup(b *testing.B) string {
	const hierarchy = "/sys/fs/cgroup/cpuacct" // of version 1
	dir := filepath.Join(hierarchy, fmt.Sprintf("caisson-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Skipf("needs cgroup v1 and root: %v", err)
	}
	move := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			b.Error(err)
		}
	}
	move(dir)
	b.Cleanup(func() { // after the engine has ended
		move(hierarchy)
		all, err := filepath.Glob("/sys/fs/cgroup/*/" + filepath.Base(dir)) // the engine makes it in each hierarchy
		for _, dir := range all {
			err = errors.Join(err, os.Remove(dir))
		}
		if err != nil {
			b.Error(err)
		}
	})
	return dir
}

// groupTime returns the processor time of all that is, or was, in a cgroup.
func groupTime(b *testing.B, dir string) time.Duration {
	text := readFile(b, filepath.Join(dir, "cpuacct.usage"))
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(n)
}
