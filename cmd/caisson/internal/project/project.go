// Package project recognises the build tools of a workspace by the names of its files.
// It opens no build file: a workspace is hostile data.
package project

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Tool is a build tool or package manager.
type Tool struct {
	Name string
	// Programs are those that the tool's commands need.
	Programs []string
	// Cache is the tool's cache, as in the setting caches, or "".
	Cache string
	// Preset is the egress preset of its registries, or "".
	Preset string

	files []string
}

var tools = []Tool{
	{Name: "Go", files: []string{"go.mod", "go.work"}, Programs: []string{"go"}, Cache: "go", Preset: "go"},
	{Name: "Node.js", files: []string{"package.json"}, Programs: []string{"node", "npm"}, Cache: "npm", Preset: "npm"},
	{Name: "Yarn", files: []string{"yarn.lock"}, Programs: []string{"yarn"}, Cache: "~/.cache/yarn", Preset: "npm"},
	{Name: "pnpm", files: []string{"pnpm-lock.yaml"}, Programs: []string{"pnpm"}, Cache: "~/.local/share/pnpm/store", Preset: "npm"},
	{Name: "Python", files: []string{"pyproject.toml", "requirements.txt", "setup.py"}, Programs: []string{"python3"}, Cache: "pip", Preset: "pip"},
	{Name: "uv", files: []string{"uv.lock"}, Programs: []string{"uv"}, Cache: "pip", Preset: "pip"},
	{Name: "Poetry", files: []string{"poetry.lock"}, Programs: []string{"poetry"}, Cache: "~/.cache/pypoetry", Preset: "pip"},
	{Name: "Rust", files: []string{"Cargo.toml"}, Programs: []string{"cargo", "rustc"}, Preset: "cargo"},
	{Name: "Maven", files: []string{"pom.xml"}, Programs: []string{"java", "mvn"}, Cache: "maven", Preset: "maven"},
	{Name: "Gradle", files: []string{"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"}, Programs: []string{"java", "gradle"}, Cache: "~/.gradle", Preset: "maven"},
}

// wrappers maps a program to the workspace's script that replaces it.
var wrappers = map[string]string{"mvn": "mvnw", "gradle": "gradlew"}

// Files returns the file names that identify tools.
func Files() []string {
	var names []string
	for _, t := range tools {
		names = append(names, t.files...)
	}
	return names
}

// Found is a tool that a workspace uses.
type Found struct {
	Tool
	// File is the file that identified it, relative to the workspace. It may contain
	// control characters. Dir is its directory, "." for the workspace.
	File, Dir string
	Vendored  bool
}

const maxEntries = 20_000

// skipped are directories whose projects are not the workspace's own: dependencies,
// build output, test data.
var skipped = []string{"node_modules", "vendor", "target", "testdata", "third_party"}

// Find returns the tools of a workspace, at its top and one directory below, each once.
// It follows no symlinks. partial is set if there were too many entries.
func Find(ctx context.Context, dir *os.File, hostPath string) (found []Found, partial bool, err error) {
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{HostPath: hostPath, MaxEntries: maxEntries, Deadline: 10 * time.Second})
	if err != nil {
		return nil, false, err
	}
	list, err := r.List(ctx, ".", 2)
	if err != nil {
		return nil, false, err
	}
	files, dirs := map[string]bool{}, map[string]bool{}
	for _, e := range list.Entries {
		files[e.Path] = e.Type == workspace.TypeFile
		dirs[e.Path] = e.Type == workspace.TypeDir
	}
	for _, depth := range []int{1, 2} {
		for _, e := range list.Entries {
			base, at := path.Base(e.Path), path.Dir(e.Path)
			i := slices.IndexFunc(tools, func(t Tool) bool { return slices.Contains(t.files, base) })
			known := slices.ContainsFunc(found, func(f Found) bool { return i >= 0 && f.Name == tools[i].Name })
			if i < 0 || known || e.Depth != depth || e.Type != workspace.TypeFile || strings.HasPrefix(e.Path, ".") || slices.Contains(skipped, at) {
				continue
			}
			f := Found{Tool: tools[i], File: e.Path, Dir: at}
			f.Vendored = dirs[path.Join(at, "vendor")] && slices.Contains([]string{"Go", "Rust"}, f.Name)
			f.Programs = slices.DeleteFunc(slices.Clone(f.Programs), func(name string) bool { return wrappers[name] != "" && files[path.Join(at, wrappers[name])] })
			found = append(found, f)
		}
	}
	return found, list.Truncated || len(list.Incomplete) > 0, nil
}
