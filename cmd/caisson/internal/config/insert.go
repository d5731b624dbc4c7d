package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// inserter inserts an addition into YAML. It changes no existing byte, so that comments,
// quotes and order stay.
type inserter struct {
	text     []byte
	addition Addition
}

// errNotExtensible reports YAML to which no key or item can be added.
var errNotExtensible = errors.New("an anchor, a tag or a value of another kind is where the settings belong")

// insertBelow inserts the addition at keys below a node. line is the line of the node's
// own key, or 0 for the document, and indent the key's indentation.
func (i inserter) insertBelow(n ast.Node, line, indent int, keys []string) ([]byte, error) {
	if len(keys) == 0 {
		return i.extend(n, line)
	}
	var pairs []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		pairs = n.Values
		if n.IsFlowStyle {
			for _, pair := range pairs {
				if isKey(pair, keys[0]) {
					return i.insertBelow(pair.Value, pair.Key.GetToken().Position.Line, 0, keys[1:])
				}
			}
			return i.insertAfter(n.Start, "{", nestedFlow(keys, i.addition), len(pairs))
		}
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	case *ast.NullNode:
		if n.GetToken().Value != "" && n.GetToken().Type != token.ImplicitNullType {
			return nil, errNotExtensible
		}
		return i.insertLines(line, nestedLines(keys, i.within(keys), indent+2))
	}
	if len(pairs) == 0 {
		return nil, errNotExtensible
	}
	for _, pair := range pairs {
		if isKey(pair, keys[0]) {
			at := pair.Key.GetToken().Position
			return i.insertBelow(pair.Value, at.Line, at.Column-1, keys[1:])
		}
	}
	lines := nestedLines(keys, i.within(keys), pairs[0].Key.GetToken().Position.Column-1)
	if line == 0 {
		return appendLines(i.text, lines), nil
	}
	return i.insertLines(line, lines)
}

// within returns the addition for a place that lacks only keys: those of its own keys
// that exist are left out.
func (i inserter) within(keys []string) Addition {
	a := i.addition
	if len(keys) < len(a.Keys) {
		a.Keys = keys
	}
	return a
}

func isKey(pair *ast.MappingValueNode, key string) bool { return pair.Key.GetToken().Value == key }

// nestedFlow returns an addition below keys, on one line.
func nestedFlow(keys []string, a Addition) string {
	text := a.Value()
	for depth, key := range slices.Backward(keys) {
		text = FlowScalar(key) + ": " + text
		if depth > 0 {
			text = "{" + text + "}"
		}
	}
	return text
}

// extend inserts the items or entries into an existing list or map.
func (i inserter) extend(n ast.Node, line int) ([]byte, error) {
	a := i.addition
	if a.Entries != nil {
		m, isMap := n.(*ast.MappingNode)
		if isMap && m.IsFlowStyle {
			return i.insertAfter(m.Start, "{", a.entryText(), len(m.Values))
		}
		first, ok := n.(*ast.MappingValueNode)
		if isMap && len(m.Values) > 0 {
			first, ok = m.Values[0], true
		}
		if !ok {
			return nil, errNotExtensible
		}
		var lines strings.Builder
		for _, e := range a.Entries {
			fmt.Fprintf(&lines, "%*s%s: %s\n", first.Key.GetToken().Position.Column-1, "", e[0], e[1])
		}
		return i.insertLines(line, lines.String())
	}
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, errNotExtensible
	}
	if s.IsFlowStyle {
		return i.insertAfter(s.Start, "[", strings.Join(a.Items, ", "), len(s.Values))
	}
	var lines strings.Builder
	for _, item := range a.Items {
		fmt.Fprintf(&lines, "%*s- %s\n", s.Start.Position.Column-1, "", item)
	}
	return i.insertLines(line, lines.String())
}

// insertAfter inserts text after an opening bracket, before the items that are there.
func (i inserter) insertAfter(t *token.Token, bracket, text string, items int) ([]byte, error) {
	at, ok := i.offset(t.Position.Line, t.Position.Column)
	if !ok || !bytes.HasPrefix(i.text[at:], []byte(bracket)) {
		return nil, errNotExtensible
	}
	if items > 0 {
		text += ", "
	}
	return slices.Insert(slices.Clone(i.text), at+len(bracket), []byte(text)...), nil
}

// insertLines inserts lines after a line.
func (i inserter) insertLines(line int, lines string) ([]byte, error) {
	at, ok := i.offset(line+1, 1)
	if !ok {
		return appendLines(i.text, lines), nil
	}
	return slices.Insert(slices.Clone(i.text), at, []byte(lines)...), nil
}

// offset returns the byte offset of a line and column, and whether they exist.
func (i inserter) offset(line, column int) (int, bool) {
	at := 0
	for ; line > 1; line-- {
		end := bytes.IndexByte(i.text[at:], '\n')
		if end < 0 {
			return 0, false
		}
		at += end + 1
	}
	for ; column > 1; column-- {
		_, size := utf8.DecodeRune(i.text[at:])
		if size == 0 || i.text[at] == '\n' {
			return 0, false
		}
		at += size
	}
	return at, true
}
