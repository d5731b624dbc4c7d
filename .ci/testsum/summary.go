package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64
	Output      string
	ImportPath  string // of build-output and build-fail
	FailedBuild string
}

// testKey names one test or, with an empty test, a package.
type testKey struct{ pkg, test string }

func (k testKey) String() string {
	if k.test == "" {
		return k.pkg + " (package)"
	}
	return k.pkg + " " + k.test
}

// Summary counts the tests that it is told of. A test with subtests counts by
// those, and by itself only if it failed on its own. It is not safe for
// concurrent use.
type Summary struct {
	out     io.Writer
	output  map[testKey][]string
	parents map[testKey]bool // has subtests
	failing map[testKey]bool // has a failed subtest, or a failed test
	retried map[testKey]bool
	builds  map[string][]string
	passed  int
	failed  []testKey
	flaky   []testKey // failed, and passed when they ran again alone
	skipped []string
	timed   []timedTest
}

// timedTest is a test without subtests and its time in seconds.
type timedTest struct {
	name    string
	seconds float64
}

// slowest is how many of the slowest tests are printed: what a minute less
// could come from.
const slowest = 20

// NewSummary returns an empty summary that reports to out.
func NewSummary(out io.Writer) *Summary {
	return &Summary{
		out:     out,
		output:  map[testKey][]string{},
		parents: map[testKey]bool{},
		failing: map[testKey]bool{},
		retried: map[testKey]bool{},
		builds:  map[string][]string{},
	}
}

// AddLine takes one line of go test's output.
func (s *Summary) AddLine(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(s.out, "%s\n", bytes.TrimRight(line, "\n"))
		return
	}
	key := testKey{e.Package, e.Test}
	switch e.Action {
	case "run":
		for parent := range parentsOf(key) {
			s.parents[parent] = true
		}
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e.Action, key, e.Elapsed)
		}
	}
}

// parentsOf gives the tests that a subtest is part of, the nearest first.
func parentsOf(key testKey) func(func(testKey) bool) {
	return func(yield func(testKey) bool) {
		for {
			i := strings.LastIndexByte(key.test, '/')
			if i < 0 {
				return
			}
			key.test = key.test[:i]
			if !yield(key) {
				return
			}
		}
	}
}

func (s *Summary) endTest(action string, key testKey, seconds float64) {
	if !s.parents[key] {
		s.timed = append(s.timed, timedTest{key.String(), seconds})
	}
	switch {
	case action == "fail":
		if !s.failing[key] {
			s.fail(key, s.output[key])
		}
		for parent := range parentsOf(key) {
			s.failing[parent] = true
		}
		s.failing[testKey{key.pkg, ""}] = true
	case s.parents[key] && action == "pass":
	case action == "skip":
		s.skipped = append(s.skipped, key.String()+": "+reason(s.output[key]))
	default:
		s.passed++
	}
	delete(s.output, key)
}

func (s *Summary) endPackage(e event) {
	key := testKey{e.Package, ""}
	if e.Action == "fail" && !s.failing[key] {
		s.fail(key, append(s.builds[e.FailedBuild], s.unfinished(e.Package)...))
	}
	verdict := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "no tests"}[e.Action]
	fmt.Fprintf(s.out, "%-8s %s %.1fs\n", verdict, e.Package, e.Elapsed)
	maps.DeleteFunc(s.output, func(k testKey, _ []string) bool { return k.pkg == e.Package })
}

// unfinished is the output of a package and of its tests that never ended: a
// panic or a time-out is in there.
func (s *Summary) unfinished(pkg string) []string {
	var lines []string
	keys := slices.SortedFunc(maps.Keys(s.output), func(a, b testKey) int { return strings.Compare(a.test, b.test) })
	for _, key := range keys {
		if key.pkg == pkg {
			lines = append(lines, s.output[key]...)
		}
	}
	return lines
}

func (s *Summary) fail(key testKey, output []string) {
	s.failed = append(s.failed, key)
	fmt.Fprintf(s.out, "--- failed: %s\n%s", key, strings.Join(output, ""))
}

// reason is what a test said when it skipped itself: its last line that go
// test did not write, without the file and line before it.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			return text
		}
		return line
	}
	return "no reason given"
}

// MarkFlaky counts the failures of a test and of its subtests as flaky.
func (s *Summary) MarkFlaky(pkg, test string) {
	s.failed = slices.DeleteFunc(s.failed, func(k testKey) bool {
		isOf := k.pkg == pkg && rootOf(k.test) == test
		if isOf {
			s.flaky = append(s.flaky, k)
		}
		return isOf
	})
}

// rootOf is the test, as go test's -run names it, that a subtest is part of.
func rootOf(test string) string {
	root, _, _ := strings.Cut(test, "/")
	return root
}

// Failures is the number of tests and packages that failed so far.
func (s *Summary) Failures() int { return len(s.failed) }

// Good says whether the run may count as a success: something passed, nothing
// failed, and, if strict, nothing was skipped.
func (s *Summary) Good(strict bool) bool {
	return s.passed > 0 && len(s.failed) == 0 && (!strict || len(s.skipped) == 0)
}

// Print writes the slowest tests, the lists of what was skipped and what failed,
// and the counts on a line of their own.
func (s *Summary) Print() {
	s.printSlowest()
	for _, list := range []struct {
		title string
		names []string
	}{{"skipped", s.skipped}, {"failed, and passed alone", names(s.flaky)}, {"failed", names(s.failed)}} {
		if len(list.names) > 0 {
			fmt.Fprintf(s.out, "\n%s:\n  %s\n", list.title, strings.Join(list.names, "\n  "))
		}
	}
	fmt.Fprintf(s.out, "\n%d passed, %d flaky, %d failed, %d skipped\n", s.passed, len(s.flaky), len(s.failed), len(s.skipped))
}

func names(keys []testKey) []string {
	var list []string
	for _, k := range keys {
		list = append(list, k.String())
	}
	return list
}

// printSlowest writes the tests that took a second or more, the slowest first.
func (s *Summary) printSlowest() {
	slices.SortStableFunc(s.timed, func(a, b timedTest) int { return cmp.Compare(b.seconds, a.seconds) })
	for i, t := range s.timed[:min(slowest, len(s.timed))] {
		if t.seconds < 1 {
			return
		}
		if i == 0 {
			fmt.Fprintf(s.out, "\nslowest:\n")
		}
		fmt.Fprintf(s.out, "  %6.1fs %s\n", t.seconds, t.name)
	}
}
