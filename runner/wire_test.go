package runner

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools"
)

// TestRecordsSayWhatWasShown: every field of the records of a confirmation and of
// a completed call is filled from its event. The control is an event that says
// nothing, whose fields are seen to be empty.
func TestRecordsSayWhatWasShown(t *testing.T) {
	shown := requested(tools.Confirmation{
		ID: "00ff", CallID: "tu_1", Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Dangerous: "rm -rf /", Input: "{}", Summary: "rm -rf /",
		Exact: json.RawMessage(`{}`), InputHash: "cd", Projected: []string{"a"}, Diff: "+a", Notices: []string{"60 blanks in a row"}, Covers: []string{"run.sh"}, Hidden: true, Changed: true,
		Scopes: []tools.Scope{tools.ScopeOnce}, Phrase: "rm -rf /", Expires: time.Unix(1, 0),
	})
	ended := completed(tools.Completed{
		CallID: "tu_1", Name: "shell", Success: true, OutputBytes: 1, Truncated: true, Latency: time.Second, FilesModified: []string{"a"}, Command: "ls", Metadata: map[string]any{"a": 1},
	})
	for _, record := range []any{shown, ended} {
		if empty := emptyFields(record); len(empty) > 0 {
			t.Errorf("%T says nothing of %q", record, empty)
		}
	}
	if empty := emptyFields(requested(tools.Confirmation{})); len(empty) < 15 {
		t.Errorf("of an event that says nothing only %q are empty", empty)
	}
}

// emptyFields returns the names of a struct's fields that are zero, or empty lists.
func emptyFields(record any) []string {
	var names []string
	v := reflect.ValueOf(record)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
}
