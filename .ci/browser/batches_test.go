package browser

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// The turns of two models that differ on two of the tasks of a batch.
const (
	goodModel = "  - text: I write it.\n    calls: [{tool: shell, input: {command: echo yes > answer}}]\n  - text: Done.\n"
	badModel  = "  - text: I write it.\n    calls: [{tool: shell, input: {command: echo no > answer; cat missing}}]\n  - text: Done.\n"
)

// runBatch runs three tasks with the models good and bad, and returns the batch's path on
// the page.
func (s *site) runBatch() string {
	s.t.Helper()
	s.write("tasks/start/readme", "The answer is yes.\n")
	tasks := ""
	for i, verify := range []string{"test -f answer", "grep yes answer", "grep yes answer"} {
		tasks += fmt.Sprintf(`{"id":"task-%d","prompt":"Write the answer.","workspace":"start","verify":%q}`+"\n", i, verify)
	}
	cmd := s.command("batch", "--backend", "gvisor", "--model", "good", "--model", "bad", "-o", filepath.Join(s.home, "batches", "answers"), s.write("tasks/tasks.jsonl", tasks))
	out, err := cmd.CombinedOutput()
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != 60 { // not all pass
		s.t.Fatalf("caisson batch: %v\n%s", err, out)
	}
	return "/b/answers/"
}

// batchViews are addresses of all kinds of pages of a batch.
func (s *site) batchViews(batch string) []string {
	s.t.Helper()
	trials, err := filepath.Glob(filepath.Join(s.home, "batches", "answers", "trials", "*bad*"))
	if err != nil || len(trials) != 3 {
		s.t.Fatalf("the trials %q, %v", trials, err)
	}
	trial := batch + "trials/" + filepath.Base(trials[1]) + "/"
	return []string{batch, batch + "compare?a=good&b=bad", batch + "compare?a=good&b=good", trial, trial + "session/"}
}

// TestCompareModels looks which of two models is better, and why the other one failed,
// journey 7.
func TestCompareModels(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"good": goodModel, "bad": badModel})
	s.runBatch()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			u := user{s.tab(t, way.script).signIn("alice"), way.mouse}
			u.open("/")
			u.clicks, u.keys = 0, 0
			u.use("nav a[href='/b']")
			u.says(".rows", "best pass@1: good")
			u.use(".rows a")
			u.says("main", "the difference of 66.7 points on 3 tasks")
			u.use("details[open] details[open] td a[href*=bad]")
			u.says("h1", "task-")
			u.says(".under", "bad")
			u.says("main", "+no")
			u.costs("7, compare two models", 3)
			u.check()
		})
	}
}
