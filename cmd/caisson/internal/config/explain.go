package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/caisson-run/caisson/runner/doctor"
)

// describeYAML describes an error of the YAML library without Go's types.
func describeYAML(err yaml.Error) string {
	if e, ok := errors.AsType[*yaml.TypeError](err); ok {
		return wantedHere(e.DstType.Kind())
	}
	if e, ok := errors.AsType[*yaml.UnexpectedNodeTypeError](err); ok {
		if e.Expected == ast.MappingType {
			return wantedHere(reflect.Map)
		}
		return wantedHere(reflect.Slice)
	}
	return strings.TrimSpace(err.GetMessage())
}

// hintYAML returns the hint for an error of the YAML library, or "" if it needs none.
func hintYAML(err yaml.Error) string {
	switch text := err.GetMessage(); {
	case strings.Contains(text, "already defined"):
		return "keep one of them"
	case strings.Contains(text, "\t"):
		return "indent with spaces"
	}
	return ""
}

// wantedHere describes the mistake of a value of another kind.
func wantedHere(kind reflect.Kind) string {
	switch kind {
	case reflect.Bool:
		return "write true or false"
	case reflect.Slice:
		return "a list is needed here, such as [a, b]"
	case reflect.Map, reflect.Struct:
		return "keys with their values are needed here, such as {key: value}"
	}
	return "write one value, not a list or section"
}

const maxListedKeys = 10

// suggestKey returns the hint for the unknown key at e in a file of type t: the key
// that was likely meant, or the possible keys. It returns "" for any other error.
func suggestKey(e *Error, body ast.Node, t reflect.Type) string {
	m := unknownField().FindStringSubmatch(e.Message)
	if m == nil {
		return ""
	}
	name, beside := m[1], keysBeside(body, t, token.Position{Line: e.Line, Column: e.Column})
	elsewhere := map[string][]string{}
	for _, k := range keysOf(t) {
		elsewhere[k.field.name] = append(elsewhere[k.field.name], k.name)
		for _, entry := range k.tagWords("names") {
			elsewhere[entry] = append(elsewhere[entry], k.name+"."+entry)
		}
	}
	near := doctor.NearestWord(name, beside)
	if at := elsewhere[name]; near == "" && len(at) > 0 && len(at) <= 3 {
		near = strings.Join(at, " or ")
	}
	switch {
	case near != "":
		return fmt.Sprintf("did you mean %s?", near)
	case len(beside) > 0 && len(beside) <= maxListedKeys:
		return "the keys here are " + strings.Join(beside, ", ")
	}
	return "the keys are listed in docs/settings.md"
}

// keysBeside returns the possible keys at a position in n, a value of type t, or nil if
// no key is there.
func keysBeside(n ast.Node, t reflect.Type, at token.Position) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch n := n.(type) {
	case *ast.SequenceNode:
		for _, item := range n.Values {
			if t.Kind() != reflect.Slice {
				return nil
			}
			if found := keysBeside(item, t.Elem(), at); found != nil {
				return found
			}
		}
	case *ast.MappingValueNode:
		return keysBesideEntry(n, t, at)
	case *ast.MappingNode:
		for _, entry := range n.Values {
			if found := keysBesideEntry(entry, t, at); found != nil {
				return found
			}
		}
	}
	return nil
}

func keysBesideEntry(n *ast.MappingValueNode, t reflect.Type, at token.Position) []string {
	types := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		for _, f := range fieldsOf(t) {
			types[f.name] = f.typ
		}
		if t == reflect.TypeFor[File]() {
			types["profiles"], types["workspaces"] = reflect.TypeFor[map[string]File](), reflect.TypeFor[map[string]File]()
		}
	}
	if p := n.Key.GetToken().Position; p.Line == at.Line && p.Column == at.Column {
		return sortedKeys(types)
	}
	inner := types[keyText(n.Key)]
	if t.Kind() == reflect.Map {
		inner = t.Elem()
	}
	if inner == nil {
		return nil
	}
	return keysBeside(n.Value, inner, at)
}
