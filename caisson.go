// Package caisson runs agent tasks and commands in sandboxes.
//
// The agent loop and everything that only reads run in this process. What writes or
// executes runs in one container per session, without network and without privileges,
// with the workspace mounted into it. When the session ends the container is gone, even
// if this process is killed.
//
// [Run] does one task, [Open] a session of many turns, calls and commands, [NewSandbox]
// starts a sandbox without a session, and [Doctor] checks what this machine can run.
//
// They need caisson-guest and, for the gvisor backend, runsc: beside the program, on PATH, or
// named in [HostOptions]. In a module that requires this one, the first command builds your
// program with a caisson-guest of the same version into bin, and the second adds runsc, which
// is a module of its own:
//
//	CGO_ENABLED=0 go build -o bin/ . github.com/caisson-run/caisson/cmd/caisson-guest
//	CGO_ENABLED=0 GOBIN=$PWD/bin go install github.com/caisson-run/caisson/sandbox/oci/runsc@latest
//
// With the backends docker and runc, the first is enough. In a checkout of this repository,
// make build makes both programs.
//
// This package, sandbox, images, limits, tools, tools/policy, loop, loop/openai,
// loop/anthropic and sandbox/sandboxtest are the public API. The other packages may change in any version.
package caisson

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/policy"
)

// Options configure a session. Workspace is required, and Profiles for turns; the zero value
// of every other field is useful.
type Options struct {
	SandboxOptions

	// Profiles are the models that answer the agent's requests, with their prices and
	// limits; see [loop.Options]. The caller closes the models after the session. A session
	// without turns, in which the program itself makes calls and runs commands, needs none.
	Profiles []loop.Profile
	// Policy decides which tool calls run; the zero value is the preset "ci": what runs
	// in the sandbox or only reads is allowed, everything else is refused.
	Policy policy.Policy
	// Budget bounds each turn, and SessionBudget all turns together. A nil field is no
	// limit.
	Budget, SessionBudget limits.Budget
	// Instructions are added to the system prompt.
	Instructions string
	// Tools are offered to the model after the built-in ones. They run in this process,
	// with its privileges, under Policy.
	Tools []tools.Factory
	// Egress lists what commands may reach: names of package managers whose public
	// registries they may read from, such as "npm", and rules, such as
	// "https://api.example.com/v1/". Without one they have no network.
	Egress []string
	// Secrets maps names to values, such as API keys, that no record or log may contain.
	Secrets map[string]string
}

// Report describes how a session ended.
type Report struct {
	// Session is the id of the session and Dir the directory of its records.
	Session, Dir string
	// Reason is why the last turn ended; [loop.StopAnswered] is success.
	Reason loop.StopReason
	// Answer is the model's answer to the last turn, or "".
	Answer string
	// Turns is the number of turns that were started.
	Turns int
	Usage limits.Usage
	// Changed lists changed files, relative to the workspace. The list is not complete
	// if Incomplete is set: there are too many, or the workspace can't be read.
	Changed    []string
	Incomplete bool
	// Patch is a unified diff of the changed text files.
	Patch string
	// Err is why the session did not end as it should, with a hint, or nil.
	Err error
}

// Run does one task: it opens a session, runs a turn, and closes the session.
// Cancelling ctx stops running commands, and the report covers what was done
// before. The error reports that no session could be opened; a session that failed
// has a report with Err set.
func Run(ctx context.Context, o Options, task string) (Report, error) {
	if len(o.Profiles) == 0 {
		return Report{}, errors.New("run session: Options.Profiles is missing")
	}
	s, err := Open(ctx, o)
	if err != nil {
		return Report{}, err
	}
	_, err = s.Ask(ctx, task)
	r := s.Close()
	if r.Err == nil {
		r.Err = err
	}
	return r, nil
}

// Session is a session of many turns: one sandbox, which the first tool call that may
// need it starts, and one history. Its methods may be called by one goroutine at a time.
type Session struct {
	session *runner.Session
	parts   *parts
}

// Open opens a session. Cancelling ctx ends the turn that runs, and no other starts.
// The caller must close the session.
func Open(ctx context.Context, o Options) (*Session, error) {
	s, err := openSession(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	return s, nil
}

func openSession(ctx context.Context, o Options) (_ *Session, err error) {
	if o.Policy.Classes == nil {
		if o.Policy, err = policy.Preset("ci"); err != nil {
			return nil, err
		}
	}
	egress, err := newEgressOptions(o.Egress)
	if err != nil {
		return nil, err
	}
	var secrets []redact.Secret
	for name, value := range o.Secrets {
		secrets = append(secrets, redact.Secret{Name: name, Value: value})
	}
	p, err := openParts(ctx, o.SandboxOptions, secrets)
	if err != nil {
		return nil, err
	}
	defer p.CloseOnError(&err)
	session, err := runner.Open(ctx, runner.Options{
		Dir: p.dir, User: runner.User{Name: runner.LocalUser(), Admin: true}, Workspace: p.work, Secrets: secrets, Removed: p.removed,
		SandboxOptions: runner.SandboxOptions{
			Backend: p.backend, Choice: p.choice, Setup: p.setup, ImageName: o.Image, Mode: o.Mode, CopyBytes: o.CopyBytes, CopyEntries: o.CopyEntries, Target: p.target, Env: o.Env,
			Mounts: p.mounts, Caches: p.caches, Egress: egress,
		},
		ModelOptions:  runner.ModelOptions{Profiles: o.Profiles, Budget: o.Budget, SessionBudget: o.SessionBudget, Instructions: o.Instructions},
		PolicyOptions: runner.PolicyOptions{Policy: o.Policy, OnPrompt: dispatch.OnPromptDeny},
		ToolOptions:   runner.ToolOptions{Tools: o.Tools},
	})
	return &Session{session, p}, err
}

// newEgressOptions returns what commands may reach by a list of presets and rules.
func newEgressOptions(list []string) (runner.EgressOptions, error) {
	if len(list) == 0 {
		return runner.EgressOptions{}, nil
	}
	o := runner.EgressOptions{Policy: &rule.Policy{}, Capture: true, KeepFiles: runner.CacheSession}
	for _, s := range list {
		if slices.Contains(preset.Names(), s) {
			p, err := preset.New(s, preset.Options{})
			if err != nil {
				return o, fmt.Errorf("Options.Egress: %w", err)
			}
			o.Presets = append(o.Presets, p)
			o.Policy.Allow = append(o.Policy.Allow, p.Rules...)
			continue
		}
		r, err := rule.ParseEgress(s)
		if err != nil {
			return o, fmt.Errorf("Options.Egress: %w", err)
		}
		o.Policy.Allow = append(o.Policy.Allow, r)
	}
	return o, nil
}

// Ask runs one turn with a message of the user and returns the model's answer. The error
// is why the turn ended early; at a limit, there may be an answer as well. ctx ends only
// this turn.
func (s *Session) Ask(ctx context.Context, message string) (string, error) {
	t, err := s.session.Start(message)
	if err != nil {
		return "", err
	}
	r, err := t.Wait(ctx)
	return r.Answer, err
}

// Exec runs a command of the user in the session's sandbox, beside the agent's and with
// the same limits, and waits for its end. The records show it, Policy is not asked, and the
// sandbox starts if need be. If ctx ends, the command gets SIGTERM, and SIGKILL after the
// grace period; its output until then is still delivered. Fields of c other than Argv,
// Dir, Timeout and the streams must be zero.
func (s *Session) Exec(ctx context.Context, c sandbox.Command) (sandbox.ExitStatus, error) {
	other := c
	other.Argv, other.Dir, other.Timeout = nil, "", 0
	other.Stdin, other.Stdout, other.Stderr = nil, nil, nil
	if !reflect.ValueOf(other).IsZero() { // a bound that has no effect must not go unnoticed
		return sandbox.ExitStatus{}, fmt.Errorf("run command: %w: it has more than Argv, Dir, Timeout and streams", sandbox.ErrInvalid)
	}
	r, err := s.session.Exec(ctx, runner.UserCommand{
		Argv: c.Argv, Dir: c.Dir, Timeout: c.Timeout, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	return r.Status, err
}

// Call runs one tool call without the model and returns its result. Policy, sandbox and
// records are those of the model's calls, and the model is not told of it. The error is why
// there is no result; a tool that failed has one.
func (s *Session) Call(ctx context.Context, name tools.Name, input json.RawMessage) (loop.ToolResult, error) {
	return s.session.Call(ctx, name, input)
}

// Close stops what runs, removes the sandbox and reports how the session ended.
func (s *Session) Close() Report {
	r := s.session.Close()
	report := Report{
		Session: r.Session, Dir: r.Dir, Reason: r.Reason, Answer: r.Answer, Turns: r.Turns, Usage: r.Usage,
		Incomplete: r.Incomplete || r.ChangedOmitted > 0, Patch: r.Patch,
	}
	for _, c := range r.Changed {
		report.Changed = append(report.Changed, c.Path)
	}
	if r.Problem != nil {
		report.Err = &sessionError{*r.Problem, r.Err}
	}
	report.Err = errors.Join(report.Err, s.parts.Close())
	return report
}

// sessionError is a problem of a session with its hint.
type sessionError struct {
	record.Problem
	cause error
}

// Error returns the cause and the hint.
func (e *sessionError) Error() string {
	if e.Hint == "" {
		return e.Cause
	}
	return e.Cause + ". " + e.Hint
}

// Unwrap returns the error of the session.
func (e *sessionError) Unwrap() error { return e.cause }
