//go:build corpus

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
)

// corpusSource is a repository with tasks for batches. In the corpus it is the directory
// batch/OWNER+NAME.
type corpusSource struct {
	Repository, Commit string
	// Tasks are all tasks in it, and Supported those that a batch would start.
	Tasks, Supported int
	// Base has the files that stand in for the images in FROM.
	Base map[string]string
	// Run is a pattern of directories of tasks that are run, "" for none.
	Run string
	// Staged are tasks that are not run: their tests leave files for those of the next
	// step, which a fresh verifier does not keep.
	Staged []string
}

func readSources(t *testing.T) []corpusSource {
	t.Helper()
	return parse[[]corpusSource](t, readFile(t, filepath.Join("testdata", "corpus", "batch.json")))
}

func (s corpusSource) dir() string {
	return filepath.Join(os.Getenv("CAISSON_CORPUS"), "batch", strings.ReplaceAll(s.Repository, "/", "+"))
}

// TestCorpusTasks reads every task of the sources, and counts those that are supported.
func TestCorpusTasks(t *testing.T) {
	quoted := regexp.MustCompile(`"[^"]*"|/\S+`)
	for _, s := range readSources(t) {
		tasks, supported, reasons := 0, 0, map[string]int{}
		err := filepath.WalkDir(s.dir(), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "task.toml" && d.Name() != "task.yaml" {
				return err
			}
			list, err := task.Load([]string{filepath.Dir(path)}, task.Options{Lookup: func(string) (string, bool) { return "x", true }})
			if err != nil {
				return err
			}
			tasks++
			if len(list[0].Unsupported) == 0 {
				supported++
			}
			for _, reason := range list[0].Unsupported {
				reasons[quoted.ReplaceAllString(reason, "…")]++
			}
			return nil
		})
		t.Logf("%s: %d tasks, %d supported, %v", s.Repository, tasks, supported, reasons)
		if err != nil || tasks != s.Tasks || supported != s.Supported {
			t.Errorf("%s: want %d tasks, %d supported: %v", s.Repository, s.Tasks, s.Supported, err)
		}
	}
}

// TestCorpusBatch runs tasks of the sources by a batch: the oracle gets the full reward, and
// nop none. An image that can't be built is reported, and no verdict.
func TestCorpusBatch(t *testing.T) {
	for _, s := range readSources(t) {
		if s.Run == "" {
			continue
		}
		for name, file := range s.Base {
			runDocker(t, "build", "--quiet", "--tag", name, "--file", filepath.Join("testdata", "corpus", file), filepath.Join("testdata", "corpus"))
		}
		dirs, err := filepath.Glob(filepath.Join(s.dir(), s.Run))
		dirs = slices.DeleteFunc(dirs, func(dir string) bool { return slices.Contains(s.Staged, filepath.Base(dir)) })
		if err != nil || len(dirs) == 0 {
			t.Fatalf("%s: no tasks, %v", s.Repository, err)
		}
		needBackend(t, "runc")
		m := newMachine(t)
		m.patience = 12 * time.Hour
		args := slices.Concat([]string{"batch", "--out", m.batchDir("out"), "--backend", "runc", "--agent", batch.Oracle, "--agent", batch.Nop, "--skip-unsupported"}, dirs)
		out := m.start(t, args...).wait(t, m.patience)
		list, err := batch.ReadResults(m.batchDir("out"))
		if err != nil {
			t.Fatal(err, out.stderr)
		}
		passed, none, infrastructure := 0, 0, 0
		for _, r := range list {
			switch {
			case r.Outcome == batch.Infrastructure:
				infrastructure++
				t.Logf("%s, %s: %s: %.300s", r.Task, r.Agent, r.Class, r.Cause)
			case r.Agent == batch.Oracle && r.Outcome == batch.Passed:
				passed++
			case r.Agent == batch.Nop && r.Outcome == batch.Failed && (r.Reward == nil || *r.Reward == 0):
				none++
			default:
				t.Errorf("%s, %s: %s %q, %s", r.Task, r.Agent, r.Outcome, r.Class, r.Cause)
			}
		}
		t.Logf("%s: %d tasks, full reward for the oracle on %d, none for nop on %d, %d trials failed by their images", s.Repository, len(dirs), passed, none, infrastructure)
		if passed == 0 || passed != none {
			t.Errorf("%s: the oracle passed %d, nop failed %d", s.Repository, passed, none)
		}
	}
}
