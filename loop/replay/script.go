package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"github.com/caisson-run/caisson/tools"
)

type script struct {
	Version int          `yaml:"version"`
	Name    string       `yaml:"name"`
	Task    string       `yaml:"task"`
	Turns   []scriptTurn `yaml:"turns"`
}

type scriptTurn struct {
	Text  string       `yaml:"text"`
	Calls []scriptCall `yaml:"calls"`
}

type scriptCall struct {
	Tool   string         `yaml:"tool"`
	Input  map[string]any `yaml:"input"`
	Raw    *string        `yaml:"raw"`
	Expect *expectation   `yaml:"expect"`
}

// stringList is decoded from a list or a single string.
type stringList []string

func (t *stringList) UnmarshalYAML(decode func(any) error) error {
	var one string
	if decode(&one) == nil {
		*t = stringList{one}
		return nil
	}
	var many []string
	if err := decode(&many); err != nil {
		return err
	}
	*t = many
	return nil
}

const scriptVersion = 1

// parseScript parses a script. Errors start with line and column.
func parseScript(data []byte) (recording, error) {
	var s script
	decoder := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict())
	if err := decoder.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			return recording{}, errors.New("1:1: the script is empty")
		}
		return recording{}, addPosition(err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		return recording{}, errors.New("1:1: the file holds more than one YAML document")
	}
	if path, reason := s.findFault(); reason != "" {
		return recording{}, fmt.Errorf("%s: %s", findPosition(data, path), reason)
	}
	return s.buildRecording()
}

// findFault returns the YAML path and the reason of the first fault that strict
// decoding doesn't find. The reason is "" if there is none.
func (s script) findFault() (path, reason string) {
	switch {
	case s.Version != scriptVersion:
		return "$.version", fmt.Sprintf("version is %d, this Caisson knows version %d", s.Version, scriptVersion)
	case len(s.Turns) == 0:
		return "$.turns", "a script needs at least one turn"
	}
	for i, t := range s.Turns {
		turnPath := fmt.Sprintf("$.turns[%d]", i)
		if t.Text == "" && len(t.Calls) == 0 {
			return turnPath, "a turn needs text, calls or both"
		}
		for j, c := range t.Calls {
			callPath := fmt.Sprintf("%s.calls[%d]", turnPath, j)
			switch {
			case c.Tool == "":
				return callPath, "a call needs a tool"
			case c.Raw != nil && c.Input != nil:
				return callPath, "a call has input or raw, not both"
			}
		}
	}
	return "", ""
}

func (s script) buildRecording() (recording, error) {
	r := recording{name: s.Name, task: s.Task}
	for i, t := range s.Turns {
		played := turn{text: t.Text}
		for _, c := range t.Calls {
			raw, err := c.encodeArguments()
			if err != nil {
				return recording{}, fmt.Errorf("1:1: turn %d: input of %s: %w", i+1, c.Tool, err)
			}
			played.calls = append(played.calls, call{tool: tools.Name(c.Tool), raw: raw, expect: c.Expect})
		}
		r.turns = append(r.turns, played)
	}
	return r, nil
}

func (c scriptCall) encodeArguments() (string, error) {
	if c.Raw != nil {
		return *c.Raw, nil
	}
	if c.Input == nil {
		return "{}", nil
	}
	data, err := json.Marshal(c.Input)
	return string(data), err
}

func addPosition(err error) error {
	y, ok := errors.AsType[yaml.Error](err)
	if !ok || y.GetToken() == nil || y.GetToken().Position == nil {
		return fmt.Errorf("1:1: %w", err)
	}
	at := y.GetToken().Position
	return fmt.Errorf("%d:%d: %s", at.Line, at.Column, y.GetMessage())
}

// findPosition returns a YAML path's line and column, or 1:1 if it doesn't exist.
func findPosition(data []byte, path string) string {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return "1:1"
	}
	p, err := yaml.PathString(path)
	if err != nil {
		return "1:1"
	}
	node, err := p.FilterFile(file)
	if err != nil || node == nil || node.GetToken() == nil {
		return "1:1"
	}
	at := node.GetToken().Position
	return fmt.Sprintf("%d:%d", at.Line, at.Column)
}
