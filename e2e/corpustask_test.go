package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corpusTask is one task of testdata/corpus/tasks.json.
type corpusTask struct {
	Name string
	// Directory of Commit of Repository, on GitHub, is the task. In the corpus it
	// is the directory Name.
	Repository, Commit, Directory string
	// Base has the files that stand in for the images in FROM.
	Base map[string]string
	// Network is set if the Dockerfile installs packages.
	Network bool
	// User and Workdir are the image's. Finds are files of its WORKDIR, Copies
	// files of the task that its harness brings.
	User, Workdir string
	Finds, Copies []string
	// Command runs the task's tests. Want matches their output.
	Command, Want string
}

func readCorpus(t *testing.T) []corpusTask {
	t.Helper()
	return parse[[]corpusTask](t, readFile(t, filepath.Join("testdata", "corpus", "tasks.json")))
}

// TestCorpusTable holds docs/internal/corpus.md against the manifest.
func TestCorpusTable(t *testing.T) {
	data := readFile(t, "../docs/internal/corpus.md")
	rows := 0
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "| `") {
			rows++
		}
	}
	list := readCorpus(t)
	if rows != len(list) || rows < 5 {
		t.Errorf("%d rows for %d tasks", rows, len(list))
	}
	for _, task := range list {
		for _, want := range []string{"| `" + task.Name + "` |", task.Repository, task.Commit[:12], task.User, task.Workdir} {
			if !strings.Contains(string(data), want) {
				t.Errorf("the page lacks %q of task %s", want, task.Name)
			}
		}
		for _, file := range task.Base {
			if _, err := os.Stat(filepath.Join("testdata", "corpus", file)); err != nil {
				t.Error(err)
			}
		}
	}
}
