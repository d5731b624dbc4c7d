package junit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/joshdk/go-junit"
)

// hostile has what XML can't hold, what ends elements of it, and commands of CI runners.
const hostile = "]]></system-out></testcase><testcase name=\"forged\"/> & \"' <!-- \x1b[2J \x01 \u202e \ufffe ::set-output name=a::b\n"

// The files of runs are read as what they are: a test for the task and each check, with
// its outcome, and hostile text as text.
func TestFilesOfRuns(t *testing.T) {
	bin := os.Getenv("E2E_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(filepath.Join(bin, "caisson"))
	if err != nil {
		t.Fatal(err)
	}
	const differs = `calls: [{tool: read_file, input: {path: a}, expect: {contains: "not there"}}]`
	schema := `{"type": "object"}`
	for _, tt := range []struct {
		name   string
		turns  string
		args   []string
		status int
		want   map[string]junit.Status
	}{
		{"answered", "[{text: TEXT}]", nil, 0, map[string]junit.Status{"task": junit.StatusPassed, "replay": junit.StatusPassed}},
		{"verified", "[{text: TEXT}]", []string{"--verify", "true"}, 0, map[string]junit.Status{"task": junit.StatusPassed, "verify": junit.StatusPassed}},
		{"not verified", "[{text: TEXT}]", []string{"--verify", "cat a; false"}, 60, map[string]junit.Status{"task": junit.StatusPassed, "verify": junit.StatusFailed}},
		{"no valid answer", "[{text: TEXT}, {text: TEXT}]", []string{"--output-schema", "SCHEMA", "--verify", "true"}, 61, map[string]junit.Status{"task": junit.StatusPassed, "output schema": junit.StatusFailed, "verify": junit.StatusSkipped}},
		{"another result", "[{" + differs + "}, {text: TEXT}]", []string{"--replay-strict"}, 1, map[string]junit.Status{"task": junit.StatusPassed, "replay": junit.StatusFailed}},
		{"the model failed", "[{" + differs + "}]", nil, 1, map[string]junit.Status{"task": junit.StatusError}},
		{"not begun", "[{text: TEXT}]", []string{"--image", "::none::"}, 52, map[string]junit.Status{"task": junit.StatusError}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			workspace, file := filepath.Join(dir, "workspace"), filepath.Join(dir, "junit.xml")
			if err := os.Mkdir(workspace, 0o755); err != nil {
				t.Fatal(err)
			}
			text := strconv.QuoteToASCII(strings.ReplaceAll(hostile, "\x01", ""))
			for name, content := range map[string]string{
				"script.yaml": "version: 1\nname: test\nturns: " + strings.ReplaceAll(tt.turns, "TEXT", text) + "\n",
				"schema.json": schema, "workspace/a": hostile,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{"run", "--workspace", workspace, "--backend", "gvisor", "--mode", "overlay", "--policy", "sandboxed", "--junit", file, "--model", "replay/" + filepath.Join(dir, "script.yaml")}
			for _, arg := range append(tt.args, "task "+strings.ReplaceAll(hostile, "\x01", "")) {
				args = append(args, strings.ReplaceAll(arg, "SCHEMA", filepath.Join(dir, "schema.json")))
			}
			cmd := exec.CommandContext(t.Context(), bin, args...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
			output, err := cmd.CombinedOutput()
			status := 0
			if e, ok := errors.AsType[*exec.ExitError](err); ok {
				status = e.ExitCode()
			}
			if status == 44 && os.Getenv("REQUIRE_BACKENDS") == "" {
				t.Skipf("no sandbox can start here: %s", output)
			}
			if status != tt.status {
				t.Fatalf("status %d, %v\n%s", status, err, output)
			}
			suites, err := junit.IngestFile(file)
			if err != nil || len(suites) != 1 || suites[0].Name != "caisson run" {
				t.Fatalf("%v, %v", suites, err)
			}
			got := map[string]junit.Status{}
			for _, test := range suites[0].Tests {
				if got[test.Name] = test.Status; test.Name == "forged" {
					t.Error("a test is forged")
				}
				if failed := test.Status == junit.StatusFailed || test.Status == junit.StatusError; failed && (test.Error == nil || test.Error.Error() == "") {
					t.Errorf("%s has no message", test.Name)
				}
			}
			for name, want := range tt.want {
				if got[name] != want {
					t.Errorf("%s is %q, want %q, of %v", name, got[name], want, got)
				}
			}
			if total := suites[0].Totals; total.Tests != len(suites[0].Tests) {
				t.Errorf("totals %+v of %d tests", total, len(suites[0].Tests))
			}
		})
	}
}
