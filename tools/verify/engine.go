package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/workspace"
)

type engine struct {
	view workspace.View
	// runner is nil if no commands may be run.
	runner commandRunner
	// commandTime limits all commands of a call.
	commandTime time.Duration
}

// runChecks makes all checks in order, whether or not earlier ones passed. An error
// is a cancellation or a sandbox failure. The report then has the results so far.
func (e *engine) runChecks(ctx context.Context, tool string, checks []check) (Report, error) {
	r := Report{Tool: tool, Results: []Result{}}
	left := e.commandTime
	passed := 0
	var failed error
	for i, c := range checks {
		if c.ID == "" {
			c.ID = fmt.Sprintf("check%d", i+1)
		}
		failed = context.Cause(ctx)
		if failed != nil {
			break
		}
		var one Result
		one, failed = e.runCheck(ctx, c, &left)
		if failed != nil {
			break
		}
		one.ID = c.ID
		one.Kind = c.Kind
		one.Reason = utf8text.Clip(one.Reason, maxReasonBytes)
		if one.Passed {
			passed++
		}
		r.Results = append(r.Results, one)
	}
	r.Run = len(r.Results)
	r.AllPassed = passed == len(checks) && len(checks) > 0 && failed == nil
	r.Summary = fmt.Sprintf("%d of %d checks passed", passed, len(checks))
	return r, failed
}

// runCheck makes one check. It subtracts the time of commands from left.
func (e *engine) runCheck(ctx context.Context, c check, left *time.Duration) (r Result, err error) {
	if problem := cmp.Or(c.unusedField(), c.sourceProblem()); problem != "" {
		return Result{Reason: problem}, nil
	}
	if e.view == nil && c.Path != "" {
		return Result{Reason: "there is no workspace: give target_text"}, nil
	}
	switch c.Kind {
	case kindShell:
		return e.checkShell(ctx, c, left)
	case kindSHA256:
		r.Passed, r.Reason, err = e.checkHash(ctx, c)
	case kindFileExists:
		r.Passed, r.Reason, err = e.checkFileExists(ctx, c)
	default:
		var text string
		text, r.Reason, err = e.readText(ctx, c)
		if err == nil && r.Reason == "" {
			r.Passed, r.Reason = checkText(c, text)
		}
	}
	return r, err
}

// unusedField returns a reason if a field is set that the check's kind doesn't use:
// the check would prove less than it seems to.
func (c check) unusedField() string {
	uses := map[string][]string{
		kindContains: {"text", "value", "case"}, kindNotContains: {"text", "value", "case"}, kindRegex: {"text", "value", "case"},
		kindContainsAny: {"text", "values", "case"}, kindContainsAll: {"text", "values", "case"}, kindMinLength: {"text", "value"},
		kindJSONSchema: {"text", "schema"}, kindSHA256: {"text", "value"}, kindFileExists: {"path"}, kindShell: {"cmd"},
	}[c.Kind]
	for _, f := range []struct {
		name, use string
		set       bool
	}{
		{"target_text", "text", c.Target != nil},
		{"path", "path", c.Path != ""},
		{"value", "value", len(c.Value) > 0},
		{"values", "values", c.Values != nil},
		{"case_insensitive", "case", c.CaseInsensitive},
		{"schema", "schema", len(c.Schema) > 0},
		{"cmd", "cmd", c.Command != ""},
		{"expect_exit", "cmd", c.Exit != 0},
		{"expect_stdout_contains", "cmd", c.Stdout != ""},
		{"timeout_seconds", "cmd", c.Timeout != 0},
	} {
		used := slices.Contains(uses, f.use) || f.use == "path" && slices.Contains(uses, "text")
		if f.set && !used {
			return f.name + " means nothing for " + c.Kind
		}
	}
	return ""
}

// sourceProblem returns a reason unless a check of a text or a file's content has
// exactly one of them.
func (c check) sourceProblem() string {
	switch {
	case c.Kind == kindShell || c.Kind == kindFileExists:
		return ""
	case c.Target != nil && c.Path != "":
		return "give target_text or path, not both"
	case c.Target == nil && c.Path == "":
		return "needs target_text or path"
	}
	return ""
}

func (e *engine) checkShell(ctx context.Context, c check, left *time.Duration) (Result, error) {
	switch {
	case e.runner == nil:
		return Result{Reason: "this tool runs no commands; verify_shell does"}, nil
	case c.Command == "":
		return Result{Reason: "needs cmd"}, nil
	case *left < time.Second:
		return Result{Reason: fmt.Sprintf("not run: the commands of one call have %v together", e.commandTime)}, nil
	}
	timeout := *left
	if c.Timeout > 0 && c.Timeout < timeout.Seconds() {
		timeout = time.Duration(math.Ceil(c.Timeout)) * time.Second
	}
	begun := time.Now()
	ended, err := e.runner.RunCheck(ctx, Command{Script: c.Command, Timeout: timeout})
	*left -= time.Since(begun)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}
		return Result{}, fmt.Errorf("run check %s: %w", c.ID, err)
	}
	return ended.result(c, timeout), nil
}

func (d Ended) result(c check, timeout time.Duration) Result {
	switch cause := d.Cause(); {
	case d.Status.TimedOut:
		return Result{Reason: fmt.Sprintf("timed out after %v", timeout)}
	case cause != "":
		return Result{Reason: "ended: " + cause}
	case d.Status.Signal != 0:
		return Result{Reason: "killed by " + d.Status.String()}
	}
	r := Result{ExitCode: new(d.Status.Code), Reason: d.Status.String()}
	switch {
	case float64(d.Status.Code) != c.Exit:
		r.Reason += fmt.Sprintf(", expected %.0f; standard output begins: %s", c.Exit, quoteClipped(d.Stdout))
	case c.Stdout != "" && !strings.Contains(d.Stdout, c.Stdout):
		r.Reason += fmt.Sprintf(", and %s is not in its standard output", quoteClipped(c.Stdout))
		if d.Cut {
			r.Reason += ", of which only the beginning and the end were looked at"
		}
	default:
		r.Passed = true
	}
	return r
}

// Command is the command line of a shell check.
type Command struct {
	Script string
	// Timeout limits the wall time. It is positive.
	Timeout time.Duration
}

// Ended is the outcome of a command.
type Ended struct {
	sandbox.Exit
	// Stdout is the standard output. If Cut is set, bytes are missing in its middle.
	Stdout string
	Cut    bool
}

// commandRunner runs a command in the session's sandbox, in the workspace.
// Cancelling ctx ends the command. The error then wraps context.Cause(ctx). A
// failing command is not an error.
type commandRunner interface {
	RunCheck(ctx context.Context, c Command) (Ended, error)
}
