package runner

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
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

// TestAnswersThatChangeNothingAreRecorded gives each outcome, and looks that
// answers are on the disk when their event returns.
func TestAnswersThatChangeNothingAreRecorded(t *testing.T) {
	rec := newTestRecorder(t, RecorderOptions{})
	j := newJournal(rec, nil)
	stranger := strings.Repeat("é", 1000)
	for _, e := range []tools.ConfirmationAttempted{
		{ConfirmationID: "00ff", CallID: "tu_1", Decision: tools.DecisionDeny, Client: "http", Recorded: tools.DecisionAllow, By: "user"},
		{ConfirmationID: "00ff", CallID: "tu_1", Decision: tools.DecisionAllow, Scope: tools.ScopeSession, Client: "http", Recorded: tools.DecisionTimeout, By: "timeout"},
		{ConfirmationID: stranger, Decision: tools.DecisionAllow, Client: "http"},
	} {
		if err := j.toolEvent(e); err != nil {
			t.Fatal(err)
		}
		if rec.synced != rec.seq {
			t.Errorf("record %d of %d is on the disk", rec.synced, rec.seq)
		}
	}
	var got []ConfirmationAttempted
	for _, r := range readTrace(t, rec).Records {
		if r.Actor != ActorUser {
			t.Errorf("actor %s", r.Actor)
		}
		got = append(got, decodePayload[ConfirmationAttempted](t, r))
	}
	want := []ConfirmationAttempted{
		{RequestID: "00ff", CallID: "tu_1", Decision: "deny", By: "http", Outcome: AttemptResolved, Recorded: "allow", RecordedBy: "user"},
		{RequestID: "00ff", CallID: "tu_1", Decision: "allow", Scope: "session", By: "http", Outcome: AttemptExpired, Recorded: "timeout", RecordedBy: "timeout"},
		{RequestID: strings.Repeat("é", 64), Decision: "allow", By: "http", Outcome: AttemptUnknown},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCallsShareTheirSync holds the sync of one call up: another is recorded
// meanwhile, and neither runs before it is on the disk.
func TestCallsShareTheirSync(t *testing.T) {
	rec := newTestRecorder(t, RecorderOptions{})
	j := newJournal(rec, nil)
	if err := errors.Join(j.write(SessionCreated{}), j.write(SandboxStarted{}), rec.Sync()); err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	rec.fsync = func(*os.File) error {
		once.Do(func() {
			close(entered)
			<-release
		})
		return nil
	}
	var calls sync.WaitGroup
	call := func(id string) {
		if err := j.toolEvent(tools.Called{CallID: id, Name: "shell", Class: tools.ClassExecute}); err != nil {
			t.Error(err)
		}
		rec.mu.Lock()
		defer rec.mu.Unlock()
		if rec.synced < 3 {
			t.Errorf("%s runs before it is on the disk", id)
		}
	}
	calls.Go(func() { call("tu_1") })
	<-entered
	// A read would wait for ever, were it behind the first call's sync.
	if err := j.toolEvent(tools.Called{CallID: "tu_2", Name: "read_file", Class: tools.ClassRead}); err != nil {
		t.Error(err)
	}
	calls.Go(func() { call("tu_3") })
	close(release)
	calls.Wait()
}

// TestNothingRunsBehindAnAuditRecordThatIsLost lets the disk be full: the
// answer fails, and so does the call that it allowed.
func TestNothingRunsBehindAnAuditRecordThatIsLost(t *testing.T) {
	rec := newTestRecorder(t, RecorderOptions{})
	j := newJournal(rec, nil)
	if err := errors.Join(j.write(SessionCreated{}), j.write(SandboxStarted{}), rec.Sync()); err != nil {
		t.Fatal(err)
	}
	rec.fsync = func(*os.File) error { return syscall.ENOSPC }
	err := j.toolEvent(tools.ConfirmationResolved{CallID: "tu_1", ConfirmationID: "00ff", Decision: tools.DecisionAllow, By: "user"})
	if !errors.Is(err, tools.ErrRecord) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("resolved: %v", err)
	}
	rec.fsync = (*os.File).Sync // room again: too late
	if err := j.toolEvent(tools.Called{CallID: "tu_1", Name: "shell", Class: tools.ClassExecute}); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("called: %v", err)
	}
	if n := len(readTrace(t, rec).Records); n != 3 {
		t.Errorf("%d records", n)
	}
}
