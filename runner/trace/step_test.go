package trace

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// recordsOf returns a record for each payload.
func recordsOf(t *testing.T, payloads []record.Payload) []record.Record {
	t.Helper()
	var list []record.Record
	for i, p := range payloads {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, record.Record{Seq: int64(i + 1), Kind: p.Kind(), Payload: raw})
	}
	return list
}

// Each kind is shown, or is left out on purpose.
func TestStepsKnowEveryKind(t *testing.T) {
	var unknown []string
	steps := NewSteps(func(s Step) {
		if s.Kind == StepUnknown {
			unknown = append(unknown, s.Text)
		}
	})
	for _, r := range recordsOf(t, record.Payloads()) {
		steps.Record(r)
	}
	steps.Record(record.Record{Seq: 1000, Kind: "some.other", Payload: []byte("{}")})
	steps.Record(record.Record{Seq: 1001, Kind: record.KindMessage, Payload: []byte(`{"blocks":7}`)})
	if want := []string{"some.other", "message"}; !slices.Equal(unknown, want) {
		t.Errorf("kinds without a step: %q, want %q (of which the second has an invalid payload); a new kind needs a case in steprecord.go", unknown, want)
	}
}

// The signal that ended a command is shown wherever the command is.
func TestStepsNameSignals(t *testing.T) {
	var told []string
	steps := NewSteps(func(s Step) {
		if s.Call != nil {
			told = append(told, s.Call.Ending)
		} else {
			told = append(told, s.Text)
		}
	})
	for _, r := range recordsOf(t, []record.Payload{
		record.ToolCalled{CallID: "1", Name: "shell"},
		record.ToolCompleted{CallID: "1", Name: "shell", Metadata: map[string]any{"exit_code": -1, "signal": 9}},
		record.ToolCalled{CallID: "2", Name: "shell"},
		record.ToolCompleted{CallID: "2", Name: "shell", Metadata: map[string]any{"exit_code": -1, "signal": 15, "timed_out": true}},
		record.BackgroundEnded{Handle: "background-1", EndedBy: "shell_kill", ExitStatus: sandbox.ExitStatus{Code: -1, Signal: 15}},
		record.UserCommandStarted{ExecID: "3", Argv: []string{"sleep"}},
		record.UserCommandEnded{ExecID: "3", ExitStatus: sandbox.ExitStatus{Code: -1, Signal: 2}},
		record.UserCommandEnded{ExecID: "4", ExitStatus: sandbox.ExitStatus{Code: 1}}, // the control
	}) {
		steps.Record(r)
	}
	steps.Close()
	text := strings.Join(told, "\n")
	for _, want := range []string{"SIGKILL", "timed out", "background-1 ended by shell_kill, signal 15 (SIGTERM)", "sleep: signal 2 (SIGINT)", "4: exit code 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "-1,") || strings.Contains(text, "code -1") {
		t.Errorf("an exit code of -1:\n%s", text)
	}
}

// TestRecordReturnsTheChangedStep reduces one turn, as the terminal and the
// server do while it runs.
func TestRecordReturnsTheChangedStep(t *testing.T) {
	steps, seq := NewSteps(nil), int64(0)
	add := func(p record.Payload) Step {
		t.Helper()
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		seq++
		return steps.Record(record.Record{Seq: seq, Kind: p.Kind(), Payload: raw, Time: time.Unix(seq, 0)})
	}
	add(record.TurnStarted{})
	call := loop.Block{ToolUse: &loop.ToolUse{ID: "1", Name: "shell", Input: []byte(`{}`)}}
	add(record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: "First."}}, call}})
	for i := range maxAsked + 5 {
		asked := add(record.ConfirmationRequested{CallID: "1", ID: fmt.Sprint(i), Summary: "make"})
		if n := len(asked.Call.Asked); n > maxAsked || asked.Call.Asked[n-1].ID != fmt.Sprint(i) {
			t.Fatalf("question %d: got %+v", i, asked.Call.Asked)
		}
		if i == maxAsked+4 {
			break
		}
		answered := add(record.ConfirmationResolved{CallID: "1", RequestID: fmt.Sprint(i), Decision: "allow", By: "grant"})
		if n := len(answered.Call.Asked); n > maxAsked || answered.Call.Asked[n-1].ID != fmt.Sprint(i) || answered.Call.Asked[n-1].By != "grant" {
			t.Fatalf("answer %d: got %+v", i, answered.Call.Asked)
		}
	}
	if s := add(record.ToolCompleted{CallID: "1", Success: true}); s.Call == nil || s.Call.Status != CallDone || s.Call.Summary != "make" {
		t.Errorf("completed: got %+v", s)
	}
	if s := add(record.SessionCreated{}); s.Kind != "" {
		t.Errorf("a record without a step: got %+v", s)
	}
	add(record.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{ToolUseID: "1"}}}})
	long := strings.Repeat("x", 2*maxText)
	add(record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: long}}, {Text: &loop.Text{Text: "Second."}}}})
	if s := add(record.TurnCompleted{Reason: loop.StopAnswered, WallMS: 7}); s.End == nil || s.End.Answer != long+"\nSecond." || s.End.WallMS != 7 {
		t.Errorf("turn end: got %+v", s.End)
	}
	add(record.TurnStarted{})
	if s := add(record.TurnCancelled{Reason: "interrupted", By: "signal"}); s.End == nil || s.End.Reason != loop.StopCancelled || s.End.Answer != "" || !s.Failed {
		t.Errorf("cancelled turn: got %+v", s)
	}
}

// A call's workers are shown, and totals count what they use.
func TestStepsOfWorkers(t *testing.T) {
	var shown []string
	var o Overview
	steps := NewSteps(func(s Step) {
		o.countStep(s)
		text := fmt.Sprintf("%s %t %s", s.Kind, s.Failed, s.Text)
		if s.Model != nil {
			text = fmt.Sprintf("%s %t %s %s", s.Kind, s.Failed, s.Model.Label(), s.Model.Error)
		}
		shown = append(shown, text)
	})
	call := loop.ModelCall{Round: 1, Profile: "careful"}
	for _, r := range recordsOf(t, []record.Payload{
		record.WorkerModelCall{CallID: "1", Worker: "critic careful", EndedModelCall: record.EndedModelCall{ModelCall: call, Usage: limits.Usage{Rounds: 1, InputTokens: 100, OutputTokens: 10, CostMicroUSD: new(int64(120))}}},
		record.WorkerModelCall{CallID: "1", Worker: "critic careful", EndedModelCall: record.EndedModelCall{ModelCall: call, Class: loop.ModelServer, Message: "It failed."}},
		record.WorkerToolCall{CallID: "1", Worker: "critic careful", Hop: 1, Name: "fetch", Status: "ok", InnerID: "2", Summary: "https://a/"},
		record.WorkerToolCall{CallID: "1", Worker: "critic careful", Hop: 2, Name: "shell", Status: "refused"},
		record.WorkerInputInvalid{CallID: "1", Worker: "critic careful", Hop: 2, Name: "fetch", Error: "no url"},
		record.WorkerCostWarning{CallID: "1", Worker: "critic careful", CapUSD: 0.1, ObservedUSD: 0.125},
	}) {
		steps.Record(r)
	}
	want := []string{
		"model false worker critic careful ", "model true worker critic careful server_error: It failed.",
		"worker false critic careful: fetch, call 1: ok, https://a/", "worker true critic careful: shell, call 2: refused",
		"worker true critic careful: fetch, call 2: no url", "warning false critic careful cost 0.1250 USD, above the cap of 0.1000 USD",
	}
	if !slices.Equal(shown, want) {
		t.Errorf("steps\n%s\nwant\n%s", strings.Join(shown, "\n"), strings.Join(want, "\n"))
	}
	if o.CostMicroUSD != 120 || o.InputTokens != 100 || o.CostUnknown {
		t.Errorf("totals %+v", o)
	}
}

// The calls of a program's own conversation end with their results.
func TestStepsOfPrograms(t *testing.T) {
	got := map[string]CallStatus{}
	steps := NewSteps(func(s Step) {
		if s.Call != nil {
			got[s.Call.ID] = s.Call.Status
		}
	})
	use := func(id string) loop.Block {
		return loop.Block{ToolUse: &loop.ToolUse{ID: id, Name: "Bash", Input: []byte(`{}`)}}
	}
	result := func(id string, failed bool) loop.Block {
		return loop.Block{ToolResult: &loop.ToolResult{ToolUseID: id, IsError: failed}}
	}
	for _, r := range recordsOf(t, []record.Payload{
		record.BridgeModelCall{Call: 1, EndedModelCall: record.EndedModelCall{Usage: limits.Usage{InputTokens: 7}}},
		record.Message{Role: loop.RoleAssistant, Thread: 1, Blocks: []loop.Block{use("a"), use("b"), use("c")}},
		record.Message{Role: loop.RoleTool, Thread: 1, Blocks: []loop.Block{result("a", false), result("b", true)}},
		record.SessionEnded{},
	}) {
		steps.Record(r)
	}
	if want := (map[string]CallStatus{"a": CallDone, "b": CallUnsuccess, "c": CallOpen}); !maps.Equal(got, want) {
		t.Errorf("the calls are %v, want %v", got, want)
	}
}
