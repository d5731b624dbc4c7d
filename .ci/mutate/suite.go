//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A testBinary is the compiled tests of one package.
type testBinary struct {
	pkg, dir, path string
	tests          []*test
	failing        []string // at baseline: they are left out
}

// A test is one top-level test and which mutants it reaches.
type test struct {
	binary  *testBinary
	name    string
	elapsed time.Duration
	reaches map[int]bool
}

// A suite is the rewritten package and the tests that run on it.
type suite struct {
	goTool, scratch string
	run             *regexp.Regexp // the tests that count
	overlay         string
	least           time.Duration
	binaries        []*testBinary
}

const runtimeName = "zz_mutants.go"

// writeOverlay writes the rewritten sources and the overlay that names them.
func (s *suite) writeOverlay(p *program) error {
	replace := map[string]string{}
	write := func(path string, text []byte) error {
		to := filepath.Join(s.scratch, "src", filepath.Base(path))
		replace[path] = to
		return os.WriteFile(to, text, 0o644)
	}
	if err := os.MkdirAll(filepath.Join(s.scratch, "src"), 0o755); err != nil {
		return err
	}
	for _, f := range p.files {
		if err := write(f.path, f.render()); err != nil {
			return err
		}
	}
	if err := write(filepath.Join(p.Dir, runtimeName), []byte(runtimeSource(p.Name, len(p.mutants)))); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	s.overlay = filepath.Join(s.scratch, "overlay.json")
	return os.WriteFile(s.overlay, text, 0o644)
}

// compile builds the tests of a package with the rewritten sources. A package
// without tests is left out.
func (s *suite) compile(pattern string) error {
	out, err := exec.Command(s.goTool, "list", "-f", "{{.Dir}}\n{{.ImportPath}}", pattern).Output()
	if err != nil {
		return fmt.Errorf("go list %s: %w", pattern, err)
	}
	dir, pkg, ok := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !ok || strings.Contains(pkg, "\n") {
		return fmt.Errorf("%s is not one package", pattern)
	}
	b := &testBinary{pkg: pkg, dir: dir, path: filepath.Join(s.scratch, fmt.Sprintf("tests%d", len(s.binaries)))}
	text, err := exec.Command(s.goTool, "test", "-c", "-overlay", s.overlay, "-o", b.path, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile the tests of %s: %w\n%s", pkg, err, text)
	}
	if _, err := os.Stat(b.path); err != nil {
		return nil
	}
	list := exec.Command(b.path, "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = dir
	text, err = list.Output()
	if err != nil {
		return fmt.Errorf("list the tests of %s: %w", pkg, err)
	}
	for name := range strings.FieldsSeq(string(text)) {
		if s.run.MatchString(name) {
			b.tests = append(b.tests, &test{binary: b, name: name, reaches: map[int]bool{}})
		}
	}
	s.binaries = append(s.binaries, b)
	return nil
}

// goenv writes the configuration that makes every go command which a test runs
// use the overlay, and returns its variable.
func (s *suite) goenv() (string, error) {
	path := filepath.Join(s.scratch, "goenv")
	return "GOENV=" + path, os.WriteFile(path, []byte("GOFLAGS=-overlay="+s.overlay+"\n"), 0o644)
}

// trace runs every test by itself and records what it reaches. Tests that fail
// are left out.
func (s *suite) trace(ctx context.Context, workers int) error {
	var all []*test
	for _, b := range s.binaries {
		all = append(all, b.tests...)
	}
	failed := make([]bool, len(all))
	err := inParallel(workers, len(all), func(worker, i int) error {
		var err error
		failed[i], err = s.traceTest(ctx, worker, all[i])
		return err
	})
	for i, t := range all {
		if failed[i] {
			t.binary.failing = append(t.binary.failing, t.name)
			t.binary.tests = slices.DeleteFunc(t.binary.tests, func(u *test) bool { return u == t })
		}
	}
	return err
}

func (s *suite) traceTest(ctx context.Context, worker int, t *test) (failed bool, err error) {
	j, err := s.job(worker, t.binary, []*test{t}, "trace")
	if err != nil {
		return false, err
	}
	j.timeout = 10 * time.Minute
	j.trace = true
	o, err := j.run(ctx)
	if err != nil {
		return false, err
	}
	t.elapsed = o.elapsed
	for line := range strings.FieldsSeq(string(o.trace)) {
		if id, err := strconv.Atoi(line); err == nil {
			t.reaches[id] = true
		}
	}
	return o.status != 0 || o.timedOut, nil
}

func (s *suite) job(worker int, b *testBinary, tests []*test, value string) (*job, error) {
	env, err := s.goenv()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(tests))
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t.name))
	}
	scratch := filepath.Join(s.scratch, fmt.Sprintf("worker%d", worker))
	if err := os.MkdirAll(scratch, 0o755); err != nil {
		return nil, err
	}
	return &job{
		dir: b.dir, scratch: scratch, domain: domainPrefix + value, env: []string{env},
		argv: []string{b.path, "-test.run=^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.short", "-test.count=1"},
	}, nil
}

// A verdict is the outcome of a mutant.
type verdict string

const (
	killed     verdict = "killed"
	timedOut   verdict = "timed out"
	survived   verdict = "survived"
	notCovered verdict = "not covered"
)

// try runs the tests that reach a mutant, the short ones first.
func (s *suite) try(ctx context.Context, worker, id int) (verdict, string, []byte, error) {
	reached := false
	var output []byte
	for _, long := range []bool{false, true} {
		for _, b := range s.binaries {
			var tests []*test
			var baseline time.Duration
			for _, t := range b.tests {
				if t.reaches[id] && long == (t.elapsed > time.Second) {
					tests = append(tests, t)
					baseline += t.elapsed
				}
			}
			if len(tests) == 0 {
				continue
			}
			reached = true
			j, err := s.job(worker, b, tests, strconv.Itoa(id))
			if err != nil {
				return "", "", nil, err
			}
			j.env = append(j.env, switchVariable+"="+strconv.Itoa(id))
			j.timeout = max(s.least, 5*baseline)
			o, err := j.run(ctx)
			switch {
			case err != nil:
				return "", "", nil, err
			case o.timedOut:
				return timedOut, "", o.output, nil
			case o.status != 0:
				return killed, failedTest(o.output), o.output, nil
			}
			output = append(output, o.output...)
		}
	}
	if reached {
		return survived, "", output, nil
	}
	return notCovered, "", nil, nil
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failedTest returns the first test that the output reports as failed, with the
// most specific subtest, or "" if the process ended otherwise.
func failedTest(output []byte) string {
	var last string
	for _, m := range failLine.FindAllSubmatch(output, -1) {
		name := string(m[1])
		if last != "" && !strings.HasPrefix(name, last+"/") {
			break
		}
		last = name
	}
	return last
}
