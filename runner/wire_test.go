package runner

import (
	"reflect"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// TestRecordsSayWhatWasShown: every field of a confirmation's record is filled from its event. The
// control is an empty event, whose fields are seen to be empty.
func TestRecordsSayWhatWasShown(t *testing.T) {
	shown := newConfirmationRequested(approval.Confirmation{Question: approval.Question{
		ID: "00ff", CallID: "tu_1", Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Dangerous: "rm -rf /", Input: "{}", Summary: "rm -rf /",
		InputHash: "cd", Projected: []string{"a"}, Diff: "+a", Notices: []string{"60 blanks in a row"}, Covers: []string{"run.sh"}, Hidden: true, Changed: true,
		Scopes: []approval.Scope{approval.ScopeOnce}, Phrase: "rm -rf /", Definition: "ef", Redefined: true,
	}, Expires: time.Unix(1, 0)})
	if empty := emptyFields(shown); len(empty) > 0 {
		t.Errorf("%T says nothing of %q", shown, empty)
	}
	if shown.CommandLine == nil || *shown.CommandLine != "rm -rf /" || newConfirmationRequested(approval.Confirmation{Question: approval.Question{Class: tools.ClassWrite, Summary: "a"}}).CommandLine != nil {
		t.Error("a command is recorded of each call that executes one, and of no other")
	}
	if empty := emptyFields(newConfirmationRequested(approval.Confirmation{})); len(empty) < 15 {
		t.Errorf("of an event that says nothing only %q are empty", empty)
	}
}

// emptyFields returns the names of a struct's fields that are zero or empty lists.
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

func TestAmountsOfRecords(t *testing.T) {
	if got := record.NewBudget(limits.Budget{WallTime: new(time.Minute)}); got.WallTimeMS == nil || *got.WallTimeMS != 60_000 {
		t.Errorf("%+v", got)
	}
	if got := record.NewBudget(limits.Budget{}); got != (record.Budget{}) {
		t.Errorf("%+v", got)
	}
	if none := record.NonNil[string](nil); none == nil || len(record.NonNil([]string{"a"})) != 1 {
		t.Errorf("an empty list is %#v", none)
	}
}
