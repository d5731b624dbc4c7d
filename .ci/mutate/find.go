//go:build linux

package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"
)

// A mutant is one change of the package under test.
type mutant struct {
	ID   int    `json:"id"`
	Key  string `json:"key"`
	Line int    `json:"line"`

	file    *sourceFile
	dropped bool
	// begin and end are offsets in the rewritten source.
	begin, end int
}

// A finder finds the mutants of one file.
type finder struct {
	program *program
	source  *sourceFile
	name    string
	tokens  *token.File
	info    *types.Info
	pkg     *types.Package
	imports map[string]string // path to name
	keys    map[string]int
	stack   []ast.Node
}

func (f *finder) findAll(file *ast.File) {
	f.keys = map[string]int{}
	f.imports = map[string]string{}
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		if spec.Name != nil {
			f.imports[path] = spec.Name.Name
		} else {
			f.imports[path] = ""
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			f.stack = f.stack[:len(f.stack)-1]
			return false
		}
		if f.isConstant(n) && !f.isSize(n) {
			f.findConstant(n.(ast.Expr))
			return false
		}
		if f.isSize(n) {
			return false
		}
		switch n := n.(type) {
		case *ast.ArrayType, *ast.ImportSpec:
			return false
		case *ast.GenDecl:
			if n.Tok == token.CONST {
				return false
			}
		}
		f.find(n)
		f.stack = append(f.stack, n)
		return true
	})
}

func (f *finder) isConstant(n ast.Node) bool {
	e, ok := n.(ast.Expr)
	return ok && f.info.Types[e].Value != nil
}

// isSize reports whether n is the capacity of a slice or the size of a map that
// is made, which only saves allocations.
func (f *finder) isSize(n ast.Node) bool {
	call, ok := f.parent(0).(*ast.CallExpr)
	if !ok || len(call.Args) < 2 {
		return false
	}
	if id, ok := call.Fun.(*ast.Ident); !ok || id.Name != "make" {
		return false
	}
	_, isMap := f.info.TypeOf(call.Args[0]).Underlying().(*types.Map)
	return n == call.Args[len(call.Args)-1] && (isMap || len(call.Args) == 3)
}

// add makes a mutant of the node; the caller adds its edits.
func (f *finder) add(n ast.Node, was, becomes string) *mutant {
	change := was + " → " + becomes
	if becomes == "" {
		change = "remove " + was
	}
	key := fmt.Sprintf("%s: %s: %s", f.name, f.function(), change)
	f.keys[key]++
	if again := f.keys[key]; again > 1 {
		key += fmt.Sprintf(" (%d)", again)
	}
	m := &mutant{ID: len(f.program.mutants) + 1, Key: key, Line: f.tokens.Line(n.Pos()), file: f.source}
	f.program.mutants = append(f.program.mutants, m)
	return m
}

// wrap makes a mutant that passes the expression through a function.
func (f *finder) wrap(e ast.Expr, function, becomes string) {
	m := f.add(e, f.text(e), becomes)
	f.source.wrap(m, f.offset(e.Pos()), f.offset(e.End()), function+"(%d, ", ")")
}

func (f *finder) find(n ast.Node) {
	switch n := n.(type) {
	case *ast.IfStmt:
		f.findCondition(n.Cond)
	case *ast.ForStmt:
		f.findCondition(n.Cond)
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, clause := range n.Body.List {
				for _, e := range clause.(*ast.CaseClause).List {
					f.findCondition(e)
				}
			}
		}
	case *ast.BinaryExpr:
		f.findBinary(n)
	case *ast.ReturnStmt:
		f.findReturn(n)
	case *ast.AssignStmt:
		f.findAssignment(n)
	case *ast.BlockStmt:
		f.findRemovals(n.List)
	case *ast.CaseClause:
		f.findRemovals(n.Body)
	case *ast.CommClause:
		f.findRemovals(n.Body)
	}
}

// findCondition negates a condition, unless it is one of the expressions that
// findBinary changes to the opposite.
func (f *finder) findCondition(e ast.Expr) {
	if e == nil || f.isConstant(e) {
		return
	}
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok {
		switch b.Op {
		case token.EQL, token.NEQ, token.LAND, token.LOR:
			return
		}
	}
	f.wrap(e, "mutantNot", "!("+f.text(e)+")")
}

var comparisons = map[token.Token]struct{ function, becomes string }{
	token.LSS: {"mutantLess", "<="},
	token.LEQ: {"mutantLessEqual", "<"},
	token.GTR: {"mutantGreater", ">="},
	token.GEQ: {"mutantGreaterEqual", ">"},
	token.ADD: {"mutantAdd", "-"},
	token.SUB: {"mutantSubtract", "+"},
	token.MUL: {"mutantMultiply", "/"},
	token.QUO: {"mutantDivide", "*"},
	token.REM: {"mutantRemainder", "*"},
}

func (f *finder) findBinary(e *ast.BinaryExpr) {
	from, to, op := f.offset(e.Pos()), f.offset(e.End()), f.offset(e.OpPos)
	switch e.Op {
	case token.LAND, token.LOR:
		becomes := token.LAND
		if e.Op == token.LAND {
			becomes = token.LOR
		}
		// By De Morgan's laws this is the other operator, and it keeps that the
		// right operand is evaluated only if the left one doesn't decide.
		m := f.add(e, f.text(e), f.binary(e, becomes.String()))
		f.source.wrap(m, from, to, "mutantNot(%d, ", ")")
		for _, operand := range []ast.Expr{e.X, e.Y} {
			f.source.wrap(m, f.offset(operand.Pos()), f.offset(operand.End()), "mutantNot(%d, ", ")")
			f.findCondition(operand)
		}
	case token.EQL:
		f.wrap(e, "mutantNot", f.binary(e, "!="))
	case token.NEQ:
		f.wrap(e, "mutantNot", f.binary(e, "=="))
	default:
		c, ok := comparisons[e.Op]
		if !ok {
			return
		}
		if b, ok := f.info.TypeOf(e.X).Underlying().(*types.Basic); ok && b.Info()&types.IsString != 0 && e.Op == token.ADD {
			return
		}
		m := f.add(e, f.text(e), f.binary(e, c.becomes))
		f.source.wrap(m, from, to, c.function+"(%d, ", ")")
		f.source.replace(m, op, op+len(e.Op.String()), ",")
	}
}

// findConstant changes an integer literal to the next one and a boolean to the
// other, where the context asks for no constant.
func (f *finder) findConstant(e ast.Expr) {
	if kv, ok := f.parent(0).(*ast.KeyValueExpr); ok && kv.Key == e {
		return // the index of an array's element
	}
	value := f.info.Types[e]
	switch e := e.(type) {
	case *ast.Ident:
		if value.Value.Kind() == constant.Bool && (e.Name == "true" || e.Name == "false") {
			f.wrap(e, "mutantNot", "!"+e.Name)
		}
	case *ast.BasicLit:
		name, ok := f.typeName(value.Type)
		if e.Kind == token.INT && ok {
			f.wrap(e, "mutantInc["+name+"]", e.Value+"+1")
		}
	}
}

// typeName returns what the file calls the type, if it has a name there.
func (f *finder) typeName(t types.Type) (string, bool) {
	t = types.Default(t)
	switch t := types.Unalias(t).(type) {
	case *types.Basic:
		return t.Name(), t.Info()&types.IsNumeric != 0
	case *types.Named:
		pkg := t.Obj().Pkg()
		if t.TypeArgs().Len() > 0 || pkg == nil || t.Obj().Parent() != pkg.Scope() {
			return "", false
		}
		if pkg == f.pkg {
			return t.Obj().Name(), true
		}
		name, ok := f.imports[pkg.Path()]
		if name == "" {
			name = pkg.Name()
		}
		return name + "." + t.Obj().Name(), ok
	}
	return "", false
}

// findReturn replaces an error that is returned by nil.
func (f *finder) findReturn(n *ast.ReturnStmt) {
	results := f.results()
	if results == nil || results.Len() != len(n.Results) {
		return
	}
	for i, e := range n.Results {
		if types.Identical(results.At(i).Type(), types.Universe.Lookup("error").Type()) && !f.info.Types[e].IsNil() {
			f.wrap(e, "mutantErr", "nil")
		}
	}
}

// findAssignment turns += and -= around.
func (f *finder) findAssignment(n *ast.AssignStmt) {
	if n.Tok != token.ADD_ASSIGN && n.Tok != token.SUB_ASSIGN {
		return
	}
	e := n.Rhs[0]
	if f.isConstant(e) {
		return
	}
	if b, ok := f.info.TypeOf(e).Underlying().(*types.Basic); ok && b.Info()&types.IsNumeric != 0 {
		m := f.add(n, f.text(n), f.text(n.Lhs[0])+" "+n.Tok.String()+" -("+f.text(e)+")")
		f.source.wrap(m, f.offset(e.Pos()), f.offset(e.End()), "mutantNeg(%d, ", ")")
	}
}

func (f *finder) findRemovals(list []ast.Stmt) {
	for i, s := range list {
		if !f.removable(s, i == len(list)-1) {
			continue
		}
		m := f.add(s, f.text(s), "")
		f.source.wrap(m, f.offset(s.Pos()), f.offset(s.End()), "if !mutantOn(%d) { ", " }")
	}
}

func (f *finder) removable(s ast.Stmt, last bool) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" && last {
			return false // it may be what ends a function with results
		}
		return !f.isLogging(call)
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return false
		}
		for _, e := range s.Lhs {
			if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
				return true
			}
		}
		// An assignment to _ is removed if it calls something.
		_, ok := s.Rhs[0].(*ast.CallExpr)
		return ok
	case *ast.IncDecStmt, *ast.DeferStmt, *ast.SendStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.BREAK || s.Tok == token.CONTINUE
	}
	return false
}

// isLogging reports whether a call is of a logger's method.
func (f *finder) isLogging(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	object := f.info.Uses[selector.Sel]
	if object == nil || object.Pkg() == nil {
		return false
	}
	switch object.Pkg().Path() {
	case "go.uber.org/zap", "log/slog", "log":
		return true
	}
	return false
}

// results returns the results of the innermost function around the node.
func (f *finder) results() *types.Tuple {
	for i := len(f.stack) - 1; i >= 0; i-- {
		var t types.Type
		switch n := f.stack[i].(type) {
		case *ast.FuncLit:
			t = f.info.TypeOf(n)
		case *ast.FuncDecl:
			t = f.info.Defs[n.Name].Type()
		default:
			continue
		}
		if s, ok := t.(*types.Signature); ok {
			return s.Results()
		}
		return nil
	}
	return nil
}
