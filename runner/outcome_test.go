package runner

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
)

// TestOutcomeCodesArePublished compares the code with docs/exit-status.md.
func TestOutcomeCodesArePublished(t *testing.T) {
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
		r := Report{SessionEnded: record.SessionEnded{Reason: reason}}
		if got := OutcomeCode(r); got != want || !slices.Contains(published[reason], want) {
			t.Errorf("%s: %d, published %v, want %d", reason, got, published[reason], want)
		}
		delete(published, reason)
	}
	for reason := range published {
		t.Errorf("%s is published and not known", reason)
	}
}

func TestOutcomeCodeOfReports(t *testing.T) {
	named := []record.Quarantined{{Path: "a/.git", To: "a/.git.quarantined-1"}}
	unnamed := append(slices.Clone(named), record.Quarantined{Path: "b/.git", Why: "denied"})
	for _, c := range []struct {
		name   string
		report Report
		want   int
	}{
		{"an answer", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered}}, OutcomeDone},
		{"no turn", Report{SessionEnded: record.SessionEnded{Reason: StopNoTurn}}, OutcomeDone},
		{"no turn after an old denial", Report{SessionEnded: record.SessionEnded{Reason: StopNoTurn, Denials: []record.Denial{{Reason: "no_approver"}}}}, OutcomeDone},
		{"a call that nobody approved", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered}, Unapproved: 1, ApplyRefused: true}, OutcomeNoApprover},
		{"a limit after such a call", Report{SessionEnded: record.SessionEnded{Reason: loop.StopLimit}, Unapproved: 1}, OutcomeLimit},
		{"conflicts", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Left: []string{"a"}}, ApplyRefused: true}, OutcomeConflict},
		{"all was applied", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Overlay: &record.OverlayResult{}}}, OutcomeDone},
		{"one was not applied", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Overlay: &record.OverlayResult{Failed: []record.PathNote{{}}}}}, OutcomeFailed},
		{"one thing is left of commands", Report{SessionEnded: record.SessionEnded{Reason: StopNoTurn, Left: []string{"a mount"}}}, OutcomeFailed},
		{"one thing is left", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Left: []string{"a mount"}}}, OutcomeFailed},
		{"all was renamed", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Quarantined: named}}, OutcomeDone},
		{"one was not renamed", Report{SessionEnded: record.SessionEnded{Reason: loop.StopAnswered, Quarantined: unnamed}, Unapproved: 1}, OutcomeUnvouched},
		{"not renamed, no turn", Report{SessionEnded: record.SessionEnded{Reason: StopNoTurn, Quarantined: unnamed}}, OutcomeUnvouched},
		{"not renamed, a limit", Report{SessionEnded: record.SessionEnded{Reason: loop.StopLimit, Quarantined: unnamed}}, OutcomeUnvouched},
		{"not renamed, no approver", Report{SessionEnded: record.SessionEnded{Reason: loop.StopNoApprover, Quarantined: unnamed}}, OutcomeUnvouched},
		{"not renamed, the sandbox was lost", Report{SessionEnded: record.SessionEnded{Reason: loop.StopSandboxLost, Quarantined: unnamed}}, OutcomeSandboxLost},
		{"SIGTERM", Report{SessionEnded: record.SessionEnded{Reason: loop.StopCancelled, Quarantined: unnamed}, Unapproved: 1, Signal: 15}, 143},
		{"SIGINT", Report{SessionEnded: record.SessionEnded{Reason: loop.StopCancelled}, Unapproved: 1, Signal: 2}, 130},
		{"SIGHUP", Report{SessionEnded: record.SessionEnded{Reason: loop.StopCancelled}, Signal: 1}, 129},
		{"SIGPIPE", Report{SessionEnded: record.SessionEnded{Reason: loop.StopCancelled}, Signal: 13}, 141},
	} {
		if got := OutcomeCode(c.report); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := os.ErrNotExist
	for want, err := range map[string]error{
		"terminated": &Interrupted{Signal: 15}, "interrupted": &Interrupted{Signal: 2},
		"file does not exist": Fault{Kind: FaultInvalidLimits, Err: cause},
		"the records in /s can't be written: file does not exist": Fault{Kind: FaultRecords, Dir: "/s", Err: cause},
		"no such session": &UserCommandError{Cause: "no such session", Err: cause},
	} {
		if interrupted := errors.As(err, new(*Interrupted)); err.Error() != want || !interrupted && !errors.Is(err, cause) {
			t.Errorf("%q of %v, want %q", err, errors.Unwrap(err), want)
		}
	}
}

func TestProviderHints(t *testing.T) {
	for class, want := range map[loop.ErrorClass]string{
		loop.ModelRateLimit: "max_retries", loop.ModelServer: "later", loop.ModelInvalidRequest: "settings", loop.ModelNetwork: "network",
	} {
		if got := (Fault{Kind: FaultModel, Model: class}).Hint(); !strings.Contains(got, want) {
			t.Errorf("%s: %q does not name %q", class, got, want)
		}
	}
	used := Fault{Kind: FaultModel, Model: loop.ModelRateLimit, Err: &loop.ModelError{Class: loop.ModelRateLimit, Err: loop.ErrQuota}}
	if got := used.Hint(); !strings.Contains(got, "billing") || strings.Contains(got, "run it again") {
		t.Errorf("a quota that is used up has the hint %q", got)
	}
}

func TestCancelledSessionsTellWhereChangesAre(t *testing.T) {
	for overlay, want := range map[bool]string{
		false: "What was done is in the workspace.",
		true:  "The workspace is unchanged; the changes are kept.",
	} {
		f := Fault{Kind: FaultCancelled, Overlay: overlay}
		if got := f.Hint(); got != want {
			t.Errorf("overlay %v: %q, want %q", overlay, got, want)
		}
	}
}
