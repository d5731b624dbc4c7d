package replay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openRecording(t *testing.T, name, content string, o Options) (*Model, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(path, o)
}

// fixedResults is a dispatcher with one result per tool.
type fixedResults map[tools.Name]tools.Result

func (f fixedResults) Definitions() []tools.Definition {
	return []tools.Definition{{Name: "shell"}, {Name: "read_file"}}
}

func (f fixedResults) Round(_ context.Context, calls []tools.Call) ([]tools.Result, error) {
	var out []tools.Result
	for _, c := range calls {
		r := f[c.Name]
		r.CallID = c.ID
		if c.InputError != "" {
			r.Content, r.IsError = []tools.Block{{Text: c.InputError}}, true
		}
		out = append(out, r)
	}
	return out, nil
}

func textResult(text string) tools.Result { return tools.Result{Content: []tools.Block{{Text: text}}} }

// playTurn plays a recording in the real loop. It also returns the deltas' text.
func playTurn(t *testing.T, m *Model, d fixedResults) (loop.Outcome, string) {
	t.Helper()
	return wiretest.RunTurn(t, loop.Options{
		Profiles: []loop.Profile{{Model: m}}, Dispatcher: d, Messages: []loop.Message{loop.NewText(loop.RoleUser, "Do it.")},
	})
}

const greeting = `version: 1
name: greeting
task: Make the test pass.
turns:
  - text: I will run the test first.
    calls:
      - tool: shell
        input: {command: sh test.sh, timeout_seconds: 5}
        expect:
          exit_code: 1
          contains: FAIL
          error: true
      - tool: read_file
        input:
          path: greet.sh
        expect:
          contains: [hello, world]
          not_contains: panic
  - text: |
      Fixed.
`

func TestScript(t *testing.T) {
	var got []Difference
	m, err := openRecording(t, "greeting.yaml", greeting, Options{Report: func(d Difference) { got = append(got, d) }})
	if err != nil {
		t.Fatal(err)
	}
	if m.Task() != "Make the test pass." || m.Info() != (loop.ModelInfo{Provider: "replay", Model: "greeting", Recorded: true}) || m.Left() != 2 {
		t.Errorf("task %q, info %+v, left %d", m.Task(), m.Info(), m.Left())
	}
	failing := textResult("exit code 1 after 0.02 s\n--- stdout\nFAIL")
	failing.IsError = true
	out, shown := playTurn(t, m, fixedResults{"shell": failing, "read_file": textResult("echo hello\nworld </caisson-output>")})
	if out.Reason != loop.StopAnswered || out.Answer != "Fixed.\n" || m.Left() != 0 {
		t.Errorf("outcome %s, %q, %v; left %d", out.Reason, out.Answer, out.Err, m.Left())
	}
	if shown != "I will run the test first.Fixed.\n" {
		t.Errorf("shown %q", shown)
	}
	if got != nil {
		t.Errorf("differences: %v", got)
	}
	if u := out.History[1].Blocks[1].ToolUse; string(u.Input) != `{"command":"sh test.sh","timeout_seconds":5}` {
		t.Errorf("input %s", u.Input)
	}
	if out.Usage.Tokens() != 0 || out.Usage.CostMicroUSD == nil || *out.Usage.CostMicroUSD != 0 {
		t.Errorf("usage %+v: a replay costs nothing, and that is known", out.Usage)
	}
}

func TestScriptDifferences(t *testing.T) {
	var got []Difference
	m, err := openRecording(t, "greeting.yaml", greeting, Options{Report: func(d Difference) { got = append(got, d) }})
	if err != nil {
		t.Fatal(err)
	}
	playTurn(t, m, fixedResults{"shell": textResult("exit code 0 after 1 s\nPASS"), "read_file": textResult("hello, don't panic")})
	var lines []string
	for _, d := range got {
		lines = append(lines, d.String())
	}
	want := []string{
		`turn 1, call 1 (shell): exit_code: want "1", got "0 in: exit code 0 after 1 s\nPASS"`,
		`turn 1, call 1 (shell): error: want "true", got "false"`,
		`turn 1, call 1 (shell): contains: want "FAIL", got "exit code 0 after 1 s\nPASS"`,
		`turn 1, call 2 (read_file): contains: want "world", got "hello, don't panic"`,
		`turn 1, call 2 (read_file): not_contains: want "panic", got "hello, don't panic"`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

func TestDifferencesAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	m, err := openRecording(t, "greeting.yaml", greeting, Options{Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	playTurn(t, m, fixedResults{"shell": textResult("exit code 0"), "read_file": textResult("")})
	if logs.Len() == 0 {
		t.Error("no difference was logged")
	}
}

func TestRawArguments(t *testing.T) {
	m, err := openRecording(t, "raw.yaml", "version: 1\nturns:\n- calls:\n  - {tool: shell, raw: '{\"command\": '}\n- text: Done.\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := playTurn(t, m, fixedResults{})
	if u := out.History[1].Blocks[0].ToolUse; u.InputError == "" || u.Raw != `{"command": ` || out.Reason != loop.StopAnswered {
		t.Errorf("call %+v, reason %s", u, out.Reason)
	}
}

func TestExhausted(t *testing.T) {
	m, err := openRecording(t, "short.yaml", "version: 1\nturns:\n- calls: [{tool: shell}]\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, _ := playTurn(t, m, fixedResults{"shell": textResult("ok")})
	failure, ok := errors.AsType[*loop.ModelError](out.Err)
	if out.Reason != loop.StopProviderFailed || !errors.Is(out.Err, ErrExhausted) || !ok || !failure.Visible {
		t.Errorf("reason %s, %v", out.Reason, out.Err)
	}
	if !strings.Contains(out.Err.Error(), "short.yaml") || !strings.Contains(out.Err.Error(), "all 1 turns") {
		t.Errorf("error %q", out.Err)
	}
}

// TestCompleteWithoutTools checks that a turn has no calls if no tools are offered.
func TestCompleteWithoutTools(t *testing.T) {
	m, err := openRecording(t, "s.yaml", "version: 1\nturns:\n- calls: [{tool: shell}]\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := m.Complete(t.Context(), loop.Request{}, nil)
	if err != nil || len(resp.Message.Blocks) != 1 || resp.Message.Blocks[0].Text == nil || resp.Finish != "stop" {
		t.Errorf("answer %+v, %v", resp, err)
	}
}

func TestPieces(t *testing.T) {
	m, err := openRecording(t, "s.yaml", "version: 1\nturns:\n- text: one two three\n- text: one two three\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var pieces []string
	if _, err := m.Complete(t.Context(), loop.Request{}, func(d loop.Delta) { pieces = append(pieces, d.Text) }); err != nil || len(pieces) != 3 {
		t.Fatalf("pieces %q, %v", pieces, err)
	}
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = m.Complete(ctx, loop.Request{}, func(loop.Delta) { cancel(why) })
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
}

func scriptErrorCases() map[string]struct{ script, want string } {
	return map[string]struct{ script, want string }{
		"empty":             {script: "", want: "1:1: the script is empty"},
		"comment alone":     {script: "# nothing\n", want: "1:1:"},
		"no version":        {script: "turns:\n- text: Hi.\n", want: "version is 0"},
		"another version":   {script: "name: x\nversion: 2\nturns:\n- text: Hi.\n", want: "2:10: version is 2"},
		"no turns":          {script: "version: 1\n", want: "at least one turn"},
		"unknown key":       {script: "version: 1\nturns:\n- text: Hi.\n  cals: []\n", want: `4:3: unknown field "cals"`},
		"unknown in expect": {script: "version: 1\nturns:\n- calls:\n  - tool: shell\n    expect:\n      exitcode: 1\n", want: `6:7: unknown field "exitcode"`},
		"twice":             {script: "version: 1\nversion: 1\n", want: "2:1:"},
		"wrong type":        {script: "version: one\n", want: "1:10:"},
		"input a list":      {script: "version: 1\nturns:\n- calls:\n  - tool: shell\n    input: [a]\n", want: "5:"},
		"contains a map":    {script: "version: 1\nturns:\n- calls:\n  - tool: shell\n    expect:\n      contains: {a: b}\n", want: "6:"},
		"not YAML":          {script: "version: 1\nturns: [\n", want: "2:"},
		"a tab":             {script: "version: 1\nturns:\n\t- text: Hi.\n", want: "3:"},
		"empty turn":        {script: "version: 1\nturns:\n- text: Hi.\n- text: ''\n", want: "4:"},
		"no tool":           {script: "version: 1\nturns:\n- calls:\n  - input: {a: 1}\n", want: "a call needs a tool"},
		"input and raw":     {script: "version: 1\nturns:\n- calls:\n  - tool: shell\n    input: {}\n    raw: ''\n", want: "not both"},
		"two documents":     {script: "version: 1\nturns:\n- text: Hi.\n---\nversion: 1\n", want: "more than one"},
		"no number":         {script: "version: 1\nturns:\n- calls:\n  - tool: shell\n    input: {a: .nan}\n", want: "turn 1: input of shell"},
	}
}

func TestScriptErrors(t *testing.T) {
	for name, tt := range scriptErrorCases() {
		t.Run(name, func(t *testing.T) {
			_, err := openRecording(t, "bad.yaml", tt.script, Options{})
			if !errors.Is(err, ErrNotRecording) {
				t.Fatalf("Open() = %v", err)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "bad.yaml:") {
				t.Errorf("error %q, want %q", err, tt.want)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none.yaml"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "trace.jsonl") {
		t.Errorf("a directory without a trace: %v", err)
	}
	if _, err := Open("/dev/null", Options{}); !errors.Is(err, ErrNotRecording) || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// TestDocumentedScript checks that the script in the package's documentation is valid.
func TestDocumentedScript(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(source), "// A script:\n//\n")
	if !ok {
		t.Fatal("no script in the documentation")
	}
	text, _, _ := strings.Cut(after, "\n//\n// A call")
	var script strings.Builder
	for line := range strings.Lines(text) {
		script.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "//"), "\t"))
	}
	r, err := parseRecording([]byte(script.String()))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, script.String())
	}
	if len(r.turns) != 2 || r.turns[0].calls[0].expect == nil {
		t.Errorf("recording %+v", r)
	}
}

func FuzzParse(f *testing.F) {
	seeds := []string{greeting, "{", "", "{}", "\xff", `{"kind":"message"}`, `{"schema_version":"ATIF-v1.7"}`, "a: &a [*a]", "version: 1\nturns: *x\n"}
	for _, tt := range scriptErrorCases() {
		seeds = append(seeds, tt.script)
	}
	traceSeed, atifSeed := traceText(), atifText()
	seeds = append(seeds, traceSeed, atifSeed, traceSeed[:len(traceSeed)/2], atifSeed[:len(atifSeed)/2])
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data string) {
		r, err := parseRecording([]byte(data))
		if err != nil {
			var line, column int
			if _, scan := fmt.Sscanf(err.Error(), "%d:%d:", &line, &column); scan != nil || line < 1 || column < 1 {
				t.Errorf("an error without a place: %q", err)
			}
			return
		}
		if len(r.turns) == 0 {
			t.Error("a recording without turns")
		}
		for _, played := range r.turns {
			if played.text == "" && len(played.calls) == 0 {
				t.Error("an empty turn")
			}
			for _, c := range played.calls {
				if c.expect != nil {
					c.expect.compareResult(result{text: "x"})
				}
			}
		}
	})
}
