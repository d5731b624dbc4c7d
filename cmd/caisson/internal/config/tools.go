package config

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// ToolSchema is a JSON Schema.
type ToolSchema json.RawMessage

// UnmarshalYAML implements yaml.NodeUnmarshaler.
func (s *ToolSchema) UnmarshalYAML(n ast.Node) error {
	var v map[string]any
	if err := yaml.NodeToValue(n, &v); err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return errorAt(n, fmt.Errorf("it can't be written as JSON: %w", err))
	}
	*s = text
	return nil
}

func (ToolSchema) jsonSchema() map[string]any {
	return map[string]any{"type": "object"}
}

// Tools are the declared tools by name.
type Tools map[string]Tool

// UnmarshalYAML also checks each tool by the rules of registration, to report its
// place.
func (t *Tools) UnmarshalYAML(n ast.Node) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return errorAt(n, errors.New("tools are declared by their names: NAME, then the keys of the tool"))
	}
	*t = Tools{}
	for _, v := range m.Values {
		name := v.Key.GetToken().Value
		if _, ok := (*t)[name]; ok {
			return errorAt(v.Key, fmt.Errorf("the tool %s is declared twice", name))
		}
		var one Tool
		if err := yaml.NodeToValue(v.Value, &one, yaml.Strict()); err != nil {
			return err
		}
		if err := one.checkDeclaration(name, v); err != nil {
			return err
		}
		(*t)[name] = one
	}
	return nil
}

// checkDeclaration makes and checks the declaration. The error is at the wrong key.
func (t *Tool) checkDeclaration(name string, at *ast.MappingValueNode) error {
	if t.InputSchema == nil {
		t.InputSchema = ToolSchema(`{"type":"object","properties":{}}`)
	}
	t.declared = shell.Declared{
		Name: tools.Name(name), Description: strings.TrimSpace(t.Description), InputSchema: json.RawMessage(t.InputSchema),
		Template: shell.Template{Argv: t.Command, Script: t.Script}, Class: tools.Class(t.Class),
		Dir: t.Cwd, Timeout: time.Duration(t.Timeout), Paths: t.Paths, Parallel: t.Parallel, RequiresAdmin: t.RequiresAdmin,
	}
	for _, problem := range t.declared.Check() {
		return errorAt(nodeOf(at, problem.Key), errors.New(problem.Message))
	}
	if strings.Contains(name, "/") {
		return errorAt(at.Key, fmt.Errorf("%q is not a name for a declared tool; write it in lower case with _, and no slash", name))
	}
	builtin, err := runner.Definitions()
	if err != nil {
		return errorAt(at.Key, err)
	}
	if slices.ContainsFunc(builtin, func(d tools.Definition) bool { return string(d.Name) == name }) {
		return errorAt(at.Key, fmt.Errorf("%s is a tool of Caisson's own; give yours another name", name))
	}
	factory, err := shell.NewDeclared(unrunnable{}, t.declared, shell.Options{})
	if err != nil {
		return errorAt(at.Key, err)
	}
	if refused, ok := errors.AsType[*tools.RegistrationError](tools.CheckFactory(factory)); ok {
		node := ast.Node(at.Key)
		if strings.HasPrefix(refused.Problems[0], "/") { // a construct of the schema
			node = nodeOf(at, "input_schema")
		}
		return errorAt(node, errors.New(strings.Join(refused.Problems, "; ")))
	}
	return nil
}

// unrunnable runs nothing: declarations are only checked here.
type unrunnable struct{}

func (unrunnable) Run(context.Context, shell.Command) (shell.Result, error) {
	return shell.Result{}, errors.New("a declaration was run")
}

// nodeOf returns the node of a key of a mapping, or else the mapping's own key.
func nodeOf(at *ast.MappingValueNode, key string) ast.Node {
	if m, ok := at.Value.(*ast.MappingNode); ok {
		for _, v := range m.Values {
			if v.Key.GetToken().Value == key {
				return v.Key
			}
		}
	}
	return at.Key
}

// Declared returns the declarations, sorted by name.
func (t Tools) Declared() []shell.Declared {
	var out []shell.Declared
	for _, name := range sortedKeys(t) {
		out = append(out, t[name].declared)
	}
	return out
}
