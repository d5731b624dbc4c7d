package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// newStrangeSession is a session with what is hard for a trajectory: malformed
// arguments, a result in a file, a picture, thinking, a failed model call, a
// bad end.
func newStrangeSession(t *testing.T, state string) Session {
	t.Helper()
	w := newWriter(t, state)
	w.created("Do <b>strange</b> things & more.")
	w.turn = "trn_01JD0000000000000000000000"
	w.put(0, record.ActorUser, record.TurnStarted{})
	w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: "Do <b>strange</b> things & more."}}}})
	w.put(0, record.ActorAgent, record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 1}})
	w.put(0, record.ActorAgent, record.ModelCallFailed{ModelCall: loop.ModelCall{Round: 1}, Class: loop.ModelRateLimit, Message: "slow down"})
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

// replayATIF plays a recording against a session's history, and returns the
// model's answers and how the history differs from the recording.
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

// turnsOf returns where the model was asked: before each of its messages, and
// at the end.
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
		if p, ok := record.DecodePayload(r).(record.Message); ok {
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
			// A different result is noticed.
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

var atifSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	return c.Compile("testdata/atif-v1.7.schema.json")
})

// atifProblems returns how a document violates ATIF v1.7: its schema, and what
// no schema can express.
func atifProblems(t *testing.T, text []byte) []string {
	t.Helper()
	schema, err := atifSchema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := schema.Validate(doc); err != nil {
		return []string{err.Error()}
	}
	return referenceProblems(t, text)
}

// referenceProblems returns steps that do not count 1, 2, 3, results of other
// steps' calls, and subagents with the same ID, in a document that the schema
// accepts.
func referenceProblems(t *testing.T, text []byte) []string {
	t.Helper()
	type call struct {
		ID string `json:"tool_call_id"`
	}
	type result struct {
		Call *string `json:"source_call_id"`
	}
	var doc struct {
		Steps []struct {
			ID       int64  `json:"step_id"`
			Calls    []call `json:"tool_calls"`
			Observed struct {
				Results []result `json:"results"`
			} `json:"observation"`
		} `json:"steps"`
		Subagents []json.RawMessage `json:"subagent_trajectories"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var found []string
	for i, step := range doc.Steps {
		if step.ID != int64(i+1) {
			found = append(found, fmt.Sprintf("step %d has id %d", i+1, step.ID))
		}
		for _, r := range step.Observed.Results {
			if r.Call != nil && !slices.Contains(step.Calls, call{*r.Call}) {
				found = append(found, fmt.Sprintf("step %d: a result of no call of it: %s", i+1, *r.Call))
			}
		}
	}
	ids := map[string]bool{}
	for _, raw := range doc.Subagents {
		var sub struct {
			ID string `json:"trajectory_id"`
		}
		if err := json.Unmarshal(raw, &sub); err != nil {
			t.Fatal(err)
		}
		if ids[sub.ID] {
			found = append(found, "two subagents are "+sub.ID)
		}
		ids[sub.ID] = true
		found = append(found, referenceProblems(t, raw)...)
	}
	return found
}

func TestATIFIsValid(t *testing.T) {
	for name, make := range map[string]func(*testing.T, string) Session{"ordinary": newShopSession, "strange": newStrangeSession, "hidden": newHiddenSession} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(exportATIF(t, make(t, t.TempDir())))
			if err != nil {
				t.Fatal(err)
			}
			for _, problem := range atifProblems(t, text) {
				t.Error(problem)
			}
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
}

const fullATIF = `{"schema_version":"ATIF-v1.7","session_id":"run-1","trajectory_id":"t-1",
"agent":{"name":"a","version":"1","model_name":"m","tool_definitions":[{"type":"function","function":{"name":"f"}}],"extra":{"x":null}},
"steps":[
{"step_id":1,"timestamp":"2026-11-20T10:00:00Z","source":"system","message":"You are"},
{"step_id":2,"source":"user","message":[{"type":"text","text":"Fix it"},{"type":"image","source":{"media_type":"image/png","path":"a.png"}}],"is_copied_context":true,"extra":{}},
{"step_id":3,"source":"agent","model_name":"m","reasoning_effort":"high","reasoning_content":"hm","message":"","llm_call_count":1,
"tool_calls":[{"tool_call_id":"c1","function_name":"f","arguments":{},"extra":{"rule":"r"}}],
"observation":{"results":[{"source_call_id":"c1","content":"ok","extra":{"exit_code":0}},{"content":[{"type":"text","text":"t"}],"subagent_trajectory_ref":[{"trajectory_id":"t-2","trajectory_path":"b.json","session_id":"run-1","extra":{}}]}]},
"metrics":{"prompt_tokens":9,"completion_tokens":4,"cached_tokens":8,"cost_usd":0.1,"prompt_token_ids":[1],"completion_token_ids":[2],"logprobs":[-0.5],"extra":{}}},
{"step_id":4,"source":"agent","message":"x","tool_calls":[{"tool_call_id":"c2","function_name":"f","arguments":{"a":1}}],"observation":{"results":[]}}],
"notes":"n","final_metrics":{"total_prompt_tokens":9,"total_completion_tokens":4,"total_cached_tokens":8,"total_cost_usd":0.1,"total_steps":4,"extra":{}},
"continued_trajectory_ref":"c.json","extra":{},
"subagent_trajectories":[{"schema_version":"ATIF-v1.7","trajectory_id":"t-2","agent":{"name":"s","version":"1"},"steps":[{"step_id":1,"source":"user","message":""}]},
{"schema_version":"ATIF-v1.7","trajectory_id":"t-3","agent":{"name":"s","version":"1"},"steps":[{"step_id":1,"source":"user","message":""}]}]}`

// The schema and the other rules refuse each fault that readers of ATIF refuse,
// and accept the document without it.
func TestATIFSchemaRejects(t *testing.T) {
	if found := atifProblems(t, []byte(fullATIF)); found != nil {
		t.Fatal(found)
	}
	for name, edit := range map[string][2]string{
		"calls of a user":            {`"source":"agent","model_name":"m","reasoning_effort":"high","reasoning_content":"hm",`, `"source":"user",`},
		"a model of a user":          {`"is_copied_context":true`, `"model_name":"m"`},
		"an effort of a user":        {`"is_copied_context":true`, `"reasoning_effort":1`},
		"reasoning of a user":        {`"is_copied_context":true`, `"reasoning_content":""`},
		"metrics of a user":          {`"is_copied_context":true`, `"metrics":{}`},
		"calls of the system":        {`"message":"You are"`, `"message":"You are","tool_calls":[]`},
		"another version":            {`"ATIF-v1.7","session_id"`, `"ATIF-v1.8","session_id"`},
		"another source":             {`"source":"system"`, `"source":"tool"`},
		"no steps":                   {`"steps":[{"step_id":1,"source":"user","message":""}]},`, `"steps":[]},`},
		"no message":                 {`"message":"You are"`, `"extra":{}`},
		"no agent's version":         {`"name":"a","version":"1"`, `"name":"a"`},
		"no agent's name":            {`"name":"a","version":"1"`, `"version":"1"`},
		"a gap":                      {`"step_id":2`, `"step_id":7`},
		"from zero":                  {`"step_id":1,"timestamp"`, `"step_id":0,"timestamp"`},
		"no time":                    {`2026-11-20T10:00:00Z`, `yesterday`},
		"no arguments":               {`"arguments":{},`, ``},
		"arguments as text":          {`"arguments":{}`, `"arguments":"{}"`},
		"no call's id":               {`"tool_call_id":"c2",`, ``},
		"no function":                {`"tool_call_id":"c2","function_name":"f"`, `"tool_call_id":"c2"`},
		"a result of no call":        {`"source_call_id":"c1"`, `"source_call_id":"c0"`},
		"a result of another step":   {`"source_call_id":"c1"`, `"source_call_id":"c2"`},
		"text and image":             {`"type":"text","text":"Fix it"`, `"type":"text","text":"Fix it","source":{"media_type":"image/png","path":"a"}`},
		"text without text":          {`"type":"text","text":"Fix it"`, `"type":"text"`},
		"an image without a source":  {`"type":"image","source":{"media_type":"image/png","path":"a.png"}`, `"type":"image"`},
		"another kind of image":      {`image/png`, `image/tiff`},
		"another part":               {`"type":"text","text":"t"`, `"type":"audio","text":"t"`},
		"a reference to nothing":     {`"trajectory_id":"t-2","trajectory_path":"b.json",`, ``},
		"a subagent without an id":   {`"trajectory_id":"t-3",`, ``},
		"two subagents with one id":  {`"trajectory_id":"t-3"`, `"trajectory_id":"t-2"`},
		"fewer than no model calls":  {`"llm_call_count":1`, `"llm_call_count":-1`},
		"fewer than no steps in all": {`"total_steps":4`, `"total_steps":-1`},
		"half a token":               {`"prompt_tokens":9`, `"prompt_tokens":9.5`},
		"a cost as text":             {`"cost_usd":0.1,"prompt_token_ids"`, `"cost_usd":"0.1","prompt_token_ids"`},
	} {
		bad := strings.Replace(fullATIF, edit[0], edit[1], 1)
		if bad == fullATIF {
			t.Fatalf("%s: nothing was edited", name)
		}
		if len(atifProblems(t, []byte(bad))) == 0 {
			t.Errorf("%s is accepted", name)
		}
	}
	// No object takes another field, and no field is null.
	var doc any
	if err := json.Unmarshal([]byte(fullATIF), &doc); err != nil {
		t.Fatal(err)
	}
	objects, fields := 0, 0
	var walk func(v any, path string)
	refused := func(what string) {
		t.Helper()
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if len(atifProblems(t, text)) == 0 {
			t.Errorf("%s is accepted", what)
		}
	}
	walk = func(v any, path string) {
		switch v := v.(type) {
		case []any:
			for i := range v {
				walk(v[i], fmt.Sprintf("%s/%d", path, i))
			}
		case map[string]any:
			objects++
			v["stranger"] = 1
			refused(path + "/stranger")
			delete(v, "stranger")
			for _, key := range slices.Sorted(maps.Keys(v)) {
				fields++
				was := v[key]
				v[key] = nil
				refused(path + "/" + key + " that is null")
				if v[key] = was; key != "extra" && key != "arguments" && key != "tool_definitions" {
					walk(was, path+"/"+key)
				}
			}
		}
	}
	walk(doc, "")
	if objects < 20 || fields < 70 {
		t.Errorf("%d objects, %d fields", objects, fields)
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

// lurking has characters that steer a terminal or are invisible on one.
const lurking = "a\u009b31mb\u202ec\u200bd\x7fe\U000e0041f"

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

// A trajectory may be shown on a terminal. TestATIFReplays tests that it means
// the same.
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
