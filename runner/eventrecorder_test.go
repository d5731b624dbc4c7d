package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// TestCallsOfTheSandboxAreRecordedBehindIt: one call waits and then runs, one is cancelled while it
// waits, and one only reads and doesn't wait.
func TestCallsOfTheSandboxAreRecordedBehindIt(t *testing.T) {
	rec := newJournalRecorder(t, record.RecorderOptions{})
	j := newEventRecorder(rec, nil)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(j.writeRecord(record.SessionCreated{}))
	do(j.toolEvent(dispatch.Called{CallID: "tu_run", Name: "shell", Class: tools.ClassExecute}))
	do(j.toolEvent(dispatch.Called{CallID: "tu_gone", Name: "write_file", Class: tools.ClassWrite}))
	do(j.toolEvent(dispatch.Called{CallID: "tu_read", Name: "read_file", Class: tools.ClassRead}))
	do(j.toolEvent(dispatch.Completed{CallID: "tu_read", Name: "read_file"}))
	do(j.toolEvent(dispatch.Failed{CallID: "tu_gone", Name: "write_file", Class: tools.ErrorCancelled}))
	do(j.writeRecord(record.SandboxStarted{}))
	do(j.toolEvent(dispatch.Completed{CallID: "tu_run", Name: "shell"}))
	do(j.toolEvent(dispatch.Called{CallID: "tu_next", Name: "shell", Class: tools.ClassExecute}))

	var got []string
	for _, r := range recordsOf(t, rec) {
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

// TestAnswersThatChangeNothingAreRecorded checks for each outcome that the answer is on disk when
// its event returns.
func TestAnswersThatChangeNothingAreRecorded(t *testing.T) {
	rec := newJournalRecorder(t, record.RecorderOptions{})
	j := newEventRecorder(rec, nil)
	want := []record.ConfirmationAttempted{
		{RequestID: "00ff", CallID: "tu_1", Decision: "deny", By: "http", Outcome: approval.AttemptResolved, Recorded: "allow", RecordedBy: "user"},
		{RequestID: "00ff", CallID: "tu_1", Decision: "allow", Scope: "session", By: "http", Outcome: approval.AttemptExpired, Recorded: "timeout", RecordedBy: "timeout"},
		{RequestID: "stranger", Decision: "allow", By: "http", Outcome: approval.AttemptUnknown},
	}
	for _, e := range want {
		if err := j.toolEvent(dispatch.ConfirmationAttempted{Attempt: approval.Attempt(e)}); err != nil {
			t.Fatal(err)
		}
		if last := len(recordsOf(t, rec)); rec.Synced() != int64(last) {
			t.Errorf("record %d of %d is on the disk", rec.Synced(), last)
		}
	}
	var got []record.ConfirmationAttempted
	for _, r := range recordsOf(t, rec) {
		if r.Actor != record.ActorUser {
			t.Errorf("actor %s", r.Actor)
		}
		var p record.ConfirmationAttempted
		if err := json.Unmarshal(r.Payload, &p); err != nil || r.Kind != p.Kind() {
			t.Fatalf("record %d is %s: %v", r.Seq, r.Kind, err)
		}
		got = append(got, p)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCallsShareTheirSync blocks the sync of one call: another is recorded meanwhile, and neither
// runs before it is on disk.
func TestCallsShareTheirSync(t *testing.T) {
	held := false
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	rec := newJournalRecorder(t, record.RecorderOptions{Sync: func(*os.File) error {
		if held {
			once.Do(func() {
				close(entered)
				<-release
			})
		}
		return nil
	}})
	j := newEventRecorder(rec, nil)
	if err := errors.Join(j.writeRecord(record.SessionCreated{}), j.writeRecord(record.SandboxStarted{}), rec.Sync()); err != nil {
		t.Fatal(err)
	}
	held = true
	var calls sync.WaitGroup
	call := func(id string) {
		if err := j.toolEvent(dispatch.Called{CallID: id, Name: "shell", Class: tools.ClassExecute}); err != nil {
			t.Error(err)
		}
		if rec.Synced() < 3 {
			t.Errorf("%s runs before it is on the disk", id)
		}
	}
	calls.Go(func() { call("tu_1") })
	<-entered
	// A read behind the first call's sync would block forever.
	if err := j.toolEvent(dispatch.Called{CallID: "tu_2", Name: "read_file", Class: tools.ClassRead}); err != nil {
		t.Error(err)
	}
	calls.Go(func() { call("tu_3") })
	close(release)
	calls.Wait()
}

// TestNothingRunsBehindAnAuditRecordThatIsLost fills the disk: the answer fails, and so does the
// call that it allowed.
func TestNothingRunsBehindAnAuditRecordThatIsLost(t *testing.T) {
	var full error
	rec := newJournalRecorder(t, record.RecorderOptions{Sync: func(f *os.File) error { return errors.Join(full, f.Sync()) }})
	j := newEventRecorder(rec, nil)
	if err := errors.Join(j.writeRecord(record.SessionCreated{}), j.writeRecord(record.SandboxStarted{}), rec.Sync()); err != nil {
		t.Fatal(err)
	}
	full = syscall.ENOSPC
	err := j.toolEvent(dispatch.ConfirmationResolved{Resolution: approval.Resolution{CallID: "tu_1", RequestID: "00ff", Decision: approval.DecisionAllow, By: "user"}})
	if !errors.Is(err, tools.ErrRecord) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("resolved: %v", err)
	}
	full = nil // room again, too late
	if err := j.toolEvent(dispatch.Called{CallID: "tu_1", Name: "shell", Class: tools.ClassExecute}); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("called: %v", err)
	}
	if n := len(recordsOf(t, rec)); n != 3 {
		t.Errorf("%d records", n)
	}
}

// TestJournalRecordsWhatCausedWhat writes each kind of record, and compares its actor, turn and
// parent.
func TestJournalRecordsWhatCausedWhat(t *testing.T) {
	rec := newJournalRecorder(t, record.RecorderOptions{})
	var live []Delta
	j := newEventRecorder(rec, func(d Delta) { live = append(live, d) })
	own := func(p record.Payload) func() error { return func() error { return j.writeRecord(p) } }
	ofLoop := func(e loop.Event) func() error { return func() error { return j.loopEvent(e) } }
	ofTools := func(e dispatch.Event) func() error { return func() error { return j.toolEvent(e) } }
	message := func(role loop.Role, blocks ...loop.Block) func() error {
		return ofLoop(loop.MessageAdded{Message: loop.Message{Role: role, Blocks: blocks}})
	}
	command := ""
	do := []func() error{
		own(record.SessionCreated{}),
		own(record.Warning{}),
		func() (err error) { command, err = j.recordUser(record.UserCommandStarted{}, ""); return err },
		func() error { _, err := j.recordUser(record.UserCommandEnded{}, command); return err },
		func() error {
			j.beginTurn("http:alice", "", record.ActorAgent, func() record.TurnCancelled { return record.TurnCancelled{By: "user"} })
			return nil
		},
		ofLoop(loop.TurnStarted{Turn: "1"}),
		message(loop.RoleUser),
		ofLoop(loop.ModelCallStarted{}),
		ofLoop(loop.TextDelta{Text: "so"}),
		ofLoop(loop.ModelCallCompleted{}),
		message(loop.RoleAssistant),
		ofTools(dispatch.ConfirmationRequested{Confirmation: approval.Confirmation{Question: approval.Question{CallID: "a"}}}),
		ofTools(dispatch.ConfirmationResolved{Resolution: approval.Resolution{CallID: "a", By: "user"}}),
		ofTools(dispatch.ConfirmationAttempted{Attempt: approval.Attempt{CallID: "a"}}),
		ofTools(dispatch.Called{CallID: "a", Class: tools.ClassExecute}),
		ofTools(dispatch.OutputDelta{CallID: "a"}),
		func() error { return j.recordDenied(record.NetworkDenied{CallID: "a"}) },
		ofTools(dispatch.Warning{CallID: "a"}),
		ofTools(dispatch.Completed{CallID: "a"}),
		message(loop.RoleTool, loop.Block{ToolResult: &loop.ToolResult{ToolUseID: "a"}}),
		func() error { return j.recordBackground(record.BackgroundEnded{CallID: "a"}) },
		ofTools(dispatch.ConfirmationResolved{Resolution: approval.Resolution{CallID: "b", By: "session"}}),
		ofTools(dispatch.InputInvalid{CallID: "b"}),
		ofLoop(loop.CallRefused{CallID: "c", Class: tools.ErrorPermissionDenied}),
		message(loop.RoleTool, loop.Block{Text: &loop.Text{}}, loop.Block{ToolResult: &loop.ToolResult{ToolUseID: "none"}}),
		ofLoop(loop.BudgetWarning{}),
		ofLoop(loop.ContextShortened{}),
		ofLoop(loop.CanaryLeaked{Count: 1}),
		ofLoop(loop.ModelCallStarted{ModelCall: loop.ModelCall{Purpose: loop.PurposeSummary}}),
		ofLoop(loop.ModelCallCompleted{ModelCall: loop.ModelCall{Purpose: loop.PurposeSummary}}),
		ofLoop(loop.ContextCompacted{}),
		ofLoop(loop.ContextCompactionFailed{}),
		ofLoop(loop.ModelCallStarted{}),
		ofLoop(loop.ModelCallFailed{Message: "down"}),
		ofTools(dispatch.Failed{CallID: "d", Class: tools.ErrorUserDenied}),
		ofLoop(loop.TurnEnded{Reason: loop.StopAnswered}),
		own(record.Warning{}),
		ofLoop(loop.TurnStarted{Turn: "2"}),
		ofLoop(loop.ModelCallStarted{}),
		ofLoop(loop.ModelCallCompleted{FirstDeltaMS: new(int64(1000))}),
		ofTools(dispatch.Failed{CallID: "e", Class: tools.ErrorCancelled}),
		ofTools(dispatch.Called{CallID: "f", Class: tools.ClassWrite}), // it waits
		ofTools(dispatch.Completed{CallID: "f"}),
		ofTools(dispatch.Called{CallID: "g", Class: tools.ClassWrite}),
		ofTools(dispatch.Failed{CallID: "g"}),
		ofLoop(loop.TurnEnded{Reason: loop.StopCancelled, Usage: limits.Usage{Rounds: 7}, Wall: time.Second}),
	}
	for i, step := range do {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	records := recordsOf(t, rec)
	above := map[string]record.Kind{}
	var got []string
	for _, r := range records {
		got = append(got, fmt.Sprintf("%s by %s below %s %s", r.Kind, r.Actor, above[r.Parent], r.Turn))
		above[r.ID] = r.Kind
	}
	want := []string{
		"session.created by system below  ",
		"warning by system below session.created ",
		"sandbox.exec_started by user below session.created ",
		"sandbox.exec_ended by user below sandbox.exec_started ",
		"turn.started by user below session.created 1",
		"message by user below turn.started 1",
		"llm.call_started by agent below turn.started 1",
		"llm.call_completed by agent below llm.call_started 1",
		"message by agent below llm.call_completed 1",
		"tool.confirmation_requested by system below llm.call_completed 1",
		"tool.confirmation_resolved by user below tool.confirmation_requested 1",
		"tool.confirmation_attempted by user below tool.confirmation_resolved 1",
		"tool.called by agent below tool.confirmation_resolved 1",
		"network.denied by tool below tool.called 1",
		"warning by system below tool.called 1",
		"tool.completed by tool below tool.called 1",
		"message by tool below tool.completed 1",
		"sandbox.background_ended by tool below tool.completed 1",
		"tool.confirmation_resolved by system below llm.call_completed 1",
		"tool.input_invalid by tool below tool.confirmation_resolved 1",
		"tool.failed by tool below llm.call_completed 1",
		"message by tool below turn.started 1",
		"budget.warning by system below turn.started 1",
		"context.shortened by system below turn.started 1",
		"warning by system below llm.call_completed 1",
		"llm.call_started by agent below turn.started 1",
		"llm.call_completed by agent below llm.call_started 1",
		"context.compacted by system below llm.call_completed 1",
		"context.compaction_failed by system below llm.call_completed 1",
		"llm.call_started by agent below turn.started 1",
		"llm.call_failed by agent below llm.call_started 1",
		"tool.failed by tool below llm.call_failed 1",
		"turn.completed by system below turn.started 1",
		"warning by system below session.created ",
		"turn.started by user below session.created 2",
		"llm.call_started by agent below turn.started 2",
		"llm.call_completed by agent below llm.call_started 2",
		"tool.failed by tool below llm.call_completed 2",
		"tool.called by agent below llm.call_completed 2",
		"tool.completed by tool below tool.called 2",
		"tool.called by agent below llm.call_completed 2",
		"tool.failed by tool below tool.called 2",
		"turn.cancelled by system below turn.started 2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Delta{{Stream: "answer", Text: "so"}, {CallID: "a"}}, live); diff != "" {
		t.Errorf("live (-want +got):\n%s", diff)
	}
	if m := of[record.Message](t, records); m[0].Client != "http:alice" || m[1].Client != "" || of[record.TurnStarted](t, records)[0].Client != "http:alice" {
		t.Errorf("the user is not recorded: %+v", m)
	}
	if c := of[record.ModelCallCompleted](t, records); c[0].FirstDeltaMS != nil || c[1].Purpose != loop.PurposeSummary || c[2].FirstDeltaMS == nil || *c[2].FirstDeltaMS != 1000 {
		t.Errorf("first pieces %+v", c)
	}
	first, second := of[record.TurnCompleted](t, records)[0], of[record.TurnCancelled](t, records)[0]
	if first.ModelCalls != 3 || first.ToolCalls != 1 || second.ModelCalls != 1 || second.ToolCalls != 2 || second.By != "user" || second.Usage.Rounds != 7 || second.WallMS != 1000 {
		t.Errorf("turns %+v, %+v", first, second)
	}
	var denied []string
	for _, d := range j.currentTally().denials {
		denied = append(denied, d.CallID)
	}
	if diff := cmp.Diff([]string{"c", "d"}, denied); diff != "" || j.currentTally().modelFailure.Message != "down" {
		t.Errorf("failure %+v; denials (-want +got):\n%s", j.currentTally().modelFailure, diff)
	}
	if err := newEventRecorder(rec, nil).loopEvent(loop.TextDelta{}); err != nil { // no client is shown it
		t.Error(err)
	}
}

// TestJournalReportsWhatIsNotRecorded: a failure to record is an error, so that nothing happens
// unrecorded.
func TestJournalReportsWhatIsNotRecorded(t *testing.T) {
	do := map[string]func(*eventRecorder) error{
		"its own":      func(j *eventRecorder) error { return j.writeRecord(record.Warning{}) },
		"a connection": func(j *eventRecorder) error { return j.recordDenied(record.NetworkDenied{}) },
		"a connection of a call that waits": func(j *eventRecorder) error {
			j.waiting = []dispatch.Called{{CallID: "a"}}
			return j.recordDenied(record.NetworkDenied{CallID: "a"})
		},
		"a background command": func(j *eventRecorder) error { return j.recordBackground(record.BackgroundEnded{}) },
		"a user's command":     func(j *eventRecorder) error { _, err := j.recordUser(record.UserCommandStarted{}, ""); return err },
	}
	for _, e := range []loop.Event{
		loop.TurnStarted{},
		loop.MessageAdded{},
		loop.ModelCallStarted{},
		loop.ModelCallCompleted{},
		loop.ModelCallFailed{},
		loop.CallRefused{},
		loop.BudgetWarning{},
		loop.CanaryLeaked{},
		loop.ContextShortened{},
		loop.ContextCompacted{},
		loop.ContextCompactionFailed{},
		loop.TurnEnded{},
		loop.TurnEnded{Reason: loop.StopCancelled},
	} {
		do[fmt.Sprintf("%T%+v", e, e)] = func(j *eventRecorder) error { return j.loopEvent(e) }
	}
	for _, e := range []dispatch.Event{
		dispatch.Called{Class: tools.ClassRead},
		dispatch.Completed{},
		dispatch.Failed{},
		dispatch.InputInvalid{},
		dispatch.ConfirmationRequested{},
		dispatch.ConfirmationResolved{},
		dispatch.ConfirmationAttempted{},
		dispatch.Warning{},
	} {
		do[fmt.Sprintf("%T", e)] = func(j *eventRecorder) error { return j.toolEvent(e) }
	}
	for name, e := range map[string]dispatch.Event{"completed": dispatch.Completed{CallID: "a"}, "failed": dispatch.Failed{CallID: "a"}} {
		do["a call that waits and has "+name] = func(j *eventRecorder) error {
			j.waiting = []dispatch.Called{{CallID: "a"}}
			return j.toolEvent(e)
		}
	}
	full := false
	o := record.RecorderOptions{
		Mirror: func(r record.Record, _ []byte) { full = full || r.Kind == record.KindSandboxStarted },
		Write: func(f *os.File, line []byte) (int, error) {
			if full {
				return 0, syscall.ENOSPC
			}
			return f.Write(line)
		},
	}
	rec := newJournalRecorder(t, o)
	j := newEventRecorder(rec, nil)
	j.waiting = []dispatch.Called{{CallID: "a"}}
	if err := j.writeRecord(record.SandboxStarted{}); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("a call that waited for the sandbox: %v", err)
	}
	for name, step := range do {
		full = false
		j := newEventRecorder(newJournalRecorder(t, o), nil)
		if err := j.writeRecord(record.SessionCreated{}); err != nil {
			t.Fatal(err)
		}
		full = true
		if err := step(j); !errors.Is(err, tools.ErrRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJournalSyncsWhatActs: a call that may change something is on disk before it does, and so is
// an answer. Others don't wait for the disk.
func TestJournalSyncsWhatActs(t *testing.T) {
	rec := newJournalRecorder(t, record.RecorderOptions{})
	j := newEventRecorder(rec, nil)
	for _, step := range []struct {
		name string
		due  bool
		do   func() error
	}{
		{"the session", false, func() error { return j.writeRecord(record.SessionCreated{}) }},
		{"a call that waits", false, func() error { return j.toolEvent(dispatch.Called{CallID: "a", Class: tools.ClassExecute}) }},
		{"another one", false, func() error { return j.toolEvent(dispatch.Called{CallID: "b", Class: tools.ClassWrite}) }},
		{"the sandbox", true, func() error { return j.writeRecord(record.SandboxStarted{}) }},
		{"another sandbox", false, func() error { return j.writeRecord(record.SandboxRestarted{}) }},
		{"a call that reads", false, func() error { return j.toolEvent(dispatch.Called{CallID: "c", Class: tools.ClassRead}) }},
		{"a call that does nothing", false, func() error { return j.toolEvent(dispatch.Called{CallID: "d", Class: tools.ClassNone}) }},
		{"a call that writes", true, func() error { return j.toolEvent(dispatch.Called{CallID: "e", Class: tools.ClassWrite}) }},
		{"its end", false, func() error { return j.toolEvent(dispatch.Completed{CallID: "e"}) }},
		{"a call of the network", true, func() error { return j.toolEvent(dispatch.Called{CallID: "f", Class: tools.ClassNetwork}) }},
		{"an answer of the policy", false, func() error {
			return j.toolEvent(dispatch.ConfirmationResolved{Resolution: approval.Resolution{CallID: "g", By: "session"}})
		}},
		{"an answer of a user", true, func() error {
			return j.toolEvent(dispatch.ConfirmationResolved{Resolution: approval.Resolution{CallID: "g", By: "user"}})
		}},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if synced := rec.Synced() == int64(len(recordsOf(t, rec))); synced != step.due {
			t.Errorf("%s: on the disk %v, want %v", step.name, synced, step.due)
		}
	}
}

func newJournalRecorder(t *testing.T, opts record.RecorderOptions) *record.Recorder {
	t.Helper()
	opts.Dir, opts.Session = t.TempDir(), "ses_01JD0000000000000000000000"
	r, err := record.NewRecorder(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func recordsOf(t *testing.T, r *record.Recorder) []record.Record {
	t.Helper()
	text, err := os.ReadFile(r.Path())
	if err != nil {
		t.Fatal(err)
	}
	trace, err := record.ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return trace.Records
}
