package runner

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
)

// TestExitStatusIsThePublishedTable compares the code with docs/exit-status.md.
func TestExitStatusIsThePublishedTable(t *testing.T) {
	text, err := os.ReadFile("../docs/exit-status.md")
	if err != nil {
		t.Fatal(err)
	}
	published := map[loop.StopReason][]int{}
	row := regexp.MustCompile(`(?m)^\| (\d+) \|.*\| (.*) \|$`)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		status, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		for reason := range strings.SplitSeq(m[2], ",") {
			if reason = strings.Trim(reason, " `"); reason != "" {
				published[loop.StopReason(reason)] = append(published[loop.StopReason(reason)], status)
			}
		}
	}
	for reason, want := range map[loop.StopReason]int{
		loop.StopAnswered: 0, loop.StopProviderFailed: 1, loop.StopStuck: 1, loop.StopAuth: 41, loop.StopSandboxStart: 44,
		loop.StopSandboxLost: 45, loop.StopLimit: 53, loop.StopTraceUnwritable: 54, loop.StopNoApprover: 56, loop.StopCancelled: 130,
	} {
		r := Report{SessionEnded: SessionEnded{Reason: reason}}
		if got := ExitStatus(r); got != want || !slices.Contains(published[reason], want) {
			t.Errorf("%s: %d, published %v, want %d", reason, got, published[reason], want)
		}
		delete(published, reason)
	}
	for reason := range published {
		t.Errorf("%s is published and not known", reason)
	}
}

func TestInterruptedBeatsErrorBeatsSuccess(t *testing.T) {
	report := func(reason loop.StopReason, unapproved, signal int) Report {
		return Report{SessionEnded: SessionEnded{Reason: reason}, Unapproved: unapproved, Signal: signal}
	}
	for want, r := range map[int]Report{
		0: report(loop.StopAnswered, 0, 0), 56: report(loop.StopAnswered, 1, 0), 53: report(loop.StopLimit, 1, 0),
		143: report(loop.StopCancelled, 1, 15), 130: report(loop.StopCancelled, 1, 2), 141: report(loop.StopCancelled, 0, 13), 129: report(loop.StopCancelled, 0, 1),
	} {
		if got := ExitStatus(r); got != want {
			t.Errorf("%+v: %d, want %d", r, got, want)
		}
	}
}
