package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/batch"
)

// faultTasks is the number of tasks of a batch in TestBatchFaults, for two models.
const faultTasks = 4

func (b *manyBatch) start(args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	b.t.Helper()
	cmd, stderr = exec.CommandContext(b.t.Context(), "caisson", args...), new(bytes.Buffer)
	cmd.Env, cmd.Stderr = b.env, stderr
	must(b.t, cmd.Start())
	return cmd, stderr
}

func (b *manyBatch) awaitResults(n int) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if text, _ := os.ReadFile(filepath.Join(b.out, batch.ResultsFile)); bytes.Count(text, []byte{'\n'}) >= n {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("there are no %d results", n)
		}
	}
}

func (b *manyBatch) wantEnd(cmd *exec.Cmd, stderr *bytes.Buffer, status int, text string) {
	b.t.Helper()
	_ = cmd.Wait() // the status counts
	if got := cmd.ProcessState.ExitCode(); got != status || !strings.Contains(stderr.String(), text) {
		b.t.Errorf("status %d, want %d with %q\n%s", got, status, text, stderr)
	}
}

// wantWhole runs the batch to its end. Its results must be those of an undisturbed one,
// each once, without failures of the infrastructure and remains.
func (b *manyBatch) wantWhole(args ...string) {
	b.t.Helper()
	b.run(60, args...)
	results, err := batch.ReadResults(b.out)
	text, readErr := os.ReadFile(filepath.Join(b.out, batch.ResultsFile))
	if err := errors.Join(err, readErr); err != nil || bytes.Count(text, []byte{'\n'}) != 2*faultTasks {
		b.t.Errorf("%v, results:\n%s", err, text)
	}
	outcomes := map[batch.Outcome]int{}
	for _, r := range results {
		outcomes[r.Outcome]++
		if len(r.Faults) > 0 || r.Finished.Before(r.Started) {
			b.t.Errorf("%+v", r)
		}
	}
	if want := (map[batch.Outcome]int{batch.Passed: 4, batch.Failed: 4}); !maps.Equal(outcomes, want) {
		b.t.Errorf("%v, want %v", outcomes, want)
	}
	entries, err := os.ReadDir(b.out)
	must(b.t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "predictions-") && !slices.Contains([]string{"batch.json", "junit.xml", "lock", "report.html", "results.jsonl", "summary.json", "trials"}, e.Name()) {
			b.t.Errorf("%s is left", e.Name())
		}
	}
	if trials, err := os.ReadDir(filepath.Join(b.out, batch.TrialsDir)); err != nil || len(trials) != 2*faultTasks {
		b.t.Errorf("%d directories of trials: %v", len(trials), err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if n := strings.Count(string(mounts), b.out+"/"); err != nil || n > 0 {
		b.t.Errorf("%d mounts are left: %v", n, err)
	}
}

// TestBatchFaults disturbs processes and directories of a batch, and runs the same
// command again.
func TestBatchFaults(t *testing.T) {
	t.Parallel()
	remount := func(b *manyBatch, flags uintptr, options string) {
		b.t.Helper()
		must(b.t, unix.Mount("", b.out, "", unix.MS_REMOUNT|flags, options))
	}
	signals := func(status int, list ...os.Signal) func(b *manyBatch, args []string) {
		return func(b *manyBatch, args []string) {
			cmd, stderr := b.start(args...)
			b.awaitResults(2)
			for _, s := range list {
				must(b.t, cmd.Process.Signal(s))
				time.Sleep(50 * time.Millisecond)
			}
			b.wantEnd(cmd, stderr, status, "")
			if _, err := os.Stat(filepath.Join(b.out, stateDir)); status > 0 && err == nil {
				b.t.Error("state is left")
			}
		}
	}
	// afterwards changes the directory of a batch that was killed in the middle.
	afterwards := func(do func(b *manyBatch) error, status int, text string) func(b *manyBatch, args []string) {
		return func(b *manyBatch, args []string) {
			cmd, _ := b.start(args...)
			b.awaitResults(3)
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
			before, err := os.ReadFile(filepath.Join(b.out, batch.SpecFile))
			must(b.t, errors.Join(err, do(b)))
			if text == "" {
				return
			}
			cmd, stderr := b.start(args...)
			b.wantEnd(cmd, stderr, status, text)
			if status != 60 { // undo the change
				must(b.t, os.WriteFile(filepath.Join(b.out, batch.SpecFile), before, 0o644))
			}
		}
	}
	edit := func(file string, change func(text []byte) []byte) func(b *manyBatch) error {
		return func(b *manyBatch) error {
			path := filepath.Join(b.out, file)
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, change(text), 0o644))
		}
	}
	for name, disturb := range map[string]func(b *manyBatch, args []string){
		"nothing":       func(*manyBatch, []string) {},
		"terminated":    signals(143, syscall.SIGTERM),
		"interrupted":   signals(130, os.Interrupt),
		"killed inside": signals(130, os.Interrupt, os.Interrupt),
		"killed":        signals(-1, syscall.SIGKILL),
		"stopped":       signals(60, syscall.SIGSTOP, syscall.SIGCONT),
		"two processes": func(b *manyBatch, args []string) {
			cmd, stderr := b.start(args...)
			b.awaitResults(1)
			// The second one waits for the lock of a killed process, so this must take
			// longer.
			must(b.t, cmd.Process.Signal(syscall.SIGSTOP))
			second, secondErr := b.start(args...)
			b.wantEnd(second, secondErr, 42, "another process runs a batch in this directory")
			must(b.t, cmd.Process.Signal(syscall.SIGCONT))
			b.wantEnd(cmd, stderr, 60, "")
		},
		"full disk": func(b *manyBatch, args []string) {
			must(b.t, errors.Join(os.Mkdir(b.out, 0o755), unix.Mount("tmpfs", b.out, "tmpfs", 0, "size=400k")))
			b.t.Cleanup(func() {
				if err := unix.Unmount(b.out, unix.MNT_DETACH); err != nil {
					b.t.Error(err)
				}
			})
			cmd, stderr := b.start(args...)
			b.wantEnd(cmd, stderr, 1, "no space left on device")
			remount(b, 0, "size=64m")
		},
		"read-only disk": func(b *manyBatch, args []string) {
			must(b.t, errors.Join(os.Mkdir(b.out, 0o755), unix.Mount("tmpfs", b.out, "tmpfs", 0, "")))
			b.t.Cleanup(func() {
				if err := unix.Unmount(b.out, unix.MNT_DETACH); err != nil {
					b.t.Error(err)
				}
			})
			remount(b, unix.MS_RDONLY, "")
			cmd, stderr := b.start(args...)
			b.wantEnd(cmd, stderr, 1, "read-only file system")
			remount(b, 0, "")
		},
		"results damaged": afterwards(edit(batch.ResultsFile, func(text []byte) []byte { return append([]byte("x"), text...) }), 60, "results.jsonl had 1 damaged lines"),
		"a trial removed": afterwards(func(b *manyBatch) error {
			results, err := batch.ReadResults(b.out)
			return errors.Join(err, os.RemoveAll(filepath.Join(b.out, batch.TrialsDir, results[1].Name)))
		}, 60, "attempt 1 runs again: its directory trials/task-"),
		"batch.json damaged": afterwards(edit(batch.SpecFile, func(text []byte) []byte { return text[:len(text)/2] }), 42, "batch.json is damaged: "),
		"another task":       afterwards(edit(batch.SpecFile, func(text []byte) []byte { return bytes.Replace(text, []byte("sha256:"), []byte("sha256:0"), 1) }), 42, "the results there are of another batch: task task-00000 was"),
		"batch.json removed": afterwards(func(b *manyBatch) error { return os.Remove(filepath.Join(b.out, batch.SpecFile)) }, 0, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, args := newManyBatch(t, faultTasks)
			b.slowDown()
			disturb(b, args)
			b.wantWhole(args...)
		})
	}
}

// TestBatchGradeKilled: a killed verification is continued, and one of other tests is
// kept as it is. Nothing of their sandboxes is left, and the batch's results don't
// change.
func TestBatchGradeKilled(t *testing.T) {
	t.Parallel()
	b, args := newManyBatch(t, faultTasks)
	b.slowDown()
	b.wantWhole(args...)
	grade := []string{"batch", "grade", "--backend", "gvisor", "--parallel", "1", b.out, filepath.Join(b.top, "tasks.jsonl")}
	graded := func() (dirs []string, lines int) {
		dirs, err := filepath.Glob(filepath.Join(b.out, gradesDir, "*"))
		must(t, err)
		for _, dir := range dirs {
			text, _ := os.ReadFile(filepath.Join(dir, batch.ResultsFile))
			lines += bytes.Count(text, []byte{'\n'})
		}
		return dirs, lines
	}
	kill := func(lines int) {
		cmd, stderr := b.start(grade...)
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			if _, n := graded(); n >= lines {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("no verdict: %s", stderr)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	kill(2)
	text, _ := b.run(0, grade...)
	dirs, lines := graded()
	if !strings.Contains(text, "8 verdicts are the same, 0 differ, 0 could not be had") || len(dirs) != 1 || lines != 2*faultTasks {
		t.Errorf("%d verdicts in %v\n%s", lines, dirs, text)
	}
	sent := filepath.Join(b.out, gradesDir, "20990101T000000.000000000") // verdicts and a state that somebody sent
	must(t, errors.Join(os.CopyFS(sent, os.DirFS(dirs[0])), os.Mkdir(filepath.Join(sent, stateDir), 0o700)))
	kill(4*faultTasks + 2)
	if _, err := os.Stat(filepath.Join(sent, stateDir)); err != nil {
		t.Errorf("a verification that was not begun here went on: %v", err)
	}
	must(t, os.RemoveAll(sent))
	tasks := filepath.Join(b.top, "tasks.jsonl")
	before, err := os.ReadFile(tasks)
	must(t, errors.Join(err, os.WriteFile(tasks, bytes.ReplaceAll(before, []byte("exit 0"), []byte("exit 3")), 0o644)))
	text, _ = b.run(60, grade...)
	dirs, lines = graded()
	if !strings.Contains(text, "4 verdicts are the same, 4 differ, 0 could not be had") || len(dirs) != 3 || lines < 4*faultTasks+2 {
		t.Errorf("%d verdicts in %v\n%s", lines, dirs, text)
	}
	for _, dir := range dirs {
		for _, name := range []string{stateDir, workDir, "running"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s is left in %s", name, dir)
			}
		}
	}
	must(t, errors.Join(os.WriteFile(tasks, before, 0o644), os.RemoveAll(filepath.Join(b.out, gradesDir))))
	b.wantWhole(args...)
}

// slowDown makes trials take a while. Half of them pass.
func (b *manyBatch) slowDown() {
	var lines strings.Builder
	for i := range faultTasks {
		fmt.Fprintf(&lines, `{"id":"task-%05d","prompt":"Do nothing.","verify":"sleep 0.1; exit %d","limits":{"memory_mb":64}}`+"\n", i, i%2)
	}
	must(b.t, os.WriteFile(filepath.Join(b.top, "tasks.jsonl"), []byte(lines.String()), 0o644))
}
