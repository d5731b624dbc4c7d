package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is a setting that can't be used, with its place.
type Error struct {
	// Where is a file, CAISSON_…, --flag, or a setting's key. File is the file with the
	// key, or "".
	Where, File string
	// Item is the item of a list that can't be used, or "" for all.
	Item string
	// Line and Column count from 1. They are 0 if unknown.
	Line, Column int
	Message      string
	// Hint may be "".
	Hint string
	// Err is the cause, or nil.
	Err error
}

func (e *Error) Unwrap() error { return e.Err }

// Error returns "where:line:column: message".
func (e *Error) Error() string {
	switch {
	case e.File != "":
		return fmt.Sprintf("%s:%d:%d: %s: %s", e.File, e.Line, e.Column, e.Where, e.Message)
	case e.Line == 0:
		return e.Where + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Where, e.Line, e.Column, e.Message)
}

// errorAt returns an error at a node's place. parse adds the file.
func errorAt(n ast.Node, err error) *Error {
	e := &Error{Message: err.Error()}
	if t := n.GetToken(); t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

const maxFileBytes = 1 << 20

// parse decodes one YAML document strictly. getenv returns the values of ${VAR}.
func parse(name string, text []byte, getenv lookup, dst any) error {
	return parseWith(name, text, func(body ast.Node) error { return expandNode(body, getenv) }, dst)
}

// parseWith is parse with another preparation of the document.
func parseWith(name string, text []byte, prepare func(body ast.Node) error, dst any) error {
	if len(text) > maxFileBytes {
		return &Error{Where: name, Message: fmt.Sprintf("larger than %d bytes", maxFileBytes)}
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // Windows editors write one
	// The YAML library never returns for some input that is not text.
	if i := bytes.IndexFunc(text, func(r rune) bool {
		return r == utf8.RuneError || r < ' ' && !strings.ContainsRune("\t\n\r", r) || r == 0x7f
	}); i >= 0 {
		return &Error{Where: name, Line: bytes.Count(text[:i], []byte("\n")) + 1, Column: 1, Message: "a byte that is not text (want UTF-8 without control characters)"}
	}
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return errorInFile(name, err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.NullType {
			continue
		}
		if body != nil {
			return errorInFile(name, errorAt(doc.Body, errors.New("a second document; a configuration file holds one")))
		}
		body = doc.Body
	}
	if body == nil {
		return nil
	}
	if err := prepare(body); err != nil {
		return errorInFile(name, err)
	}
	err = errorInFile(name, yaml.NodeToValue(body, dst, yaml.Strict()))
	if e, ok := errors.AsType[*Error](err); ok && e.Hint == "" {
		e.Hint = suggestKey(e, body, reflect.TypeOf(dst))
	}
	return err
}

// errorInFile turns any error into an [Error] with the file.
func errorInFile(name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		e.Where = name
		return e
	}
	e := &Error{Where: name, Message: strings.TrimSpace(err.Error())}
	if y, ok := errors.AsType[yaml.Error](err); ok {
		e.Message, e.Hint = describeYAML(y), hintYAML(y)
		if t := y.GetToken(); t != nil && t.Position != nil {
			e.Line, e.Column = t.Position.Line, t.Position.Column
		}
	}
	return e
}

// expandNode replaces ${VAR} and ${VAR:-default} in all string values below n, but not
// in keys. It runs nothing.
func expandNode(n ast.Node, getenv lookup) error {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if err := expandNode(v, getenv); err != nil {
				return err
			}
		}
	case *ast.MappingValueNode:
		if n.Key.GetToken().Value == "script" { // $ and braces belong to the script
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

// expandText replaces the references in a string. "$" without a brace stays.
func expandText(s string, getenv lookup) (string, error) {
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
