package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestGitHubAction: the action of the examples installs only what has its digest, passes
// values on as they are, and writes none into a script.
func TestGitHubAction(t *testing.T) {
	source, err := filepath.Abs(filepath.Join("..", "examples", "github"))
	if err != nil {
		t.Fatal(err)
	}
	var action struct {
		Runs struct {
			Steps []struct {
				Run string            `yaml:"run"`
				Env map[string]string `yaml:"env"`
			} `yaml:"steps"`
		} `yaml:"runs"`
	}
	text, err := os.ReadFile(filepath.Join(source, "action.yml"))
	if err == nil {
		err = yaml.Unmarshal(text, &action)
	}
	if err != nil || len(action.Runs.Steps) != 2 {
		t.Fatalf("%d steps, %v", len(action.Runs.Steps), err)
	}
	for _, s := range action.Runs.Steps {
		if strings.Contains(s.Run, "${{") || len(s.Env) == 0 {
			t.Errorf("a value is written into the script %q", s.Run)
		}
	}
	dir := t.TempDir()
	program := []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
	file := filepath.Join(dir, "download")
	if err := os.WriteFile(file, program, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	installed := filepath.Join(dir, "bin", "caisson")
	script := func(name string, env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(source, name))
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	if out, err := script("install.sh", "URL=file://"+file, "SHA256="+strings.Repeat("0", 64), "DEST="+filepath.Dir(installed)); err == nil {
		t.Errorf("another file is installed: %s", out)
	}
	if _, err := os.Stat(installed); err == nil {
		t.Error("a file with another digest is left")
	}
	if out, err := script("install.sh", "URL=file://"+file, "SHA256="+hex.EncodeToString(sum[:]), "DEST="+filepath.Dir(installed)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A program called gh stands for GitHub's: it records its arguments and refuses on demand.
	gh := filepath.Join(dir, "gh")
	if err := os.WriteFile(gh, []byte("#!/bin/sh\nprintf '%s ' \"$@\"\n[ \"$GH_TOKEN\" = good ]\n"), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	for token, want := range map[string]bool{"good": true, "bad": false} {
		dest := filepath.Join(dir, "attested-"+token)
		out, err := script("install.sh", "PATH="+dir+":"+os.Getenv("PATH"), "URL=file://"+file, "SHA256="+hex.EncodeToString(sum[:]), "DEST="+dest, "ATTESTED_BY=own er/$(touch pwned)", "GH_TOKEN="+token)
		_, missing := os.Stat(filepath.Join(dest, "caisson"))
		if (err == nil) != want || (missing == nil) != want || out != "attestation verify "+dest+"/caisson.download --repo own er/$(touch pwned) " {
			t.Errorf("token %s: %v, %v: %s", token, err, missing, out)
		}
	}
	const hostile = `a"; touch pwned; $(touch pwned) '--apply`
	out, err := script("run.sh", "CAISSON="+installed, "TASK_FILE=task.md", "WORKSPACE=w", "JUNIT=j.xml", "MODEL=", "VERIFY="+hostile, "APPLY=true")
	want := "run\n--workspace\nw\n--mode\noverlay\n-f\ntask.md\n--junit\nj.xml\n--verify\n" + hostile + "\n--apply\n"
	if err != nil || out != want {
		t.Errorf("%v: arguments %q, want %q", err, out, want)
	}
	if matches, _ := filepath.Glob(filepath.Join(source, "pwned")); len(matches) > 0 {
		t.Error("a value was run")
	}
}
