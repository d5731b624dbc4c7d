//go:build corpus

package runner

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/boundary/boundarytest"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
)

// injectionTexts returns the files, lines and strings of JSON in the directory injections
// of CAISSON_CORPUS, once each.
func injectionTexts(t *testing.T) []string {
	t.Helper()
	dir := os.Getenv("CAISSON_CORPUS")
	if dir == "" {
		t.Fatal("CAISSON_CORPUS names no directory: docs/corpus.md has what it must hold")
	}
	var texts []string
	seen := map[string]bool{}
	add := func(text string) {
		if len(text) > 15 && len(text) < 40_000 && !seen[text] {
			seen[text] = true
			texts = append(texts, text)
		}
	}
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case string:
			add(v)
		case []any:
			for _, e := range v {
				visit(e)
			}
		case map[string]any:
			for _, e := range v {
				visit(e)
			}
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, "injections"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var v any
		if json.Unmarshal(data, &v) == nil {
			visit(v)
			return nil
		}
		add(string(data))
		for line := range strings.Lines(string(data)) {
			add(strings.TrimSpace(line))
		}
		return nil
	})
	if err != nil || len(texts) == 0 {
		t.Fatalf("%d texts: %v", len(texts), err)
	}
	return texts
}

// TestInjectionCorpus runs every text of public collections of prompt injections through
// the sources of text: files, the output of commands, and an instruction file; and through
// the wrappers of notes and of workers. Each stays in its wrapper, and no call is made
// beside those of the script.
func TestInjectionCorpus(t *testing.T) {
	texts := injectionTexts(t)
	marked := 0
	for start := 0; start < len(texts); start += 20 {
		batch := texts[start:min(start+20, len(texts))]
		var script strings.Builder
		for i := range batch {
			fmt.Fprintf(&script, "\n  - calls:\n      - {tool: read_file, input: {path: f%d}}\n      - {tool: shell, input: {command: c%d}}", i, i)
		}
		b := newBench(t, script.String()+"\n  - text: done\n")
		b.opts.InstructionFiles = true
		for i, text := range batch {
			b.file(fmt.Sprint("f", i), text)
			b.backend.Scripts[fmt.Sprint("c", i)] = fakesandbox.WriteText(text)
		}
		b.file("AGENTS.md", batch[0])
		model := &listening{Model: b.opts.Profiles[0].Model}
		b.opts.Profiles = []loop.Profile{{Model: model}}
		b.run(t.Context())
		results := 0
		for _, m := range model.sent {
			for _, block := range m.Blocks {
				if block.ToolResult == nil {
					if block.Text != nil && m.Role == loop.RoleUser && strings.HasPrefix(block.Text.Text, "The workspace has a file") && boundarytest.CountTags(block.Text.Text) != 2 {
						t.Errorf("an instruction file left its wrapper: %q", block.Text.Text)
					}
					continue
				}
				results++
				text := boundary.JoinText(block.ToolResult.Content)
				if !boundarytest.IsWrapped(text) {
					t.Errorf("a result left its wrapper: %q", text)
				}
				if strings.Contains(text, "\n[caisson] The output above") {
					marked++
				}
			}
		}
		if results != 2*len(batch) {
			t.Errorf("%d results of %d calls", results, 2*len(batch))
		}
		for _, text := range batch {
			if note := string(boundary.Wrap(text)); !boundarytest.IsWrapped(note) {
				t.Errorf("a note left its wrapper: %q", note)
			}
			if worker := boundary.WrapForWorker(text); !boundarytest.IsWrapped(string(worker)) {
				t.Errorf("a worker's text left its wrapper: %q", worker)
			}
		}
	}
	t.Logf("%d texts, %d of %d results marked", len(texts), marked, 2*len(texts))
}
