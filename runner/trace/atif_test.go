package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// newStrangeSession is a session with what a trajectory finds hard: malformed arguments,
// a result in a file, a picture, thinking, a failed model call, a bad end.
func newStrangeSession(t *testing.T, state string) Session {
	t.Helper()
	w := newWriter(t, state)
	w.created("Do <b>strange</b> things & more.")
	w.turn = "trn_01JD0000000000000000000000"
	w.put(0, record.ActorUser, record.TurnStarted{})
	w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: "Do <b>strange</b> things & more."}}}})
	w.put(0, record.ActorAgent, record.ModelCallStarted{ModelCall: record.ModelCall{Round: 1}})
	w.put(0, record.ActorAgent, record.ModelCallFailed{ModelCall: record.ModelCall{Round: 1}, Class: loop.ModelRateLimit, Message: "slow down"})
	w.model(1, time.Second, "I try.", newToolUse("tu_1", "read_file", `{"path":"long"}`), loop.ToolUse{ID: "tu_2", Name: "shell", Input: json.RawMessage(`{}`), InputError: "line 1: no object", Raw: `{"command": "ec`})
	w.called("tu_1", "read_file", tools.ClassRead, "long")
	w.done("tu_1", "read_file", time.Second, record.ToolCompleted{Success: true})
	w.put(0, record.ActorTool, record.ToolInputInvalid{CallID: "tu_2", Name: "shell", Errors: []string{"line 1: no object"}})
	w.result("tu_1", strings.Repeat("a long line é\n", 20_000), false)
	w.result("tu_2", "line 1: no object", true)
	w.put(0, record.ActorAgent, record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
		{Thinking: &loop.Thinking{Text: "hm", Signature: "s"}}, {ToolUse: &loop.ToolUse{ID: "tu_3", Name: "read_file", Input: json.RawMessage(`{"path":"a.png"}`)}},
	}})
	w.put(0, record.ActorTool, record.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{
		ToolUseID: "tu_3", Content: []tools.Block{{Text: "a picture"}, {Image: []byte("png"), MediaType: "image/png"}},
	}}}})
	w.put(0, record.ActorSystem, record.SessionEnded{Reason: loop.StopLimit, ExitStatus: 53, CostUSD: "unknown", Limit: &record.Limit{Kind: "rounds", Limit: 2, Used: 2}})
	return w.close()
}

// exportATIF writes a trajectory to a file and returns its path.
func exportATIF(t *testing.T, s Session) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := ATIF(&out, s); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "trajectory.json")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// replayATIF plays a recording against the history of a session and returns the
// model's answers, and how the history differs from the recording.
func replayATIF(t *testing.T, path string, history []loop.Message) (string, []string, []replay.Difference) {
	t.Helper()
	var found []replay.Difference
	m, err := replay.Open(path, replay.Options{Report: func(d replay.Difference) { found = append(found, d) }})
	if err != nil {
		t.Fatal(err)
	}
	var answers []string
	for _, at := range turnsOf(history) {
		r, err := m.Complete(t.Context(), loop.Request{Tools: make([]tools.Definition, 1), Messages: history[:at]}, nil)
		if errors.Is(err, replay.ErrExhausted) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r.Message)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, string(text))
	}
	return m.Task(), answers, found
}

// turnsOf are the places at which the model was asked: before each of its
// messages, and at the end.
func turnsOf(history []loop.Message) []int {
	var at []int
	for i, m := range history {
		if m.Role == loop.RoleAssistant {
			at = append(at, i)
		}
	}
	return append(at, len(history))
}

func historyOf(t *testing.T, s Session) []loop.Message {
	t.Helper()
	var history []loop.Message
	_, err := Read(s, func(r record.Record) {
		r, err := record.Restore(s.Dir, r)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := decodePayload[record.Message](r); ok {
			history = append(history, loop.Message{Role: p.Role, Blocks: p.Blocks})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return history
}

func TestATIFReplays(t *testing.T) {
	for name, make := range map[string]func(*testing.T, string) Session{"ordinary": newShopSession, "strange": newStrangeSession, "hidden": newHiddenSession} {
		t.Run(name, func(t *testing.T) {
			s := make(t, t.TempDir())
			history := historyOf(t, s)
			path := exportATIF(t, s)
			task, answers, found := replayATIF(t, path, history)
			wantTask, want, _ := replayATIF(t, s.Path, history)
			if task != wantTask || len(task) == 0 {
				t.Errorf("task %q, want %q", task, wantTask)
			}
			if diff := cmp.Diff(want, answers); diff != "" || len(answers) < 2 {
				t.Errorf("%d answers (-trace +trajectory):\n%s", len(answers), diff)
			}
			for _, d := range found {
				t.Errorf("a difference from itself: %s", d)
			}
			// Another result is seen.
			for i, m := range history {
				if m.Role == loop.RoleTool {
					history[i] = loop.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: m.Blocks[0].ToolResult.ToolUseID, Content: []tools.Block{{Text: "something else"}}}}}}
					break
				}
			}
			if _, _, found := replayATIF(t, path, history); len(found) == 0 {
				t.Error("another result made no difference: results are not in the trajectory")
			}
		})
	}
}

// allowed are the fields of ATIF v1.7, whose readers refuse others; a field
// that ends in ! is required.
var allowed = map[string][]string{
	"root":        {"schema_version!", "session_id!", "trajectory_id", "agent!", "steps!", "notes", "final_metrics", "continued_trajectory_ref", "extra", "subagent_trajectories"},
	"agent":       {"name!", "version!", "model_name", "tool_definitions", "extra"},
	"step":        {"step_id!", "timestamp", "source!", "message!", "observation", "is_copied_context", "extra", "llm_call_count"},
	"agent step":  {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"},
	"call":        {"tool_call_id!", "function_name!", "arguments!", "extra"},
	"observation": {"results!"},
	"result":      {"source_call_id", "content", "subagent_trajectory_ref", "extra"},
	"metrics":     {"prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "prompt_token_ids", "completion_token_ids", "logprobs", "extra"},
	"final":       {"total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "total_cost_usd", "total_steps", "extra"},
}

// atifProblems returns how a document violates ATIF v1.7.
func atifProblems(doc map[string]any) []string {
	var found []string
	say := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	fields := func(what string, v any, sets ...string) map[string]any {
		m, ok := v.(map[string]any)
		if !ok {
			say("%s is no object", what)
			return map[string]any{}
		}
		var names []string
		for _, set := range sets {
			names = append(names, allowed[set]...)
		}
		for k, v := range m {
			if !slices.Contains(names, k) && !slices.Contains(names, k+"!") {
				say("%s has %s", what, k)
			}
			if v == nil {
				say("%s: %s is null", what, k)
			}
		}
		for _, name := range names {
			if k, required := strings.CutSuffix(name, "!"); required && m[k] == nil {
				say("%s has no %s", what, k)
			}
		}
		return m
	}
	root := fields("the document", doc, "root")
	fields("agent", root["agent"], "agent")
	fields("final_metrics", root["final_metrics"], "final")
	steps, _ := root["steps"].([]any)
	if len(steps) == 0 {
		say("no steps")
	}
	for i, v := range steps {
		what, sets := fmt.Sprintf("step %d", i+1), []string{"step"}
		if m, _ := v.(map[string]any); m["source"] == "agent" {
			sets = append(sets, "agent step")
		}
		step := fields(what, v, sets...)
		if step["step_id"] != float64(i+1) {
			say("%s has id %v", what, step["step_id"])
		}
		if at, _ := step["timestamp"].(string); at != "" {
			if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
				say("%s: %v", what, err)
			}
		}
		ids := map[any]bool{}
		calls, _ := step["tool_calls"].([]any)
		for _, c := range calls {
			call := fields(what+": a call", c, "call")
			if _, object := call["arguments"].(map[string]any); !object {
				say("%s: arguments are no object", what)
			}
			ids[call["tool_call_id"]] = true
		}
		if step["metrics"] != nil {
			fields(what+": metrics", step["metrics"], "metrics")
		}
		if step["observation"] == nil {
			continue
		}
		results, _ := fields(what+": observation", step["observation"], "observation")["results"].([]any)
		for _, r := range results {
			if result := fields(what+": a result", r, "result"); !ids[result["source_call_id"]] {
				say("%s: a result of no call of it: %v", what, result["source_call_id"])
			}
		}
	}
	return found
}

func TestATIFIsValid(t *testing.T) {
	var last []byte
	for name, make := range map[string]func(*testing.T, string) Session{"ordinary": newShopSession, "strange": newStrangeSession} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(exportATIF(t, make(t, t.TempDir())))
			if err != nil {
				t.Fatal(err)
			}
			var doc map[string]any
			if err := json.Unmarshal(text, &doc); err != nil {
				t.Fatal(err)
			}
			for _, problem := range atifProblems(doc) {
				t.Error(problem)
			}
			last = text
			if name != "strange" {
				return
			}
			if !strings.Contains(string(text), `limit, exit status 53`) || !strings.Contains(string(text), `"limit":{"kind":"rounds"`) || strings.Contains(string(text), "cost_usd\":0}") {
				t.Error("the end is not in it as it was")
			}
			if !strings.Contains(string(text), strings.Repeat(`a long line é\n`, 20_000)) {
				t.Error("a long value was not put back")
			}
		})
	}
	// The rules see what breaks them.
	for name, edit := range map[string][2]string{
		"calls of a user": {`"source":"agent"`, `"source":"user"`},
		"a gap":           {`"step_id":2`, `"step_id":7`},
		"an unknown":      {`"session_id"`, `"session"`},
		"a stranger":      {`"source_call_id":"tu_1"`, `"source_call_id":"tu_0"`},
	} {
		var doc map[string]any
		bad := bytes.Replace(last, []byte(edit[0]), []byte(edit[1]), 1)
		if err := json.Unmarshal(bad, &doc); err != nil || bytes.Equal(bad, last) {
			t.Fatalf("%s: %v", name, err)
		}
		if len(atifProblems(doc)) == 0 {
			t.Errorf("%s is not seen", name)
		}
	}
}

// TestATIFRefusesIncompleteSession exports sessions with changed values or
// without messages.
func TestATIFRefusesIncompleteSession(t *testing.T) {
	s := newStrangeSession(t, t.TempDir())
	files, err := filepath.Glob(filepath.Join(s.Dir, "spill", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ATIF(&bytes.Buffer{}, s); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("a changed value: %v", err)
	}
	if _, err := ATIF(&bytes.Buffer{}, Session{ID: "x", Pruned: true}); !errors.Is(err, ErrPruned) {
		t.Errorf("a pruned session: %v", err)
	}
}

// lurking are characters that steer a terminal or are not seen on one.
const lurking = "a\u009b31mb\u202ec\u200bd\x7fe\U000e0041f"

// newHiddenSession is a session whose texts hold them.
func newHiddenSession(t *testing.T, state string) Session {
	t.Helper()
	w := newWriter(t, state)
	w.created("Do " + lurking)
	w.turn = "trn_01JD0000000000000000000000"
	w.put(0, record.ActorUser, record.TurnStarted{})
	w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: "Do " + lurking}}}})
	w.model(1, time.Second, "I try "+lurking, newToolUse("tu_1", "read_file", `{"path":"`+lurking+`"}`))
	w.called("tu_1", "read_file", tools.ClassRead, "long")
	w.done("tu_1", "read_file", time.Second, record.ToolCompleted{Success: true, FilesModified: []string{lurking}})
	w.result("tu_1", "read "+lurking+"\nand more", false)
	w.model(2, time.Second, "Done "+lurking)
	w.put(0, record.ActorSystem, record.SessionEnded{Reason: loop.StopAnswered, CostUSD: "unknown"})
	return w.close()
}

// TestATIFHidesNothing: a trajectory may be shown on a terminal. That it means
// the same is TestATIFReplays' part.
func TestATIFHidesNothing(t *testing.T) {
	text, err := os.ReadFile(exportATIF(t, newHiddenSession(t, t.TempDir())))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range lurking {
		if r > 'z' && bytes.ContainsRune(text, r) {
			t.Errorf("U+%04X is written as it is", r)
		}
	}
	if !bytes.Contains(text, []byte(`I try a\u009b31mb\u202ec\u200bd\u007fe\udb40\udc41f`)) {
		t.Errorf("the message is not there, escaped:\n%s", text)
	}
	if !json.Valid(text) {
		t.Error("it is no JSON")
	}
}
