package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// feed gives a summary the events of a run, each as action, package, test and
// output separated by "|".
func feed(t *testing.T, lines ...string) (*Summary, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	sum := NewSummary(&out)
	for _, line := range lines {
		f := strings.SplitN(line, "|", 4)
		sum.AddLine(fmt.Appendf(nil, `{"Action":%q,"Package":%q,"Test":%q,"Output":%q}`, f[0], f[1], f[2], f[3]))
	}
	sum.Print()
	return sum, &out
}

func TestSummaryCounts(t *testing.T) {
	for _, test := range []struct {
		name   string
		events []string
		want   string
		good   bool
		strict bool
	}{
		{"nothing ran", nil, "0 passed, 0 flaky, 0 failed, 0 skipped", false, false},
		{"one passed", []string{"run|p|TestA|", "pass|p|TestA|", "pass|p||"}, "1 passed, 0 flaky, 0 failed, 0 skipped", true, true},
		{"a parent counts by its subtests", []string{
			"run|p|TestA|", "run|p|TestA/x|", "run|p|TestA/y|",
			"pass|p|TestA/x|", "fail|p|TestA/y|", "fail|p|TestA|", "fail|p||",
		}, "1 passed, 0 flaky, 1 failed, 0 skipped", false, false},
		{"a skip is good unless strict", []string{
			"run|p|TestA|", "pass|p|TestA|", "run|p|TestB|",
			"output|p|TestB|    b_test.go:7: needs docker\n", "output|p|TestB|--- SKIP: TestB (0.00s)\n", "skip|p|TestB|", "pass|p||",
		}, "1 passed, 0 flaky, 0 failed, 1 skipped", true, false},
		{"a package that fails by itself", []string{"run|p|TestA|", "pass|p|TestA|", "fail|p||"}, "1 passed, 0 flaky, 1 failed, 0 skipped", false, false},
		{"a parent that fails after its subtests passed is not seen as passed", []string{
			"run|p|TestA|", "run|p|TestA/x|", "pass|p|TestA/x|", "fail|p|TestA|", "fail|p||",
		}, "1 passed, 0 flaky, 1 failed, 0 skipped", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			events := slices.Clone(test.events)
			for i, e := range events {
				events[i] = e + strings.Repeat("|", 3-min(3, strings.Count(e, "|")))
			}
			sum, out := feed(t, events...)
			if !strings.HasSuffix(out.String(), "\n"+test.want+"\n") {
				t.Errorf("ends with %q, want %q", out.String(), test.want)
			}
			if sum.Good(false) != test.good || sum.Good(true) != test.strict {
				t.Errorf("Good(false), Good(true) = %t, %t, want %t, %t", sum.Good(false), sum.Good(true), test.good, test.strict)
			}
		})
	}
}

func TestSummarySkipReason(t *testing.T) {
	_, out := feed(t, "run|p|TestB||", "output|p|TestB|=== RUN   TestB\n",
		"output|p|TestB|    b_test.go:7: needs docker: no engine\n", "output|p|TestB|--- SKIP: TestB (0.00s)\n", "skip|p|TestB|")
	if want := "p TestB: needs docker: no engine\n"; !strings.Contains(out.String(), want) {
		t.Errorf("output %q lacks %q", out.String(), want)
	}
}

func TestSummaryShowsAPanic(t *testing.T) {
	_, out := feed(t, "run|p|TestA|", "output|p|TestA|panic: boom\n", "fail|p||")
	if !strings.Contains(out.String(), "panic: boom") {
		t.Errorf("output %q lacks the panic", out.String())
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"--", "a", "b", "--", "--", "c"}, "--")
	if fmt.Sprint(got) != "[[a b] [c]]" {
		t.Errorf("split = %v", got)
	}
}

func TestGoTestArgs(t *testing.T) {
	got := strings.Join(goTestArgs([]string{"-C", "dir", "-count=1", "./..."}), " ")
	if want := "test -C dir -json -count=1 ./..."; got != want {
		t.Errorf("goTestArgs = %q, want %q", got, want)
	}
}

func TestSlowest(t *testing.T) {
	var out strings.Builder
	sum := NewSummary(&out)
	for _, line := range []string{
		`{"Action":"run","Package":"p","Test":"TestA"}`, `{"Action":"run","Package":"p","Test":"TestA/x"}`,
		`{"Action":"pass","Package":"p","Test":"TestA/x","Elapsed":1.5}`, `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":9}`,
		`{"Action":"pass","Package":"p","Test":"TestB","Elapsed":2.25}`, `{"Action":"pass","Package":"p","Test":"TestC","Elapsed":0.9}`,
	} {
		sum.AddLine([]byte(line))
	}
	sum.Print()
	if want := "\nslowest:\n     2.2s p TestB\n     1.5s p TestA/x\n\n3 passed"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("output %q does not begin with %q", out.String(), want)
	}
}

// TestRetry runs a module whose tests fail at the first try, always, and never.
func TestRetry(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/m\n\ngo 1.26\n",
		"m_test.go": `package m

import (
	"os"
	"testing"
)

func TestFirst(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if f, err := os.OpenFile("ran", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			t.Fatal("the first try")
		}
	})
}

func TestAlways(t *testing.T) { t.Fatal("always") }

func TestNever(t *testing.T) {}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		most int
		want string
	}{{1, "1 passed, 0 flaky, 2 failed, 0 skipped"}, {2, "1 passed, 1 flaky, 1 failed, 0 skipped"}} {
		var out strings.Builder
		sum := NewSummary(&out)
		args := []string{"-C", dir, "-count=1", "./..."}
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, "ran")), runTests("go", args, sum), retryTests("go", args, test.most, sum)); err != nil {
			t.Fatal(err)
		}
		if sum.Print(); !strings.HasSuffix(out.String(), "\n"+test.want+"\n") || sum.Good(false) {
			t.Errorf("at most %d: %s\nwant %s", test.most, &out, test.want)
		}
	}
}
