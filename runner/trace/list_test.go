package trace

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// TestReadBegin reads a session's task from its first records, whose
// instructions may be long, and no further than beginRecords.
func TestReadBegin(t *testing.T) {
	message := func(role loop.Role, text string) record.Payload {
		return record.Message{Role: role, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}}
	}
	long := message(loop.RoleSystem, strings.Repeat("x", 60_000))
	user := message(loop.RoleUser, "Make it so.")
	for name, c := range map[string]struct {
		payloads []record.Payload
		torn     string
		task     string
		err      bool
	}{
		"a task":              {[]record.Payload{record.SessionCreated{Task: "Engage."}, user}, "", "Engage.", false},
		"the first message":   {[]record.Payload{record.SessionCreated{}, record.TurnStarted{}, long, user, message(loop.RoleUser, "Later.")}, "", "Make it so.", false},
		"too late":            {[]record.Payload{record.SessionCreated{}, long, long, long, long, long, long, long, user}, "", "", false},
		"no message":          {[]record.Payload{record.SessionCreated{}}, "", "", false},
		"a torn line":         {[]record.Payload{record.SessionCreated{}}, `{"seq":2`, "", false},
		"damage":              {[]record.Payload{record.SessionCreated{}}, "{\n", "", false},
		"another first":       {[]record.Payload{user}, "", "", true},
		"damage at its start": {nil, "{\n", "", true},
	} {
		var lines strings.Builder
		for _, r := range recordsOf(t, c.payloads) {
			text, err := record.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(text, '\n'))
		}
		b, err := ReadBegin(strings.NewReader(lines.String() + c.torn))
		if b.Task != c.task || (err != nil) != c.err {
			t.Errorf("%s: got the task %q, %v", name, b.Task, err)
		}
	}
	for _, none := range []string{"", `{"seq":1`} {
		if _, err := ReadBegin(strings.NewReader(none)); !errors.Is(err, io.EOF) {
			t.Errorf("%q: got %v, want io.EOF", none, err)
		}
	}
}

// A session without a turn is listed with the end of its command.
func TestListNamesTheCommand(t *testing.T) {
	ended := func(reason loop.StopReason) record.SessionEnded {
		return record.SessionEnded{Reason: reason, CostUSD: "unknown"}
	}
	for name, c := range map[string]struct {
		payloads []record.Payload
		want     string
	}{
		"exec":            {[]record.Payload{record.UserCommandEnded{ExitStatus: sandbox.ExitStatus{Code: 3}}, ended(runner.StopNoTurn)}, "exit code 3"},
		"lost":            {[]record.Payload{record.UserCommandEnded{Error: "lost"}, ended(runner.StopNoTurn)}, "failed"},
		"a conversation":  {[]record.Payload{record.UserCommandEnded{}, ended(loop.StopAnswered)}, ""},
		"nothing":         {[]record.Payload{ended(runner.StopNoTurn)}, ""},
		"the only record": {nil, ""},
	} {
		state := t.TempDir()
		dir := sessiondir.Path(state, "ses_1")
		var lines strings.Builder
		for _, r := range recordsOf(t, append([]record.Payload{record.SessionCreated{}}, c.payloads...)) {
			text, err := record.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(text, '\n'))
		}
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "trace.jsonl"), []byte(lines.String()), 0o600)); err != nil {
			t.Fatal(err)
		}
		list, err := List(state, 0, nil)
		if err != nil || len(list) != 1 || list[0].Command != c.want || list[0].Damage != "" {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

// A session whose directory can't be read is listed with the cause, unlike one
// without records.
func TestUnreadableSessions(t *testing.T) {
	state := t.TempDir()
	for _, id := range []string{"ses_1", "ses_2"} { // the second is the control: it has no records
		if err := os.MkdirAll(sessiondir.Path(state, id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	loop := filepath.Join(sessiondir.Path(state, "ses_1"), record.TraceFile)
	if err := os.Symlink(record.TraceFile, loop); err != nil {
		t.Fatal(err)
	}
	list, err := List(state, 0, nil)
	if err != nil || len(list) != 1 || list[0].Session != "ses_1" || list[0].State != StateDamaged || list[0].Damage == "" {
		t.Errorf("listed %+v, %v", list, err)
	}
	file := filepath.Join(state, "file") // as a directory that may not be searched
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sessionInDir(file); !isReason(err, Unreadable) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := Find(state, "ses_2"); !isReason(err, NoRecords) {
		t.Errorf("no records: %v", err)
	}
	if os.Getuid() == 0 {
		return // no directory is closed to root
	}
	closed := sessiondir.Path(state, "ses_2")
	if err := os.Chmod(closed, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) })
	if list, err := List(state, 0, nil); err != nil || len(list) != 2 || !strings.Contains(list[0].Damage, "permission denied") {
		t.Errorf("listed %+v, %v", list, err)
	}
	if _, err := Find(state, "ses_2"); !isReason(err, Unreadable) {
		t.Errorf("a closed directory: %v", err)
	}
}

func isReason(err error, reason Reason) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == reason
}

// What follows the longest line is not read as a record.
func TestReadLastOfALongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), record.TraceFile)
	for _, text := range []string{strings.Repeat("a", 3*record.MaxLineBytes), "{}\n" + strings.Repeat("a", 3*record.MaxLineBytes) + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := ReadLast(f); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
}
