package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode"
)

// figures are the counts of a package, or of several together.
type figures struct {
	files, lines, comments int
	// matches counts the phrases of each kind in the comments.
	matches [len(phrases)]int
	// exported counts exported functions, methods, types, constants and variables.
	exported int
	// functions counts unexported functions and methods, oneWord those with a
	// name of one word.
	functions, oneWord int
	// methods is the most methods of a type.
	methods int
	// references counts the uses of a file's declarations in another file of its
	// package, upward those that run against the order of the files.
	references, upward int
	directives         int
}

// phrases are the ones that are counted; those of the dialect are bounded.
var phrases = [...]struct {
	name    string
	dialect bool
	pattern *regexp.Regexp
}{
	{"says that", true, regexp.MustCompile(`(?i)\b(say|says|said|saying|tells?|told) (that|whether|what|how|which|why)\b`)},
	{"gives", true, regexp.MustCompile(`(?i)\bgives?\b`)},
	{"is what", true, regexp.MustCompile(`(?i)\b(is|are|was|were) what\b`)},
	{"nobody", true, regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|anybody)\b`)},
	{"returns", false, regexp.MustCompile(`(?i)\breturns?\b`)},
}

func (f *figures) add(g figures) {
	f.files += g.files
	f.lines += g.lines
	f.comments += g.comments
	for i := range f.matches {
		f.matches[i] += g.matches[i]
	}
	f.exported += g.exported
	f.functions += g.functions
	f.oneWord += g.oneWord
	f.methods = max(f.methods, g.methods)
	f.references += g.references
	f.upward += g.upward
	f.directives += g.directives
}

// phraseRate returns the phrases of the dialect per 1,000 lines of comments.
func (f figures) phraseRate() float64 {
	n := 0
	for i, p := range phrases {
		if p.dialect {
			n += f.matches[i]
		}
	}
	return 1000 * float64(n) / float64(max(f.comments, 1))
}

// oneWordShare returns the one-word names in percent.
func (f figures) oneWordShare() float64 {
	return 100 * float64(f.oneWord) / float64(max(f.functions, 1))
}

func (f *figures) countFile(fset *token.FileSet, file *ast.File) {
	f.files++
	f.lines += fset.File(file.Pos()).LineCount()
	for _, group := range file.Comments {
		for _, c := range group.List {
			f.comments += strings.Count(c.Text, "\n") + 1
			if strings.HasPrefix(c.Text, "//nolint") {
				f.directives++
			}
		}
		text := strings.Join(strings.Fields(group.Text()), " ")
		for i, p := range phrases {
			f.matches[i] += len(p.pattern.FindAllStringIndex(text, -1))
		}
	}
	for _, decl := range file.Decls {
		f.countDecl(decl)
	}
}

func (f *figures) countDecl(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		switch name := d.Name.Name; {
		case d.Name.IsExported():
			f.exported++
		case name != "main" && name != "init" && name != "_":
			f.functions++
			if !strings.ContainsFunc(name[1:], func(r rune) bool { return unicode.IsUpper(r) || r == '_' }) {
				f.oneWord++
			}
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				f.countName(s.Name)
			case *ast.ValueSpec:
				for _, name := range s.Names {
					f.countName(name)
				}
			}
		}
	}
}

func (f *figures) countName(name *ast.Ident) {
	if name.IsExported() {
		f.exported++
	}
}

// print writes a table of the packages and, below it, the totals.
func print(w io.Writer, packages []packageCount, total figures) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "files\tlines\texported\tmethods\tone-word %\tphrases ‰\treferences\tupward\tnolint\t package")
	for _, p := range packages {
		printRow(table, p.figures, p.path)
	}
	printRow(table, total, "total")
	table.Flush()
	fmt.Fprintf(w, "\nper 1,000 of %d comment lines:", total.comments)
	for i, p := range phrases {
		fmt.Fprintf(w, " %s %.1f", p.name, 1000*float64(total.matches[i])/float64(max(total.comments, 1)))
		if i < len(phrases)-1 {
			fmt.Fprint(w, ",")
		}
	}
	fmt.Fprintf(w, "\none-word names: %d of %d unexported functions and methods\n", total.oneWord, total.functions)
}

func printRow(w io.Writer, f figures, name string) {
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.0f\t%.1f\t%d\t%d\t%d\t %s\n", f.files, f.lines, f.exported, f.methods, f.oneWordShare(), f.phraseRate(), f.references, f.upward, f.directives, name)
}
