package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDecisionsAreListed holds the index of decisions against the folder.
func TestDecisionsAreListed(t *testing.T) {
	index, err := os.ReadFile(filepath.Join("..", "docs", "decisions", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join("..", "docs", "decisions", "[0-9]*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no decisions: %v", err)
	}
	for _, page := range pages {
		if !strings.Contains(string(index), "("+filepath.Base(page)+")") {
			t.Errorf("docs/decisions/README.md does not list %s", filepath.Base(page))
		}
	}
}

// TestLinksLead follows the relative links of the documentation.
func TestLinksLead(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	links := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), match[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, match[1], err)
			}
		}
	}
	if links == 0 {
		t.Error("no link was found: the test sees nothing")
	}
}
