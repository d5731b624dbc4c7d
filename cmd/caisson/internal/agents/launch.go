package agents

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Run has the values of one run.
type Run struct {
	// Instruction is the task. Interactive runs have none.
	Instruction string
	Interactive bool
	// Model is the name of the model that the agent asks for. BaseURL has no slash at
	// its end.
	Model, BaseURL string
	// Workspace and Home are directories in the sandbox.
	Workspace, Home string
}

// Launch is how an agent starts in the sandbox.
type Launch struct {
	Argv  []string
	Stdin string
	// Env are variables as NAME=value, sorted.
	Env []string
	// Files are to be in the home directory before the agent starts, sorted by path.
	Files []File
}

// File is a file of an agent. Path is relative to the home directory.
type File struct{ Path, Content string }

// maxArgument is the kernel's bound on one argument (MAX_ARG_STRLEN), with its NUL.
const maxArgument = 128 << 10

// Launch returns how the agent starts. No value passes through a shell, and values
// aren't searched for placeholders again.
func (a *Agent) Launch(p Program, r Run) (Launch, error) {
	argv := a.Command
	if r.Interactive {
		if argv = a.Interactive; argv == nil {
			return Launch{}, fmt.Errorf("the agent %s has no interactive command", a.Name)
		}
		r.Instruction = ""
	}
	plain, quoted := r.replacer(func(s string) string { return s }), r.replacer(escapeJSON)
	var out Launch
	if p.Node != "" {
		out.Argv = append(out.Argv, p.Node)
	}
	out.Argv = append(out.Argv, p.Path)
	for _, arg := range argv[1:] {
		arg = plain.Replace(arg)
		switch {
		case len(arg) >= maxArgument:
			return Launch{}, fmt.Errorf("an argument of the agent %s has %d bytes, more than the %d that a program can be given", a.Name, len(arg), maxArgument-1)
		case strings.ContainsRune(arg, 0):
			return Launch{}, fmt.Errorf("an argument of the agent %s has a NUL", a.Name)
		}
		out.Argv = append(out.Argv, arg)
	}
	if a.Stdin != nil && !r.Interactive {
		out.Stdin = plain.Replace(*a.Stdin)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		out.Env = append(out.Env, name+"="+plain.Replace(a.Env[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Files)) {
		replacer := plain
		if ext := path.Ext(name); ext == ".json" || ext == ".toml" {
			replacer = quoted
		}
		out.Files = append(out.Files, File{name, replacer.Replace(a.Files[name])})
	}
	return out, nil
}

func (r *Run) replacer(escape func(string) string) *strings.Replacer {
	return strings.NewReplacer(
		"{{instruction}}", escape(r.Instruction), "{{model}}", escape(r.Model), "{{base_url}}", escape(r.BaseURL),
		"{{workspace}}", escape(r.Workspace), "{{home}}", escape(r.Home),
	)
}

// escapeJSON escapes a text for a string of JSON, or a basic string of TOML.
func escapeJSON(s string) string {
	text, _ := json.Marshal(s) // a string has no error
	// TOML has no bare DEL in strings.
	return strings.ReplaceAll(string(text[1:len(text)-1]), "\x7f", `\u007f`)
}

// Archive returns files as a tar archive, for runner.UnpackCommand in the home directory.
func Archive(files []File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{".": true}
	for _, f := range files {
		for _, dir := range parents(f.Path) {
			if made[dir] {
				continue
			}
			made[dir] = true
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o700}); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o600, Size: int64(len(f.Content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(f.Content)); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}

// parents returns the directories above a relative path, the outermost first.
func parents(name string) []string {
	var out []string
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}
