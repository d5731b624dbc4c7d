// Package answer makes the form that --output-schema asks of an answer.
package answer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/verify"
)

// MaxSchemaBytes bounds a schema: the model gets it with the task.
const MaxSchemaBytes = 256 << 10

// NewFormat returns the form of an answer that is one JSON value, valid by a JSON Schema
// of draft 2020-12. References to definitions of the schema itself are supported, unless
// they are recursive.
func NewFormat(schema []byte) (*runner.AnswerFormat, error) {
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("the schema is not JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the schema is not JSON: more data after the value")
	}
	flat, err := (&inliner{root: doc}).inlineReferences(doc)
	if err != nil {
		return nil, fmt.Errorf("the schema %w", err)
	}
	if object, ok := flat.(map[string]any); ok {
		delete(object, "$defs")
		delete(object, "definitions")
	}
	text, err := json.Marshal(flat)
	if err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	compiled, err := verify.CompileSchema(text)
	if err != nil {
		return nil, fmt.Errorf("the schema %w", err)
	}
	return &runner.AnswerFormat{
		Request: "Your answer must be one JSON value and nothing else: no explanation and no code fence. It must be valid by this JSON Schema:\n\n" + strings.TrimSpace(string(schema)),
		Check: func(text string) (string, []string) {
			value := worker.TrimFence(text)
			return value, compiled.Check(value)
		},
	}, nil
}

// maxParts bounds the parts of a schema whose references were replaced.
const maxParts = 10_000

// inliner replaces references with what they refer to.
type inliner struct {
	root  any
	parts int
	// open are the references under way.
	open []string
}

// inlineReferences returns a schema without references. Its errors read as the end of a sentence
// about it.
func (n *inliner) inlineReferences(schema any) (any, error) {
	n.parts++
	if n.parts > maxParts {
		return nil, fmt.Errorf("has more than %d parts once its references are replaced", maxParts)
	}
	if list, ok := schema.([]any); ok {
		return n.inlineList(list)
	}
	object, ok := schema.(map[string]any)
	if !ok {
		return schema, nil
	}
	out := map[string]any{}
	for key, value := range object {
		var err error
		switch key {
		case "const", "enum", "default", "examples", "$defs", "definitions", "$ref":
		case "properties", "patternProperties", "dependentSchemas":
			value, err = n.inlineEach(value)
		default:
			value, err = n.inlineReferences(value)
		}
		if err != nil {
			return nil, err
		}
		out[key] = value
	}
	ref, ok := object["$ref"].(string)
	if !ok {
		return out, nil
	}
	target, err := n.followReference(ref)
	if err != nil {
		return nil, err
	}
	delete(out, "$ref")
	all, _ := out["allOf"].([]any)
	out["allOf"] = append(slices.Clone(all), target)
	return out, nil
}

func (n *inliner) inlineList(list []any) (any, error) {
	out := make([]any, len(list))
	for i, v := range list {
		var err error
		if out[i], err = n.inlineReferences(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inlineEach replaces the references in an object whose keys are names.
func (n *inliner) inlineEach(v any) (any, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return v, nil
	}
	out := map[string]any{}
	for name, schema := range object {
		var err error
		if out[name], err = n.inlineReferences(schema); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// followReference returns the schema that a reference refers to, without references.
func (n *inliner) followReference(ref string) (any, error) {
	if slices.Contains(n.open, ref) {
		return nil, fmt.Errorf("has a definition that contains itself: %q", ref)
	}
	path, ok := strings.CutPrefix(ref, "#/")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 2 || parts[0] != "$defs" && parts[0] != "definitions" {
		return nil, fmt.Errorf("has a reference that is not supported: %q; those to its own definitions are, such as #/$defs/NAME", ref)
	}
	root, _ := n.root.(map[string]any)
	definitions, _ := root[parts[0]].(map[string]any)
	target, ok := definitions[strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[1])]
	if !ok {
		return nil, fmt.Errorf("refers to a definition that it does not have: %q", ref)
	}
	n.open = append(n.open, ref)
	defer func() { n.open = n.open[:len(n.open)-1] }()
	return n.inlineReferences(target)
}
