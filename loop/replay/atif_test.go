package replay

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
)

// atifText returns a trajectory that uses all features of the format.
func atifText() string {
	return `{"schema_version":"ATIF-v1.7","session_id":"run-1","agent":{"name":"x","version":"0.1.0","model_name":"gpt-x","tool_definitions":[]},
 "steps":[
 {"step_id":1,"timestamp":"2026-11-20T10:00:00Z","source":"system","message":"You are …"},
 {"step_id":2,"source":"user","message":[{"type":"text","text":"Fix the test."},{"type":"image","source":{"media_type":"image/png","path":"a.png"}}]},
 {"step_id":2,"source":"user","message":"And the other one."},
 {"step_id":3,"source":"agent","message":"Earlier.","is_copied_context":true},
 {"step_id":4,"source":"agent","model_name":"m","message":"","reasoning_content":"hm","tool_calls":[
   {"tool_call_id":"c1","function_name":"shell","arguments":{"command":"go test ./..."},"extra":{}},
   {"tool_call_id":"c2","function_name":"read_file","arguments":{}}],
  "observation":{"results":[{"source_call_id":"c1","content":"exit code 1 after 3 s","extra":{"is_error":true}},{"source_call_id":"c2","content":[{"type":"text","text":"hello"}]},{"content":"without a call"}]},
  "metrics":{"prompt_tokens":900},"llm_call_count":1},
 {"step_id":5,"source":"agent","message":""},
 {"step_id":6,"source":"agent","message":"Fixed."},
 {"step_id":7,"source":"system","message":"limit reached","extra":{"limit":{}}}],
 "final_metrics":{"total_steps":7},"extra":{"unknown":true}}`
}

func TestATIF(t *testing.T) {
	var got []Difference
	m, err := openRecording(t, "trajectory.json", atifText(), Options{Report: func(d Difference) { got = append(got, d) }})
	if err != nil {
		t.Fatal(err)
	}
	if m.Task() != "Fix the test." || m.Info().Model != "gpt-x" || m.Left() != 2 {
		t.Errorf("task %q, info %+v, left %d", m.Task(), m.Info(), m.Left())
	}
	out, _ := playTurn(t, m, fixedResults{"shell": textResult("exit code 1 after 0.5 s"), "read_file": textResult("hello, world")})
	if out.Reason != loop.StopAnswered || out.Answer != "Fixed." {
		t.Errorf("outcome %s, %q, %v", out.Reason, out.Answer, out.Err)
	}
	want := []Difference{
		{Turn: 1, Call: 1, Tool: "shell", What: "error", Want: "true", Got: "false"},
		{Turn: 1, Call: 2, Tool: "read_file", What: "result", Want: "hello", Got: "hello, world"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

func TestATIFErrors(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no agent":        {text: `{"schema_version":"ATIF-v1.7","steps":[{"source":"user","message":"x"}]}`, want: "1:1: no step of an agent"},
		"broken":          {text: "{\"schema_version\":\"ATIF-v1.7\",\n\"steps\":[\n{]}", want: "3:2:"},
		"message a truth": {text: "{\"schema_version\":\"ATIF-v1.7\",\n\"steps\":[{\"message\":true}]}", want: "content is neither"},
		"two documents":   {text: `{"schema_version":"ATIF-v1.7","steps":[]}{}`, want: "1:42:"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := openRecording(t, "t.json", tt.text, Options{}); !errors.Is(err, ErrNotRecording) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open() = %v, want %q", err, tt.want)
			}
		})
	}
}
