package e2e

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// paragraphs are the paragraphs of the documents that Caisson implements: how
// many each section has. docs/internal/specification.md counts them the same way.
var paragraphs = map[string]map[string]int{
	"Dispatcher specification": {
		"1": 2, "2": 1, "3.1": 3, "3.2": 2, "3.3": 2, "3.4": 5, "4": 12, "4.1": 2, "4.2": 1, "5.1": 3, "5.2": 7, "5.3": 2, "5.4": 2,
		"6.1": 2, "6.2": 2, "6.3": 2, "7": 6, "8": 5, "9": 5, "10": 15, "11": 2, "12": 10, "13": 1,
	},
	"Names and approvals":    {"1": 4, "2": 4, "3": 5, "4": 3, "5": 3, "6": 7, "7": 11},
	"A loop with four tools": {"1": 3, "2": 3, "3": 2, "4": 3, "5": 2, "6": 2, "7": 2, "8": 2, "9": 3, "10": 4},
	"Tool runtime": {
		"1": 5, "2.1": 4, "2.2": 4, "2.3": 4, "2.4": 3, "2.5": 2, "2.6": 4, "2.7": 2, "3": 8,
	},
	"Worker tools": {"1": 8, "2": 7, "3": 6, "4": 6, "5": 7, "6": 8, "7": 4, "8": 9},
}

// acceptanceCases are the catalogue's cases of docs/internal/acceptance.md; those about
// sandboxes are on docs/internal/conformance.md. Some numbers are absent.
var acceptanceCases = map[string][]int{
	"A. The workspace, from the host":   {1, 2, 4, 5, 6, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24},
	"B. What a host might run or trust": {25, 26, 28, 29, 31, 32},
	"C. Confirmations":                  {33, 34, 35, 37, 39, 40, 41, 42, 43, 44},
	"D. Prompt, transcript, secrets":    {45, 47, 48, 49, 50},
	"E. Servers of tools":               {51, 52, 54, 55, 56, 57, 58},
	"F. Fetch and egress":               {59, 60, 61, 63, 65, 66, 67, 68, 69, 70},
	"G. Found by attack and use":        {101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 121, 131, 132, 133, 134, 135, 136, 138, 139, 140, 141, 144, 147, 151, 152, 157, 158, 161, 162, 163, 164, 171, 172, 181, 182, 183, 191, 192, 193},
}

// TestSpecificationTable holds docs/internal/specification.md: every paragraph has a
// row, each row says where, and what it names exists.
func TestSpecificationTable(t *testing.T) {
	p := readPage(t, "internal/specification.md")
	for heading, sections := range paragraphs {
		var want, got []string
		for _, section := range slices.Sorted(maps.Keys(sections)) {
			for n := range sections[section] {
				want = append(want, fmt.Sprintf("%s ¶%d", section, n+1))
			}
		}
		for _, row := range p.rows[heading] {
			got = append(got, row[0])
			if len(row) != 4 || slices.Contains(row, "") {
				t.Errorf("%s: row %q has an empty cell", heading, row)
				continue
			}
			code, decided := p.codeIn(row[2]), strings.Contains(row[2], "](")
			later := strings.HasPrefix(row[2], "Later")
			if !code && !decided && !later {
				t.Errorf("%s %s: %q names no code, no decision and no later", heading, row[0], row[2])
			}
			if later != (row[3] == "–") {
				t.Errorf("%s %s: shown by %q, though it is %q", heading, row[0], row[3], row[2])
			}
			if !later && !namesTest.MatchString(row[3]) {
				t.Errorf("%s %s: %q names no test", heading, row[0], row[3])
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := difference(want, got); diff != "" {
			t.Errorf("%s: %s", heading, diff)
		}
	}
	p.checkNames(t)
}

// TestAcceptanceTable holds docs/internal/acceptance.md: every case has a row with a test
// and a control.
func TestAcceptanceTable(t *testing.T) {
	p := readPage(t, "internal/acceptance.md")
	for heading, cases := range acceptanceCases {
		var want, got []string
		for _, n := range cases {
			want = append(want, fmt.Sprint(n))
		}
		for _, row := range p.rows[heading] {
			got = append(got, row[0])
			if len(row) != 4 || slices.Contains(row, "") {
				t.Errorf("%s: row %q has an empty cell", heading, row)
				continue
			}
			if !namesTest.MatchString(row[2]) && !strings.HasPrefix(row[2], "Later") {
				t.Errorf("%s: case %s names no test", heading, row[0])
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := difference(want, got); diff != "" {
			t.Errorf("%s: %s", heading, diff)
		}
	}
	p.checkNames(t)
}

// TestTablesSeeFaults is the control of the two: names that are not there.
func TestTablesSeeFaults(t *testing.T) {
	for text, bad := range map[string]int{
		"`tools/dispatch TestSpecification9_1SimpleRead`, `tools/dispatch Dispatcher.Round`, `tools/dispatch Options.Concurrency`, `tools/dispatch/round.go`, `tool.called`": 0,
		"`tools TestNothing`": 1, "`tools/dispatch Dispatcher.Rounds`": 1, "`tools/dispatch Options.Nothing`": 1, "`tools/dispatch/rounds.go`": 1, "`nowhere New`": 1, "`tool.calls`": 1,
	} {
		p := page{text: text}
		if got := p.faults(); len(got) != bad {
			t.Errorf("%s: %q", text, got)
		}
	}
	if difference([]string{"a", "b"}, []string{"b", "b"}) == "" {
		t.Error("a missing row is not seen")
	}
}

// page is one documentation page of tables.
type page struct {
	text string
	rows map[string][][]string // by heading
}

func readPage(t *testing.T, name string) page {
	t.Helper()
	data := readFile(t, filepath.Join("..", "docs", name))
	p := page{text: string(data), rows: map[string][][]string{}}
	heading := ""
	for line := range strings.Lines(p.text) {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "## "); ok {
			heading = h
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "|---") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), " | ") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		if cells[0] != "¶" && cells[0] != "case" {
			p.rows[heading] = append(p.rows[heading], cells)
		}
	}
	return p
}

// What a page names, in backquotes: a test or a symbol of a package, a file, a
// kind of record.
var (
	namesTest   = regexp.MustCompile("`([a-z0-9/-]+) ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)`")
	namesSymbol = regexp.MustCompile("`([a-z0-9/-]+) ([A-Za-z][A-Za-z0-9]*)(?:\\.([A-Za-z][A-Za-z0-9]*))?`")
	namesFile   = regexp.MustCompile("`([A-Za-z0-9_./-]+/[A-Za-z0-9_.-]+\\.[a-z]+)`")
	namesKind   = regexp.MustCompile("`((?:tool|turn|llm|session|sandbox|network|budget)\\.[a-z_]+)`")
)

// codeIn says whether a cell names a symbol or a file.
func (p page) codeIn(cell string) bool {
	return namesSymbol.MatchString(cell) || namesFile.MatchString(cell)
}

func (p page) checkNames(t *testing.T) {
	t.Helper()
	if n := len(namesTest.FindAllString(p.text, -1)); n < 30 {
		t.Errorf("%d tests are named: the page is not read as it is written", n)
	}
	for _, fault := range p.faults() {
		t.Error(fault)
	}
}

// faults are the names of a page that are not there.
func (p page) faults() []string {
	var faults []string
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	packages := map[string]*symbols{}
	of := func(dir string) *symbols {
		if packages[dir] == nil {
			packages[dir] = readSymbols(filepath.Join("..", dir))
		}
		return packages[dir]
	}
	for _, m := range namesTest.FindAllStringSubmatch(p.text, -1) {
		if !of(m[1]).tests[m[2]] {
			bad("the page names %s of %s, which is not there", m[2], m[1])
		}
	}
	for _, m := range namesSymbol.FindAllStringSubmatch(p.text, -1) {
		name := m[2]
		if m[3] != "" {
			name += "." + m[3]
		}
		if !slices.Contains(commands, m[1]) && !namesTest.MatchString(m[0]) && !of(m[1]).all[name] {
			bad("the page names %s of %s, which is not there", name, m[1])
		}
	}
	for _, m := range namesFile.FindAllStringSubmatch(p.text, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
			bad("the page names the file %s, which is not there", m[1])
		}
	}
	kinds, err := os.ReadFile(filepath.Join("..", "runner", "record", "kind.go"))
	if err != nil {
		bad("%v", err)
	}
	live := []string{"tool.output_delta"} // never stored, so no kind of record
	for _, m := range namesKind.FindAllStringSubmatch(p.text, -1) {
		if !strings.Contains(string(kinds), `"`+m[1]+`"`) && !slices.Contains(live, m[1]) {
			bad("the page names the kind %s, which is not there", m[1])
		}
	}
	return faults
}

// commands are programs whose command lines a page may quote.
var commands = []string{"caisson", "git"}

// symbols are what a package declares: functions, types, methods and fields as
// Type.Name, constants, variables; and its tests.
type symbols struct{ all, tests map[string]bool }

func readSymbols(dir string) *symbols {
	s := &symbols{all: map[string]bool{}, tests: map[string]bool{}}
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				s.addFunc(d, strings.HasSuffix(name, "_test.go"))
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					s.addSpec(spec)
				}
			}
		}
	}
	return s
}

func (s *symbols) addFunc(d *ast.FuncDecl, test bool) {
	switch {
	case d.Recv != nil && len(d.Recv.List) == 1:
		s.all[receiver(d.Recv.List[0].Type)+"."+d.Name.Name] = true
	case test:
		s.tests[d.Name.Name] = true
	default:
		s.all[d.Name.Name] = true
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func (s *symbols) addSpec(spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			s.all[n.Name] = true
		}
	case *ast.TypeSpec:
		s.all[spec.Name.Name] = true
		var fields *ast.FieldList
		switch t := spec.Type.(type) {
		case *ast.StructType:
			fields = t.Fields
		case *ast.InterfaceType:
			fields = t.Methods
		default:
			return
		}
		for _, f := range fields.List {
			for _, n := range f.Names {
				s.all[spec.Name.Name+"."+n.Name] = true
			}
		}
	}
}

// difference says what is missing and what is too much, of sorted lists.
func difference(want, got []string) string {
	var text []string
	for _, w := range slices.Compact(slices.Clone(want)) {
		if n, m := count(want, w), count(got, w); n != m {
			text = append(text, fmt.Sprintf("%s has %d rows, want %d", w, m, n))
		}
	}
	for _, g := range slices.Compact(slices.Clone(got)) {
		if count(want, g) == 0 {
			text = append(text, g+" is not in the list")
		}
	}
	return strings.Join(text, "; ")
}

func count(list []string, s string) int {
	n := 0
	for _, e := range list {
		if e == s {
			n++
		}
	}
	return n
}
