package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/terminal"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// usageError is a command line that can't be understood.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// failure turns any error into what people read and its exit status.
func failure(err error) *runner.Error {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e
	}
	if u, ok := errors.AsType[*usageError](err); ok {
		return &runner.Error{Status: runner.ExitUsage, Problem: record.Problem{Cause: u.Error(), Mend: "caisson --help and caisson run --help list what there is."}}
	}
	if c, ok := errors.AsType[*config.Error](err); ok {
		return &runner.Error{Status: runner.ExitConfig, Problem: record.Problem{Cause: c.Error(), Mend: sentence(c.Mend)}, Err: err}
	}
	problem := record.Problem{Cause: err.Error()}
	switch missing, ok := errors.AsType[*programs.NotFoundError](err); {
	case ok:
		problem.Mend = installHint(missing.Name)
		return &runner.Error{Status: runner.ExitSandboxStart, Problem: problem, Err: err}
	case errors.Is(err, sandbox.ErrNoNamespaces):
		return &runner.Error{Status: runner.ExitSandboxStart, Problem: record.Problem{Cause: err.Error(), Mend: runner.NamespacesHint}, Err: err}
	case errors.Is(err, sandbox.ErrUnavailable), errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrUnsupported),
		errors.Is(err, sandbox.ErrInvalid), errors.Is(err, tools.ErrSandboxStart):
		problem.Mend = "caisson doctor says what this machine can run; --backend chooses another sandbox."
		return &runner.Error{Status: runner.ExitSandboxStart, Problem: problem, Err: err}
	}
	return &runner.Error{Status: runner.ExitFailed, Problem: problem, Err: err}
}

// sentence makes a mend of the configuration's one of ours.
func sentence(s string) string {
	if s == "" {
		return "Mend it there."
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}

// report prints a failure on standard error, as one paragraph.
func report(a *app, e *runner.Error) {
	cause, _ := tools.Display(safeurl.InText(e.Cause))
	mend, _ := tools.Display(safeurl.InText(e.Mend))
	a.tell(strings.TrimRight(fmt.Sprintf("caisson: %s. %s", strings.TrimRight(cause, ".\n "), mend), " "))
}

// tell prints lines, which must be safe, on standard error. On a terminal they are
// broken at blanks.
func (a *app) tell(lines ...string) {
	if a.terminal(a.stderr) {
		columns, _ := a.size()
		lines = terminal.Wrap(lines, columns)
	}
	for _, l := range lines {
		fmt.Fprintln(a.stderr, l)
	}
}
