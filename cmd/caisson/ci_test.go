package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci/citest"
)

// runnerCommands are commands for CI runners, in the form of quoted YAML.
const runnerCommands = `x\n::set-output name=verdict::pass\n \t::add-mask::e\r::error::x\n##[set-output name=a]b ##vso[task.setvariable variable=PATH]/evil\n##teamcity[buildStatus text='ok']\n`

// runnerTurns have them in everything that a model and a sandbox can write to a log.
var runnerTurns = `
  - text: "` + runnerCommands + `"
    calls:
      - {tool: shell, input: {command: "printf '` + strings.ReplaceAll(strings.ReplaceAll(runnerCommands, `\`, `\\`), "'", "") + `'"}}
      - {tool: write_file, input: {path: "##[warning]a ##vso[x.y]", content: "` + runnerCommands + `"}}
  - calls:
      - {tool: "::error::x", input: {}}
      - {tool: read_file, input: {path: "::error::y\n::error::x"}}
  - text: "` + runnerCommands + `"
`

// TestCIRunnersObeyNothing is acceptance case 108: commands for CI runners in texts of
// models, programs, files and names reach no runner through any command of caisson. The
// control is the same run outside of CI.
func TestCIRunnersObeyNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount an overlay")
	}
	for _, system := range []string{"GITHUB_ACTIONS=true", "TF_BUILD=True", "TEAMCITY_VERSION=2026.1", "CONTROL=x"} {
		t.Run(system, func(t *testing.T) {
			w := newWorld(t, runnerTurns)
			w.env = append(w.env, system)
			control, obeyed := system == "CONTROL=x", 0
			call := func(args ...string) string {
				t.Helper()
				var out, errs bytes.Buffer
				w.app.stdout, w.app.stderr = &out, &errs
				status := run(t.Context(), args, w.env, w.app)
				for _, stream := range []string{out.String(), errs.String(), out.String() + errs.String(), errs.String() + out.String()} {
					var r citest.GitHub
					r.Read(stream)
					lines := append(citest.Others(stream), r.Obeyed...)
					if obeyed += len(lines); len(lines) > 0 && !control {
						t.Errorf("%v (status %d): a runner obeys %q of\n%s", args, status, lines, stream)
					}
				}
				lines := strings.Split(strings.TrimSuffix(errs.String(), "\n"), "\n")
				token, stopped := strings.CutPrefix(lines[0], "::stop-commands::")
				if stopped != (system == "GITHUB_ACTIONS=true" && out.Len()+errs.Len() > 0) || stopped && lines[len(lines)-1] != "::"+token+"::" {
					t.Errorf("%v: standard error is\n%s", args, errs.String())
				}
				return out.String()
			}
			answer := filepath.Join(filepath.Dir(w.dir), "answer")
			patch := filepath.Join(filepath.Dir(w.dir), "patch")
			text := call(append(w.args, "--policy", "sandboxed", "-o", answer, "--patch-out", patch, "task")...)
			if !strings.Contains(text, "verdict") {
				t.Errorf("the answer is not on standard output: %q", text)
			}
			for _, file := range []string{answer, patch} {
				got, err := os.ReadFile(file)
				if err != nil || !strings.Contains(string(got), "::set-output name=verdict::pass\n") || !strings.Contains(string(got), "##[set-output") {
					t.Errorf("%s is not as it was: %q, %v", file, got, err)
				}
			}
			records := call(append(w.args, "--policy", "sandboxed", "--mode", "overlay", "--json", "task")...)
			sessions, err := filepath.Glob(filepath.Join(filepath.Dir(w.dir), "home/.local/state/caisson/sessions/ses_*"))
			if err != nil || len(sessions) != 2 {
				t.Fatalf("sessions %q, %v", sessions, err)
			}
			id := filepath.Base(sessions[1])
			stored, err := os.ReadFile(filepath.Join(sessions[1], "trace.jsonl"))
			if err != nil || !strings.Contains(string(stored), "::set-output") {
				t.Fatalf("records: %v", err)
			}
			want := strings.Split(string(stored), "\n")
			for i, line := range strings.Split(records, "\n") {
				var a, b any
				if line == "" {
					continue
				}
				if err := json.Unmarshal([]byte(line), &a); err != nil {
					t.Fatalf("record %d: %v", i, err)
				}
				if err := json.Unmarshal([]byte(want[i]), &b); err != nil || !equalJSON(t, a, b) {
					t.Errorf("record %d on standard output is another one: %s", i, line)
				}
			}
			for _, args := range [][]string{
				{"tools", "call", "--workspace", w.dir, "--backend", "gvisor", "--policy", "sandboxed", "shell", `{"command":"printf 'a\n::error::b\n##[error]c\n'"}`},
				{"tools", "call", "--json", "--workspace", w.dir, "--backend", "gvisor", "--policy", "sandboxed", "shell", `{"command":"printf 'a\n::error::b\n##[error]c\n'"}`},
				{"trace", "ls"},
				{"trace", "show", id},
				{"trace", "show", "--full", id},
				{"trace", "show", "--json", id},
				{"trace", "export", id},
				{"trace", "export", "--format", "atif", id},
				{"trace", "html", id},
				{"diff", id},
				{"diff", "--stat", id},
				{"diff", "--json", id},
				{"apply", "--dry-run", id},
				{"apply", "--json", id},
				{"sandbox", "ls"},
				{"approvals", "ls"},
				{"doctor"},
				{"version"},
				{"::error::x"},
				{"run", "--::error::x"},
			} {
				call(args...)
			}
			if control && obeyed == 0 {
				t.Error("control: no runner obeys anything outside of CI")
			}
		})
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	must(t, err)
	y, err := json.Marshal(b)
	must(t, err)
	return bytes.Equal(x, y)
}

// TestSignalsEndCommandsThatWaitForNone: the first signal ends a command that handles
// none, with its last line on standard error. A command that handles signals gets it.
func TestSignalsEndCommandsThatWaitForNone(t *testing.T) {
	signals, ended := make(chan os.Signal, 1), make(chan int, 1)
	var errs bytes.Buffer
	d := app{signals: signals, exit: func(status int) { ended <- status }, stdout: &bytes.Buffer{}, stderr: &errs, terminal: func(any) bool { return false }, environ: environ{"GITHUB_ACTIONS=true"}}
	guard := guardOutput(&d)
	if _, err := d.stderr.Write([]byte("half a line")); err != nil || guard == nil {
		t.Fatal(err)
	}
	stop := handleSignals(&d)
	signals <- syscall.SIGTERM
	if status := <-ended; status != 128+15 || !strings.Contains(errs.String(), "half a line\n::") || !strings.HasSuffix(errs.String(), "::\n") {
		t.Errorf("status %d, %q", status, errs.String())
	}
	stop()

	d.signals, d.exit = signals, func(status int) { t.Errorf("ended with %d", status) }
	stop = handleSignals(&d)
	defer stop()
	got := d.takeSignals()
	signals <- syscall.SIGINT
	if sig := <-got; sig != syscall.SIGINT {
		t.Errorf("got %v", sig)
	}
}
