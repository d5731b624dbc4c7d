package config

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// expandNode replaces ${VAR} and ${VAR:-default} in every string value below
// n; keys are left alone. Nothing is ever run.
func expandNode(n ast.Node, getenv func(string) (string, bool)) error {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if err := expandNode(v, getenv); err != nil {
				return err
			}
		}
	case *ast.MappingValueNode:
		if n.Key.GetToken().Value == "script" { // $ and braces are the script's own
			return nil
		}
		return expandNode(n.Value, getenv)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			if err := expandNode(v, getenv); err != nil {
				return err
			}
		}
	case *ast.AnchorNode:
		return expandNode(n.Value, getenv)
	case *ast.StringNode:
		text, err := expandText(n.Value, getenv)
		if err != nil {
			return errorAt(n, err)
		}
		n.Value = text
	}
	return nil
}

// expandText replaces the references in one string. "$" without a brace is itself.
func expandText(s string, getenv func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		ref, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", fmt.Errorf("${ without }")
		}
		name, def, hasDef := strings.Cut(ref, ":-")
		if !validName(name) {
			return "", fmt.Errorf("${%s} names no variable", ref)
		}
		v, ok := getenv(name)
		switch {
		case ok && (v != "" || !hasDef):
			b.WriteString(v)
		case hasDef:
			b.WriteString(def)
		default:
			return "", fmt.Errorf("${%s} is not set in the environment; set it, or write ${%s:-default}", name, name)
		}
		s = after
	}
}

func validName(s string) bool {
	for i, c := range s {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
