//go:build corpus

package skill

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

// collection is a public repository with skills, and what is found there.
type collection struct {
	Repository string `json:"repository"`
	Commit     string `json:"commit"`
	// Files counts the SKILL.md, Refused those that can't be used, by their reasons.
	Files   int      `json:"files"`
	Refused []string `json:"refused"`
	// Declared counts those with allowed-tools. Their names are Mapped to tools of ours,
	// or Dropped, each named once.
	Declared int      `json:"declared"`
	Mapped   []string `json:"mapped"`
	Dropped  []string `json:"dropped"`
}

// ownTools are the names of the built-in tools.
func ownTools() []tools.Name {
	return []tools.Name{
		"apply_patch", "delete_file", "fetch", "glob", "grep", "list_dir", "load_skill", "patch_file", "read_file", "shell", "shell_kill", "shell_output", "verify", "write_file",
	}
}

// TestCollections reads the skills of testdata/collections.json, of which CAISSON_CORPUS
// has each in skills/OWNER+NAME.
func TestCollections(t *testing.T) {
	data, err := os.ReadFile("testdata/collections.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []collection
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, want := range list {
		t.Run(want.Repository, func(t *testing.T) {
			dir := filepath.Join(os.Getenv("CAISSON_CORPUS"), "skills", strings.ReplaceAll(want.Repository, "/", "+"))
			got := collection{Repository: want.Repository, Commit: want.Commit, Refused: []string{}, Mapped: []string{}, Dropped: []string{}}
			err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() || e.Name() != FileName {
					return err
				}
				return got.addFile(dir, path)
			})
			if err != nil {
				t.Fatalf("CAISSON_CORPUS must have github.com/%s at %s in %s: %v", want.Repository, want.Commit, dir, err)
			}
			slices.Sort(got.Refused)
			got.Mapped, got.Dropped = sortedOnce(got.Mapped), sortedOnce(got.Dropped)
			if diff := cmp.Diff(want, got); diff != "" {
				text, _ := json.Marshal(got)
				t.Errorf("-want +got:\n%s\n%s", diff, text)
			}
		})
	}
}

func sortedOnce(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

func (c *collection) addFile(dir, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c.Files++
	doc, err := Parse(text, filepath.Base(filepath.Dir(path)))
	if err != nil {
		rel, _ := filepath.Rel(dir, path)
		c.Refused = append(c.Refused, rel+": "+err.Error())
		return nil
	}
	if !doc.Declares {
		return nil
	}
	c.Declared++
	for _, written := range doc.AllowedTools {
		name := parseEntry(written).name
		names, _, _ := Resolve([]string{written}, ownTools())
		if len(names) == 0 {
			c.Dropped = append(c.Dropped, name)
		} else {
			c.Mapped = append(c.Mapped, name+" "+string(names[0]))
		}
	}
	return nil
}
