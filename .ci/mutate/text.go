//go:build linux

package main

import (
	"go/ast"
	"go/token"
	"strings"
)

func (f *finder) offset(p token.Pos) int { return f.tokens.Offset(p) }

// longest is how much of a node's text a mutant's key has.
const longest = 70

// text returns the node's source on one line, cut in the middle if it is long.
func (f *finder) text(n ast.Node) string { return f.between(n.Pos(), n.End(), longest) }

func (f *finder) between(from, to token.Pos, limit int) string {
	text := strings.Join(strings.Fields(string(f.source.text[f.offset(from):f.offset(to)])), " ")
	text = strings.ReplaceAll(text, "|", "¦") // keys are put into tables
	if r := []rune(text); len(r) > limit {
		text = string(r[:limit/2]) + "…" + string(r[len(r)-limit/2:])
	}
	return text
}

// binary returns the expression's text with another operator.
func (f *finder) binary(e *ast.BinaryExpr, op string) string {
	end := e.OpPos + token.Pos(len(e.Op.String()))
	op = strings.ReplaceAll(op, "|", "¦")
	return f.between(e.Pos(), e.OpPos, longest/2) + " " + op + " " + f.between(end, e.End(), longest/2)
}

// parent returns the node's parent, or what is n nodes above it.
func (f *finder) parent(n int) ast.Node {
	if len(f.stack) <= n {
		return nil
	}
	return f.stack[len(f.stack)-1-n]
}

// function returns the name of the declaration around the node.
func (f *finder) function() string {
	for _, n := range f.stack {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil || len(n.Recv.List) == 0 {
				return n.Name.Name
			}
			return f.text(n.Recv.List[0].Type) + "." + n.Name.Name
		case *ast.ValueSpec:
			return n.Names[0].Name
		}
	}
	return "package"
}
