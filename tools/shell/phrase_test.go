package shell

import (
	"encoding/json"
	"testing"

	"github.com/caisson-run/caisson/tools/policy"
)

// TestLastingAnswersAreForTheWorkspaceItself checks that an approved command is
// asked about again in another directory and in the background.
func TestLastingAnswersAreForTheWorkspaceItself(t *testing.T) {
	for input, want := range map[string]string{
		`{"command":"git status"}`:                                      "git status",
		`{"command":"git  status","timeout_seconds":5}`:                 "git status",
		`{"command":"git status","cwd":"."}`:                            "git status",
		`{"command":"git status","background":false,"description":"x"}`: "git status",
		`{"command":"git status","cwd":"sub"}`:                          "",
		`{"command":"git status","cwd":"/workspace/sub"}`:               "",
		`{"command":"git status","background":true}`:                    "",
		`{"command":"git status","cwd":"sub","background":true}`:        "",
		`{"command":"ls; id","cwd":"."}`:                                "",
		`not json`:                                                      "",
	} {
		got := ""
		if list := approvalCommands(json.RawMessage(input)); len(list) == 1 { // more than one are never covered
			got, _ = policy.StaticPhrase(list[0])
		}
		if got != want {
			t.Errorf("%s is kept as %q, want %q", input, got, want)
		}
	}
	// The control: by its command alone each would be covered.
	if got, err := policy.StaticPhrase(inputCommand(json.RawMessage(`{"command":"git status","cwd":"sub","background":true}`))); got != "git status" || err != nil {
		t.Errorf("control: %q, %v", got, err)
	}
}
