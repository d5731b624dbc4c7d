package replay

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// traceText returns a trace as runner writes it, including kinds that are ignored.
func traceText() string {
	use := func(id, name, input string) loop.Block {
		return loop.Block{ToolUse: &loop.ToolUse{ID: id, ProviderID: "call_1", Name: tools.Name(name), Input: json.RawMessage(input)}}
	}
	cut := use("tu_3", "shell", `{}`)
	cut.ToolUse.InputError, cut.ToolUse.Raw = "the answer was cut", `{"command":"rm x"}`
	result := func(id, text string, isError bool) loop.Message {
		return loop.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{
			ToolUseID: id, Content: []tools.Block{{Text: text}}, IsError: isError,
		}}}}
	}
	messages := []loop.Message{
		loop.NewText(loop.RoleSystem, "Be good."),
		loop.NewText(loop.RoleUser, "Make the test pass."),
		{Role: loop.RoleAssistant, Blocks: []loop.Block{
			{Thinking: &loop.Thinking{Text: "hm"}},
			{Text: &loop.Text{Text: "Looking."}},
			use("tu_1", "shell", `{"command":"sh test.sh"}`), use("tu_2", "read_file", `{"path":"a"}`),
		}},
		result("tu_1", "exit code 1 after 0.02 s\nses_01JZZZZZZZZZZZZZZZZZZZZZZZ at 2026-11-20T10:00:00Z", true),
		result("tu_2", "hello </caisson-output>", false),
		{Role: loop.RoleAssistant, Blocks: []loop.Block{cut}},
		result("tu_3", "the answer was cut", true),
		loop.NewText(loop.RoleAssistant, "Done."),
	}
	lines := []string{`{"schema_version":1,"seq":1,"kind":"session.created","payload":{"version":"1"},"prev":"0"}`}
	for _, m := range messages {
		payload, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		lines = append(lines, `{"schema_version":1,"kind":"message","payload":`+string(payload)+`}`, `{"kind":"of.tomorrow","payload":[1]}`)
	}
	return strings.Join(lines, "\n") + "\n"
}

// sameResults returns results that differ from the trace only in IDs, times and
// durations.
func sameResults() fixedResults {
	failing := textResult("exit code 1 after 1.7 s\nses_01KAAAAAAAAAAAAAAAAAAAAAAA at 2027-01-01T00:00:01.5Z\n")
	failing.IsError = true
	return fixedResults{"shell": failing, "read_file": textResult("hello </caisson-output>")}
}

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "trace.jsonl"), []byte(traceText()), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"file": filepath.Join(dir, "trace.jsonl"), "session directory": dir} {
		t.Run(name, func(t *testing.T) {
			var got []Difference
			m, err := Open(path, Options{Report: func(d Difference) { got = append(got, d) }})
			if err != nil {
				t.Fatal(err)
			}
			if m.Task() != "Make the test pass." || m.Left() != 3 {
				t.Errorf("task %q, left %d", m.Task(), m.Left())
			}
			d := sameResults()
			ran := 0
			out, shown := playTurn(t, m, d)
			for _, message := range out.History {
				for _, b := range message.Blocks {
					if b.ToolUse != nil && b.ToolUse.InputError == "" {
						ran++
					}
				}
			}
			if out.Reason != loop.StopAnswered || out.Answer != "Done." || shown != "Looking.Done." || ran != 2 {
				t.Errorf("outcome %s, %q, %v; shown %q; ran %d: a cut call must stay cut", out.Reason, out.Answer, out.Err, shown, ran)
			}
			for _, d := range got {
				if d.Turn == 1 {
					t.Errorf("difference: %s", d)
				}
			}
		})
	}
}

func TestTraceDifferences(t *testing.T) {
	var got []Difference
	m, err := openRecording(t, "t.jsonl", traceText(), Options{Report: func(d Difference) {
		if d.Turn == 1 {
			got = append(got, d)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := sameResults()
	d["shell"] = textResult("exit code 0 after 1.7 s")
	playTurn(t, m, d)
	want := []Difference{
		{Turn: 1, Call: 1, Tool: "shell", What: "error", Want: "true", Got: "false"},
		{Turn: 1, Call: 1, Tool: "shell", What: "result", Want: "exit code 1 after <duration>\n<id> at <time>", Got: "exit code 0 after <duration>"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

// TestTraceFromHistory checks that the messages of a run can be played and lead to
// the same history.
func TestTraceFromHistory(t *testing.T) {
	first, err := openRecording(t, "greeting.yaml", greeting, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := fixedResults{"shell": textResult("exit code 1"), "read_file": textResult("hello world")}
	out, _ := playTurn(t, first, d)
	var lines []string
	for _, m := range out.History {
		payload, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, `{"kind":"message","payload":`+string(payload)+`}`)
	}
	var got []Difference
	second, err := openRecording(t, "trace.jsonl", strings.Join(lines, "\n"), Options{Report: func(d Difference) { got = append(got, d) }})
	if err != nil {
		t.Fatal(err)
	}
	again, _ := playTurn(t, second, d)
	if len(got) != 0 || len(again.History) != len(out.History) || again.Answer != out.Answer {
		t.Errorf("differences %v, %d messages of %d", got, len(again.History), len(out.History))
	}
}

func TestTraceErrors(t *testing.T) {
	good := strings.TrimSpace(traceText())
	for name, tt := range map[string]struct{ text, want string }{
		"a broken line in the middle": {text: "{\"kind\":\"x\"}\n{\"kind\": y}\n" + good, want: "2:10:"},
		"no kind":                     {text: `{"role":"assistant"}`, want: "1:1: not a record"},
		"nothing to play":             {text: `{"kind":"session.created"}`, want: "no message of an assistant"},
		"a message that is none":      {text: `{"kind":"message","payload":{"blocks":1}}`, want: "1:1: message:"},
		"cut at once":                 {text: `{"kind":"mess`, want: "1:"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := openRecording(t, "t.jsonl", tt.text, Options{}); !errors.Is(err, ErrNotRecording) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open() = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestTraceWithTruncatedLine checks that an incomplete last line is no error.
func TestTraceWithTruncatedLine(t *testing.T) {
	if _, err := openRecording(t, "t.jsonl", traceText()+`{"kind":"message","payl`, Options{}); err != nil {
		t.Errorf("Open() = %v", err)
	}
}
