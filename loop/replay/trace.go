package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
)

// traceRecord has the used parts of a record.Record.
type traceRecord struct {
	Kind    string          `json:"kind"`
	Payload json.RawMessage `json:"payload"`
}

// parseTrace parses JSON lines. The last may be incomplete, as after a kill.
func parseTrace(data []byte) (recording, error) {
	var (
		history []loop.Message
		records int
	)
	lines := bytes.Split(data, []byte("\n"))
	for i, line := range lines {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var r traceRecord
		if err := json.Unmarshal(line, &r); err != nil {
			if i == len(lines)-1 && records > 0 {
				break
			}
			return recording{}, lineError(i, err)
		}
		if r.Kind == "" {
			return recording{}, fmt.Errorf("%d:1: not a record: no kind", i+1)
		}
		records++
		if r.Kind != "message" {
			continue
		}
		var m loop.Message
		if err := json.Unmarshal(r.Payload, &m); err != nil {
			return recording{}, fmt.Errorf("%d:1: message: %w", i+1, err)
		}
		history = append(history, m)
	}
	return recordingFromHistory(history)
}

func lineError(line int, err error) error {
	column := int64(1)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		column = max(syntax.Offset, 1)
	}
	return fmt.Errorf("%d:%d: %w", line+1, column, err)
}

func recordingFromHistory(history []loop.Message) (recording, error) {
	var r recording
	results := map[string]*expectation{}
	for _, m := range history {
		for _, b := range m.Blocks {
			if t := b.ToolResult; t != nil {
				results[t.ToolUseID] = &expectation{Text: new(boundary.ResultText(t.Content)), Error: &t.IsError}
			}
			if m.Role == loop.RoleUser && r.task == "" && b.Text != nil {
				r.task = b.Text.Text
			}
		}
	}
	for _, m := range history {
		if m.Role != loop.RoleAssistant {
			continue
		}
		if t := turnFromMessage(m, results); t.text != "" || len(t.calls) > 0 {
			r.turns = append(r.turns, t)
		}
	}
	if len(r.turns) == 0 {
		return recording{}, errors.New("1:1: no message of an assistant in it")
	}
	return r, nil
}

func turnFromMessage(m loop.Message, results map[string]*expectation) turn {
	var t turn
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil && t.text == "":
			t.text = b.Text.Text
		case b.Text != nil:
			t.text += "\n" + b.Text.Text
		case b.ToolUse != nil:
			u := b.ToolUse
			c := call{tool: u.Name, raw: string(u.Input), expect: results[u.ID]}
			t.truncated = false
			if u.InputError != "" {
				c.raw = u.Raw
				// The arguments are complete, so they were refused because the answer
				// was cut.
				t.truncated = isJSONObject(u.Raw)
			}
			t.calls = append(t.calls, c)
		}
	}
	return t
}
