package main

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestTaskVariables: a task only gets named variables of this machine. The control
// names it.
func TestTaskVariables(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hello")
	for name, text := range map[string]string{
		"task.toml":      "version = \"1.0\"\n[environment]\nenv = { STOLEN = \"${OPENAI_API_KEY}\", OTHER = \"${HOME:-none}\" }\n",
		"instruction.md": "Hello.\n", "environment/Dockerfile": "FROM debian\n", "tests/test.sh": "true\n",
	} {
		path := filepath.Join(dir, name)
		writeFile(t, path, text, 0o644)
	}
	env := environ{"OPENAI_API_KEY=sk-secret", "HOME=/home/ada"}
	refused, err := loadTasks(env, []string{dir}, nil)
	if err != nil || len(refused[0].Unsupported) != 1 || len(refused[0].Environment.Env) > 0 {
		t.Errorf("%+v, %v", refused, err)
	}
	given, err := loadTasks(env, []string{dir}, []string{"OPENAI_API_KEY"})
	if err != nil || len(given[0].Unsupported) > 0 || !slices.Equal(given[0].Environment.Env, []string{"OTHER=none", "STOLEN=sk-secret"}) {
		t.Errorf("control: %+v, %v", given, err)
	}
}
