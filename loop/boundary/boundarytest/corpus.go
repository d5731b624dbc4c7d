package boundarytest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Collection is a public collection of prompt injections. It is not in this repository:
// CAISSON_CORPUS names a directory that has it in injections/OWNER+NAME.
type Collection struct {
	Repository string   `json:"repository"`
	Commit     string   `json:"commit"`
	Paths      []string `json:"paths"`
	// Texts counts the texts, and Marked those with a known phrase.
	Texts  int `json:"texts"`
	Marked int `json:"marked"`
}

//go:embed injections.json
var collections []byte

// Collections returns the collections of injections.json, with the expected counts.
func Collections(t *testing.T) []Collection {
	t.Helper()
	var all []Collection
	if err := json.Unmarshal(collections, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no collections")
	}
	return all
}

// ReadTexts returns a collection's distinct texts: files, their lines, and the strings
// in JSON. dir is the value of CAISSON_CORPUS.
func (c Collection) ReadTexts(t *testing.T, dir string) []string {
	t.Helper()
	if dir == "" {
		t.Fatal("CAISSON_CORPUS names no directory: docs/internal/corpus.md has what it must hold")
	}
	r := reader{seen: map[string]bool{}}
	for _, path := range c.Paths {
		root := filepath.Join(dir, "injections", strings.ReplaceAll(c.Repository, "/", "+"), path)
		err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if err == nil {
				r.addFile(data)
			}
			return err
		})
		if err != nil {
			t.Fatal(fmt.Errorf("%s at %s: %w", c.Repository, c.Commit, err))
		}
	}
	return r.texts
}

type reader struct {
	seen  map[string]bool
	texts []string
}

// addFile adds a file and its lines, except that JSON, in the file or a line, is
// replaced by its strings.
func (r *reader) addFile(data []byte) {
	var v any
	if json.Unmarshal(data, &v) == nil {
		r.addValue(v)
		return
	}
	r.add(string(data))
	for line := range strings.Lines(string(data)) {
		if json.Unmarshal([]byte(line), &v) == nil {
			r.addValue(v)
			continue
		}
		r.add(strings.TrimSpace(line))
	}
}

func (r *reader) addValue(v any) {
	switch v := v.(type) {
	case string:
		r.add(v)
	case []any:
		for _, e := range v {
			r.addValue(e)
		}
	case map[string]any:
		for key, e := range v {
			r.add(key)
			r.addValue(e)
		}
	}
}

func (r *reader) add(text string) {
	if len(text) > 15 && len(text) < 40_000 && !r.seen[text] {
		r.seen[text] = true
		r.texts = append(r.texts, text)
	}
}
