package trace

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
)

// TestStepsKnowEveryKind: a kind that is added to the catalogue is told, or is
// left out on purpose.
func TestStepsKnowEveryKind(t *testing.T) {
	var unknown []string
	steps := NewSteps(func(s Step) {
		if s.Kind == StepUnknown {
			unknown = append(unknown, s.Text)
		}
	})
	for i, p := range record.Payloads() {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		steps.Record(record.Record{Seq: int64(i + 1), Kind: p.Kind(), Payload: raw})
	}
	steps.Record(record.Record{Seq: 1000, Kind: "some.other", Payload: []byte("{}")})
	steps.Record(record.Record{Seq: 1001, Kind: record.KindMessage, Payload: []byte(`{"blocks":7}`)})
	if len(unknown) != 2 || unknown[0] != "some.other" || unknown[1] != "message" {
		t.Errorf("not known: %q, want some.other and message, whose payload is none", unknown)
	}
}

// A command that a signal ended is told by the signal, wherever it is told.
func TestStepsNameSignals(t *testing.T) {
	var told []string
	steps := NewSteps(func(s Step) {
		if s.Call != nil {
			told = append(told, s.Call.Ending)
		} else {
			told = append(told, s.Text)
		}
	})
	for i, p := range []record.Payload{
		record.ToolCalled{CallID: "1", Name: "shell"},
		record.ToolCompleted{CallID: "1", Name: "shell", Metadata: map[string]any{"exit_code": -1, "signal": 9}},
		record.ToolCalled{CallID: "2", Name: "shell"},
		record.ToolCompleted{CallID: "2", Name: "shell", Metadata: map[string]any{"exit_code": -1, "signal": 15, "timed_out": true}},
		record.BackgroundEnded{Handle: "background-1", EndedBy: "shell_kill", ExitCode: -1, Signal: 15},
		record.UserCommandStarted{ExecID: "3", Argv: []string{"sleep"}},
		record.UserCommandEnded{ExecID: "3", ExitCode: -1, Signal: 2},
		record.UserCommandEnded{ExecID: "4", ExitCode: 1}, // the control
	} {
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		steps.Record(record.Record{Seq: int64(i + 1), Kind: p.Kind(), Payload: raw})
	}
	steps.Close()
	text := strings.Join(told, "\n")
	for _, want := range []string{"SIGKILL", "timed out", "background-1 ended by shell_kill, SIGTERM", "sleep (SIGINT)", "4 (exit code 1)"} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "-1,") || strings.Contains(text, "code -1") {
		t.Errorf("an exit code of -1:\n%s", text)
	}
}
