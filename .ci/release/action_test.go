package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// action is the part of action.yml that tests need.
type action struct {
	Inputs map[string]struct {
		Default string `yaml:"default"`
	} `yaml:"inputs"`
	Runs struct {
		Steps []struct {
			Run  string            `yaml:"run"`
			Uses string            `yaml:"uses"`
			Env  map[string]string `yaml:"env"`
		} `yaml:"steps"`
	} `yaml:"runs"`
}

func readAction(t *testing.T) action {
	t.Helper()
	var a action
	text, err := os.ReadFile("../../action.yml")
	if err == nil {
		err = yaml.Unmarshal(text, &a)
	}
	if err != nil || len(a.Runs.Steps) != 3 || a.Runs.Steps[2].Uses == "" {
		t.Fatalf("%d steps, %v", len(a.Runs.Steps), err)
	}
	return a
}

var expression = regexp.MustCompile(`^\$\{\{ (\w+)\.(\S+) \}\}$`)

// script returns what a runner runs: the steps' scripts with their variables.
func (a action) script(t *testing.T, inputs map[string]string) string {
	t.Helper()
	var script strings.Builder
	for _, s := range a.Runs.Steps {
		if s.Run == "" {
			continue
		}
		script.WriteString("(\n")
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			value := s.Env[name]
			m := expression.FindStringSubmatch(value)
			switch {
			case m == nil:
				t.Fatalf("%s is %q", name, value)
			case m[1] == "inputs":
				input, ok := a.Inputs[m[2]]
				if value, ok = inputs[m[2]]; !ok {
					value = input.Default
				}
				value = quote(value)
			case m[2] == "token":
				value = "secret"
			default: // steps.STEP.outputs.NAME
				value = fmt.Sprintf(`"$(sed -n 's/^%s=//p' "$GITHUB_OUTPUT")"`, m[2][strings.LastIndex(m[2], ".")+1:])
			}
			fmt.Fprintf(&script, "export %s=%s\n", name, value)
		}
		fmt.Fprintf(&script, "sh -ec %s\n)\n", quote(s.Run))
	}
	return script.String()
}

// quote quotes a text for a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// TestActionValues: the action passes values on as they are, and writes none into a script. It runs nothing that gh
// refuses.
func TestActionValues(t *testing.T) {
	a := readAction(t)
	for _, s := range a.Runs.Steps {
		if strings.Contains(s.Run, "${{") {
			t.Errorf("a value is written into the script %q", s.Run)
		}
	}
	const hostile = `a"; touch pwned; $(touch pwned) '--apply`
	inputs := map[string]string{"attested-by": "", "task-file": "task.md"}
	for name := range a.Inputs {
		if _, ok := inputs[name]; !ok {
			inputs[name] = hostile
		}
	}
	inputs["apply"] = "true"
	for attested, want := range map[string]bool{"": true, "good/" + hostile: true, "bad/" + hostile: false} {
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		// Programs that stand for install.sh and for GitHub's gh.
		for name, text := range map[string]string{
			"action/install.sh": `mkdir -p "$PREFIX/bin"
				printf '#!/bin/sh\nprintf "%%s\\n" "$@"\nexit 7\n' >"$PREFIX/bin/caisson"
				chmod 755 "$PREFIX/bin/caisson"
				printf '%s\n' "$CAISSON_VERSION" "$CAISSON_URL" "$CAISSON_KEY"`,
			"bin/gh": "#!/bin/sh\nprintf '%s\\n' \"$@\"\ncase $6$5 in *bad*) exit 1;; esac\n",
		} {
			if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at(name), []byte(text), 0o700); err != nil { //nolint:gosec // it is run
				t.Fatal(err)
			}
		}
		inputs["attested-by"] = attested
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", a.script(t, inputs))
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + at("bin") + ":" + os.Getenv("PATH"), "RUNNER_TEMP=" + at("temp"), "GITHUB_ACTION_PATH=" + at("action"), "GITHUB_OUTPUT=" + at("outputs")}
		out, err := cmd.CombinedOutput()
		lines := []string{hostile, hostile, at("action/caisson.asc")}
		if attested != "" {
			lines = append(lines, "attestation", "verify", at("temp/caisson/bin/caisson"), "--repo", attested)
		}
		status := 1
		if want {
			status = 7
			results := at("temp/caisson-results") + "/"
			lines = append(lines, "run", "-f", "task.md", "--workspace", hostile, "--policy", hostile, "--timeout", hostile, "--patch-out", results+"changes.patch",
				"--junit", results+"junit.xml", "-o", results+"answer.md", "--model", hostile, "--max-cost-usd", hostile, "--verify", hostile, "--verify-junit", hostile, "--apply")
		}
		if got := string(out); !strings.HasPrefix(got, strings.Join(lines, "\n")+"\n") || !want && strings.Contains(got, "--patch-out") || cmd.ProcessState.ExitCode() != status {
			t.Errorf("attested by %q: %v, want status %d: %s", attested, err, status, got)
		}
		for _, pattern := range []string{"pwned", "*/pwned"} {
			if matches, err := filepath.Glob(at(pattern)); err != nil || len(matches) > 0 {
				t.Errorf("a value was run: %q, %v", matches, err)
			}
		}
	}
}
