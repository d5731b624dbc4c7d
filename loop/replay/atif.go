package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// trajectory has the used parts of an ATIF document, v1.0 to v1.7.
type trajectory struct {
	Schema string     `json:"schema_version"`
	Steps  []atifStep `json:"steps"`
	Agent  struct {
		Model string `json:"model_name"`
	} `json:"agent"`
}

type atifStep struct {
	Source  string      `json:"source"`
	Message atifContent `json:"message"`
	// Copied reports whether the step repeats one of an earlier trajectory.
	Copied      bool       `json:"is_copied_context"`
	Calls       []atifCall `json:"tool_calls"`
	Observation struct {
		Results []atifResult `json:"results"`
	} `json:"observation"`
}

type atifCall struct {
	ID        string          `json:"tool_call_id"`
	Function  string          `json:"function_name"`
	Arguments json.RawMessage `json:"arguments"`
	// Extra may have raw_arguments: the arguments as the model wrote them, if they are
	// not an object. Caisson's export writes it.
	Extra map[string]any `json:"extra"`
}

type atifResult struct {
	Call    string       `json:"source_call_id"`
	Content *atifContent `json:"content"`
	Extra   struct {
		IsError *bool `json:"is_error"`
	} `json:"extra"`
}

// atifContent is text, decoded from a string or from a list of parts.
type atifContent string

func (c *atifContent) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = atifContent(text)
		return nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return fmt.Errorf("content is neither text nor parts: %w", err)
	}
	var all []string
	for _, p := range parts {
		if p.Text != "" {
			all = append(all, p.Text)
		}
	}
	*c = atifContent(strings.Join(all, "\n"))
	return nil
}

// isATIF reports whether the first JSON value in data names an ATIF schema.
func isATIF(data []byte) bool {
	var head struct {
		Schema any `json:"schema_version"`
	}
	if json.NewDecoder(bytes.NewReader(data)).Decode(&head) != nil {
		// Recognize broken documents by name, for a better error.
		return bytes.Contains(data[:min(len(data), 4<<10)], []byte(`"ATIF-v`))
	}
	name, _ := head.Schema.(string)
	return strings.HasPrefix(name, "ATIF-v1.")
}

// parseATIF parses a trajectory. The agent's steps are the turns.
func parseATIF(data []byte) (recording, error) {
	var doc trajectory
	if err := json.Unmarshal(data, &doc); err != nil {
		return recording{}, documentError(data, err)
	}
	r := recording{name: doc.Agent.Model}
	for _, s := range doc.Steps {
		switch {
		case s.Copied:
		case s.Source == "user" && r.task == "":
			r.task = string(s.Message)
		case s.Source == "agent" && (s.Message != "" || len(s.Calls) > 0):
			r.turns = append(r.turns, s.buildTurn())
		}
	}
	if len(r.turns) == 0 {
		return recording{}, errors.New("1:1: no step of an agent in it")
	}
	return r, nil
}

func (s atifStep) buildTurn() turn {
	t := turn{text: string(s.Message)}
	for _, c := range s.Calls {
		played := call{tool: tools.Name(c.Function), raw: string(c.Arguments)}
		if raw, ok := c.Extra["raw_arguments"].(string); ok {
			played.raw = raw
		}
		for _, r := range s.Observation.Results {
			if r.Call == c.ID && r.Content != nil {
				played.expect = &expectation{Text: (*string)(r.Content), Error: r.Extra.IsError}
			}
		}
		t.calls = append(t.calls, played)
	}
	return t
}

// documentError adds the line and column at which data is invalid to err.
func documentError(data []byte, err error) error {
	offset := int64(0)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = syntax.Offset
	} else if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		offset = kind.Offset
	}
	before := data[:min(max(offset-1, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Errorf("%d:%d: %w", line, column, err)
}
