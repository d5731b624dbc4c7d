package sandboxtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// cases returns the numbers of the acceptance catalogue that are about
// sandboxes.
func cases() []int {
	var list []int
	for _, span := range [][2]int{{71, 86}, {88, 91}, {93, 101}, {103, 105}, {107, 120}} {
		for n := span[0]; n <= span[1]; n++ {
			list = append(list, n)
		}
	}
	return list
}

// TestConformanceTable checks that docs/internal/conformance.md has every case
// once, names only checks and tests that exist, and names every check.
func TestConformanceTable(t *testing.T) {
	data, err := os.ReadFile("../../docs/internal/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	seen := map[int]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		seen[n]++
	}
	for _, n := range cases() {
		if seen[n] != 1 {
			t.Errorf("case %d has %d rows", n, seen[n])
		}
	}
	if len(seen) != len(cases()) {
		t.Errorf("%d cases in the table, %d in the catalogue", len(seen), len(cases()))
	}
	flat := strings.Join(strings.Fields(text), " ")
	names := map[string]bool{}
	for _, c := range allChecks() {
		names[c.name] = true
		if !strings.Contains(flat, `"`+c.name+`"`) {
			t.Errorf("check %q is not on the page", c.name)
		}
	}
	for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(flat, -1) {
		if !names[m[1]] && m[1] != "a check of the suite" && m[1] != "done" {
			t.Errorf("the page names a check %q, which is not there", m[1])
		}
	}
	tests := regexp.MustCompile("`([a-z0-9/-]+) (Test[A-Za-z0-9]+)`").FindAllStringSubmatch(flat, -1)
	if len(tests) < 50 {
		t.Errorf("%d tests are named: the page is not read as it is written", len(tests))
	}
	for _, m := range tests {
		if !hasTest(t, m[1], m[2]) {
			t.Errorf("the page names %s in %s, which is not there", m[2], m[1])
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "func "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
