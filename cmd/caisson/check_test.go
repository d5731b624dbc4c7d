package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
)

// answersAfterWork returns turns that write a file and end with texts, one each.
func answersAfterWork(texts ...string) string {
	turns := "  - calls: [{tool: write_file, input: {path: made, content: \"27\\n\"}}]\n"
	for _, text := range texts {
		turns += "  - text: '" + text + "'\n"
	}
	return turns
}

// TestChecks runs tasks whose results are verified, or whose answers must have a form.
// A result that fails is not applied.
func TestChecks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount an overlay")
	}
	schema := filepath.Join(t.TempDir(), "schema.json")
	must(t, os.WriteFile(schema, []byte(`{"type":"object","required":["ok"],"properties":{"ok":{"type":"boolean"}}}`), 0o600))
	const good, bad = `{"ok": true}`, `{"ok": "yes"}`
	overlay := []string{"--apply", "--policy", "sandboxed"}
	verify := func(command string) []string { return []string{"--verify", command} }
	form := []string{"--output-schema", schema}
	for _, c := range []struct {
		name    string
		answers []string
		args    []string
		status  int
		stdout  string
		applied bool
		report  string // in report.json
	}{
		{"no check", []string{bad}, overlay, 0, bad + "\n", true, `"answered"`},
		{"verify passes", []string{bad}, append(verify("grep -q 27 made"), overlay...), 0, bad + "\n", true, `"passed": true`},
		{"verify fails", []string{bad}, append(verify("echo it is bad; exit 3"), overlay...), 60, bad + "\n", false, `"output": "it is bad\n"`},
		{"verify is killed", []string{bad}, append(verify("kill -9 $$"), overlay...), 60, bad + "\n", false, `"passed": false`},
		{"verify changes the result", []string{bad}, append(verify("echo 28 > made"), overlay...), 0, bad + "\n", true, `"passed": true`},
		{"verify in bind mode", []string{bad}, append(verify("grep -q 28 made"), "--policy", "sandboxed"), 60, bad + "\n", true, `"exit_code": 1`},
		{"form", []string{good}, append(form, overlay...), 0, good + "\n", true, `"answered"`},
		{"form at the second try", []string{bad, "```json\n\n    " + good + "\n\n    ```"}, append(form, overlay...), 0, good + "\n", true, `"turns": 2`},
		{"no form", []string{bad, "I can not."}, append(append(form, verify("exit 1")...), overlay...), 61, "", false, `"not JSON: invalid character 'I'`},
		{"form at the second try without calls", []string{bad, good}, append(append(form, "--max-tool-calls", "1"), overlay...), 0, good + "\n", true, `"turns": 2`},
		{"a limit", []string{bad}, append(overlay, "--max-rounds", "1"), 53, bad + "\n", false, `"reason": "limit"`},
		{"a limit and form", []string{good}, append(append(form, "--max-rounds", "1"), overlay...), 53, good + "\n", false, `"reason": "limit"`},
		{"a limit and no form", []string{bad}, append(append(form, "--max-rounds", "1"), overlay...), 53, "", false, `"reason": "limit"`},
		{"both", []string{good}, append(append(form, verify("true")...), overlay...), 0, good + "\n", true, `"passed": true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, answersAfterWork(c.answers...))
			file := filepath.Join(filepath.Dir(w.dir), "answer")
			if status, out, errs := w.callTask(append(c.args, "-o", file)...); status != c.status || out != c.stdout {
				t.Fatalf("status %d, want %d; standard output %q, want %q\n%s", status, c.status, out, c.stdout, errs)
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != c.stdout {
				t.Errorf("the answer file has %q, %v", got, err)
			}
			made, err := os.ReadFile(filepath.Join(w.dir, "made"))
			if c.applied != (err == nil) || err == nil && string(made) != "27\n" {
				t.Errorf("applied %t: %q, %v", c.applied, made, err)
			}
			report := readReport(t, w)
			if !strings.Contains(report, c.report) {
				t.Errorf("no %s in\n%s", c.report, report)
			}
		})
	}
}

func readReport(t *testing.T, w *world) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(filepath.Dir(w.dir), "home/.local/state/caisson/sessions/ses_*/report.json"))
	if err != nil || len(all) == 0 {
		t.Fatalf("reports: %v, %v", all, err)
	}
	slices.Sort(all)
	text, err := os.ReadFile(all[0])
	must(t, err)
	return string(text)
}

// TestVerifyIsInterrupted: a signal ends the verification, nothing is applied, and the
// exit status is the signal's.
func TestVerifyIsInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount an overlay")
	}
	w := newWorld(t, answersAfterWork("Done."))
	signals := make(chan os.Signal, 1)
	w.app.signals = signals
	w.app.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) {
		return &fakeBackend{name: s.Name, started: func(argv []string) {
			if argv[len(argv)-1] == "sleep 1000" {
				signals <- syscall.SIGINT
			}
		}}, nil
	}
	if status, out, errs := w.callTask("--apply", "--policy", "sandboxed", "--verify", "sleep 1000"); status != 130 || out != "" {
		t.Errorf("status %d, %q\n%s", status, out, errs)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "made")); err == nil {
		t.Error("the changes are applied")
	}
}

// TestReplayStrict: if strictness is requested or in CI, a replay whose tools return
// something else fails and lists the differences.
func TestReplayStrict(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount an overlay")
	}
	const turns = `
  - calls:
      - {tool: write_file, input: {path: made, content: x}}
      - {tool: shell, input: {command: "exit 3"}, expect: {exit_code: 0, contains: hello}}
  - text: Done.
`
	for _, c := range []struct {
		name    string
		env     []string
		args    []string
		status  int
		listed  []string
		applied bool
	}{
		{"by default", nil, nil, 0, []string{`"exit_code"`, `"contains"`}, true},
		{"strict", nil, []string{"--replay-strict"}, 1, []string{`"exit_code"`, `"contains"`, `"replay_failed": true`}, false},
		{"in CI", []string{"CI=true"}, nil, 1, []string{`"exit_code"`}, false},
		{"in CI but not", []string{"CI=true"}, []string{"--replay-strict=false"}, 0, []string{`"exit_code"`}, true},
		{"one is ignored", nil, []string{"--replay-strict", "--replay-ignore", "exit_code"}, 1, []string{`"contains"`}, false},
		{"both are", nil, []string{"--replay-strict", "--replay-ignore", "shell.exit_code,contains"}, 0, nil, true},
		{"those of another tool are", nil, []string{"--replay-strict", "--replay-ignore", "read_file.exit_code,contains"}, 1, []string{`"exit_code"`}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, turns)
			w.env = append(w.env, c.env...)
			file := filepath.Join(filepath.Dir(w.dir), "junit.xml")
			if status, _, errs := w.callTask(append([]string{"--apply", "--policy", "sandboxed", "--junit", file}, c.args...)...); status != c.status {
				t.Fatalf("status %d, want %d\n%s", status, c.status, errs)
			}
			if _, err := os.Stat(filepath.Join(w.dir, "made")); c.applied != (err == nil) {
				t.Errorf("applied %t: %v", c.applied, err)
			}
			var report runner.Report
			text := readReport(t, w)
			must(t, json.Unmarshal([]byte(text), &report))
			junit, err := os.ReadFile(file)
			must(t, err)
			for _, want := range c.listed {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in the report", want)
				}
			}
			if (len(report.Differences) == 0) != (c.listed == nil) || strings.Contains(string(junit), "<failure") != (c.status != 0) || strings.Contains(string(junit), "turn 1, call 2 (shell)") != (c.listed != nil) {
				t.Errorf("differences %v, JUnit\n%s", report.Differences, junit)
			}
		})
	}
}

// TestCheckFlags: senseless flags are refused before anything starts, and a run that
// can't begin is reported.
func TestCheckFlags(t *testing.T) {
	dir := t.TempDir()
	schema, file, summary, output := filepath.Join(dir, "schema"), filepath.Join(dir, "junit.xml"), filepath.Join(dir, "summary"), filepath.Join(dir, "output")
	must(t, os.WriteFile(schema, []byte(`{"$ref":"http://x"}`), 0o600))
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--verify-junit", "x"}, 2, "--verify"},
		{[]string{"--report", "gitlab"}, 2, "auto, github or none"},
		{[]string{"--report", "github"}, 2, "GITHUB_ACTIONS"},
		{[]string{"--replay-ignore", "colour"}, 2, "exit_code"},
		{[]string{"--best-of", "2", "--judge", "true", "--verify", "true"}, 2, "--judge"},
		{[]string{"--output-schema", filepath.Join(dir, "absent")}, 42, "no such file"},
		{[]string{"--output-schema", schema}, 42, "another document"},
		{[]string{"--output-schema", dir}, 42, "is a directory"},
		{[]string{"--junit", dir}, 42, "JUnit report"},
	} {
		w := newWorld(t, "  - text: x\n")
		if status, _, errs := w.callTask(c.args...); status != c.status || !strings.Contains(errs, c.want) {
			t.Errorf("%q: status %d, want %d: %s", c.args, status, c.status, errs)
		}
	}
	w := newWorld(t, "  - text: x\n")
	w.env = append(w.env, "GITHUB_ACTIONS=true", "GITHUB_STEP_SUMMARY="+summary, "GITHUB_OUTPUT="+output)
	status, _, errs := w.callTask("--output-schema", schema, "--junit", file)
	if status != 42 {
		t.Fatalf("status %d: %s", status, errs)
	}
	for name, want := range map[string]string{file: `<error type="not_started"`, summary: "## Caisson: failed", output: "\n42\n"} {
		if text, err := os.ReadFile(name); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s, %v", want, text, err)
		}
	}
	if !strings.Contains(errs, "\n::error title=caisson run::") {
		t.Errorf("no annotation in %s", errs)
	}
}
