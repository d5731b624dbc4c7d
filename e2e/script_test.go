//go:build linux

package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// script is a replay script (docs/testing.md): the turns of the model, which
// loop/replay plays while the tools really run. JSON is YAML.
type script struct {
	Version int          `json:"version"`
	Name    string       `json:"name"`
	Task    string       `json:"task"`
	Turns   []scriptTurn `json:"turns"`
}

type scriptTurn struct {
	Text  string       `json:"text,omitempty"`
	Calls []scriptCall `json:"calls,omitempty"`
}

type scriptCall struct {
	Tool  string         `json:"tool"`
	Input map[string]any `json:"input"`
}

// call is a call without an expectation: the tests judge the records.
func call(tool string, input map[string]any) scriptCall {
	return scriptCall{Tool: tool, Input: input}
}

// shell is a call of the shell tool.
func shell(command string) scriptCall {
	return call("shell", map[string]any{"command": command})
}

// playing writes a script that makes each round of calls and then answers, and
// gives the arguments of caisson that play it.
func (m *machine) playing(t *testing.T, rounds ...[]scriptCall) []string {
	t.Helper()
	s := script{Version: 1, Name: "test", Task: "do what the test says"}
	for _, calls := range rounds {
		s.Turns = append(s.Turns, scriptTurn{Calls: calls})
	}
	s.Turns = append(s.Turns, scriptTurn{Text: "Done."})
	path := filepath.Join(filepath.Dir(m.home), "script.yaml")
	if err := os.WriteFile(path, []byte(mustJSON(t, s)), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"--model", "replay/" + path, s.Task}
}
