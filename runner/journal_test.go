package runner

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

// TestCallsOfTheSandboxAreRecordedBehindIt: one waits and then runs, one is
// cancelled while it waits, one reads and waits for nothing.
func TestCallsOfTheSandboxAreRecordedBehindIt(t *testing.T) {
	rec := newTestRecorder(t, RecorderOptions{})
	j := newJournal(rec, nil)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(j.write(SessionCreated{}))
	do(j.toolEvent(tools.Called{CallID: "tu_run", Name: "shell", Class: tools.ClassExecute}))
	do(j.toolEvent(tools.Called{CallID: "tu_gone", Name: "write_file", Class: tools.ClassWrite}))
	do(j.toolEvent(tools.Called{CallID: "tu_read", Name: "read_file", Class: tools.ClassRead}))
	do(j.toolEvent(tools.Completed{CallID: "tu_read", Name: "read_file"}))
	do(j.toolEvent(tools.Failed{CallID: "tu_gone", Name: "write_file", Class: tools.ErrorCancelled}))
	do(j.write(SandboxStarted{}))
	do(j.toolEvent(tools.Completed{CallID: "tu_run", Name: "shell"}))
	do(j.toolEvent(tools.Called{CallID: "tu_next", Name: "shell", Class: tools.ClassExecute}))

	var got []string
	for _, r := range readTrace(t, rec).Records {
		call := struct {
			CallID string `json:"tool_use_id"`
		}{}
		do(json.Unmarshal(r.Payload, &call))
		got = append(got, string(r.Kind)+" "+call.CallID)
	}
	want := []string{
		"session.created ", "tool.called tu_read", "tool.completed tu_read",
		"tool.called tu_gone", "tool.failed tu_gone", "sandbox.started ",
		"tool.called tu_run", "tool.completed tu_run", "tool.called tu_next",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
