package e2e

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// documents returns the Markdown pages of the repository, relative to its top,
// without the ones below testdata.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			found = append(found, filepath.ToSlash(strings.TrimPrefix(page, ".."+string(filepath.Separator))))
		}
	}
	if len(found) < 20 {
		t.Fatalf("%d documents found", len(found))
	}
	return found
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text := readFile(t, filepath.Join("..", filepath.FromSlash(name)))
	return string(text)
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)
	markdownCode = regexp.MustCompile("`+[^`]*`+")
	// A document that code, a script or prose names by its path, with its section.
	documentReference = regexp.MustCompile(`\b(docs/[a-z0-9/-]+\.md)(?:#([a-z0-9-]+))?`)
)

// anchors returns the anchors of the headings of a page, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if fenced || !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(heading)))
		found[anchor] = true
	}
	return found
}

// TestDocumentLinks follows the relative links of the documents, and every
// reference to a document in code, scripts and prose: the file exists, and the
// section does.
func TestDocumentLinks(t *testing.T) {
	known := map[string]map[string]bool{}
	check := func(from, target, anchor string) {
		if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(target))); err != nil {
			t.Errorf("%s refers to %s: %v", from, target, err)
			return
		}
		if anchor == "" {
			return
		}
		if known[target] == nil {
			known[target] = anchors(readDocument(t, target))
		}
		if !known[target][anchor] {
			t.Errorf("%s refers to %s#%s: there is no such heading", from, target, anchor)
		}
	}
	links := 0
	for _, page := range documents(t) {
		for _, m := range markdownLink.FindAllStringSubmatch(markdownCode.ReplaceAllString(readDocument(t, page), "`code`"), -1) {
			links++
			target := filepath.ToSlash(filepath.Join(filepath.Dir(page), m[1]))
			if m[1] == "" {
				target = page
			}
			check(page, target, m[2])
		}
	}
	references := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", "testdata", "node_modules"}, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".sh", ".md", ".yml", ".yaml", ".json"}, filepath.Ext(path)) && entry.Name() != "Makefile" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range documentReference.FindAllStringSubmatch(string(text), -1) {
			references++
			check(path, m[1], m[2])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 50 || references < 20 {
		t.Errorf("%d links and %d references found: the patterns match too little", links, references)
	}
}

// TestAnchors is the control of TestDocumentLinks.
func TestAnchors(t *testing.T) {
	got := anchors("# A `B` c-d\n```\n# none\n```\n## Keys, and more: §4\n#none\n")
	for _, want := range []string{"a-b-c-d", "keys-and-more-4"} {
		if !got[want] {
			t.Errorf("anchor %q is missing: %v", want, got)
		}
	}
	if len(got) != 2 {
		t.Errorf("anchors %v, want two", got)
	}
}

// TestDesignIsListed holds the index of the chapters against the directory.
func TestDesignIsListed(t *testing.T) {
	index := readDocument(t, "docs/design/README.md")
	for _, page := range documents(t) {
		if name, ok := strings.CutPrefix(page, "docs/design/"); ok && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/design/README.md does not list %s", name)
		}
	}
}

var (
	nameOfTest   = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)`")
	nameOfSymbol = regexp.MustCompile("`\\*?([a-z]+)\\.([A-Z][A-Za-z0-9]*(?:\\.[A-Z][A-Za-z0-9]*)?)`")
	nameOfFile   = regexp.MustCompile("`((?:cmd|docs|e2e|examples|images|limits|loop|runner|sandbox|tools|\\.ci)/[A-Za-z0-9_./-]+)`")
)

// TestDesignNames holds the names in the chapters, CONTRIBUTING.md and architecture.md against
// the code: tests, files and packages, and symbols that are written with the name of their package.
func TestDesignNames(t *testing.T) {
	tests, packages := map[string]bool{}, map[string][]*symbols{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if slices.Contains([]string{".git", "bin", "dist", "testdata", "node_modules"}, entry.Name()) {
			return fs.SkipDir
		}
		s := readSymbols(path)
		name := entry.Name()
		if path == ".." {
			name = "caisson"
		}
		packages[name] = append(packages[name], s)
		maps.Copy(tests, s.tests)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range documents(t) {
		if page != "CONTRIBUTING.md" && page != "docs/architecture.md" && !strings.HasPrefix(page, "docs/design/") {
			continue
		}
		text := readDocument(t, page)
		for _, m := range nameOfTest.FindAllStringSubmatch(text, -1) {
			found++
			if !tests[m[1]] {
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for _, m := range nameOfFile.FindAllStringSubmatch(text, -1) {
			found++
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, m := range nameOfSymbol.FindAllStringSubmatch(text, -1) {
			of := packages[m[1]]
			if of == nil {
				continue // a name of another module
			}
			found++
			if !slices.ContainsFunc(of, func(s *symbols) bool { return s.all[m[2]] }) {
				t.Errorf("%s: package %s has no %s", page, m[1], m[2])
			}
		}
	}
	if found < 60 {
		t.Errorf("%d names found: the patterns match too little", found)
	}
}
