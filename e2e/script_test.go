package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
)

// scriptTurn is one turn of the model in a replay script (docs/testing.md),
// which loop/replay plays while the tools really run.
type scriptTurn struct {
	Text  string       `json:"text,omitempty"`
	Calls []scriptCall `json:"calls,omitempty"`
}

type scriptCall struct {
	Tool  string         `json:"tool"`
	Input map[string]any `json:"input"`
}

// call returns a call without an expectation, because tests check the records.
func call(tool string, input map[string]any) scriptCall {
	return scriptCall{Tool: tool, Input: input}
}

// shell returns a call of the shell tool.
func shell(command string) scriptCall {
	return call("shell", map[string]any{"command": command})
}

// playing writes a script that makes the rounds of calls and then answers. It
// returns the arguments with which caisson plays it.
func (m *machine) playing(t testing.TB, rounds ...[]scriptCall) []string {
	t.Helper()
	const task = "do what the test says"
	var turns []scriptTurn
	for _, calls := range rounds {
		turns = append(turns, scriptTurn{Calls: calls})
	}
	turns = append(turns, scriptTurn{Text: "Done."})
	path := filepath.Join(filepath.Dir(m.home), "script.yaml")
	// JSON is YAML.
	text := fmt.Sprintf("version: 1\nname: test\ntask: %s\nturns: %s\n", task, mustJSON(t, turns))
	writeFile(t, path, text, 0o644)
	return []string{"--model", "replay/" + path, task}
}
