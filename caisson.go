// Package caisson runs agent tasks and commands in sandboxes.
//
// The agent loop and read-only tools run in this process. Anything that writes or
// executes runs in one container per session, unprivileged and without network, with
// the workspace mounted. The container is gone when the session ends, even if this
// process is killed.
//
// [Run] does one task. [Open] opens a session of many turns, calls and commands.
// [NewSandbox] starts a sandbox without a session. [Doctor] checks this machine.
//
// They need caisson-guest and, for the gvisor backend, runsc: beside the program, on
// PATH, or named in [HostOptions]. They must lie outside the workspace, where commands
// could change them. In a module that requires this one, the first command installs
// your program and a caisson-guest of the same version where go install puts programs.
// The second adds runsc, which is a separate module:
//
//	CGO_ENABLED=0 go install . github.com/caisson-run/caisson/cmd/caisson-guest
//	CGO_ENABLED=0 go install github.com/caisson-run/caisson/sandbox/oci/runsc@latest
//
// The docker and runc backends need only the first. In a checkout of this repository,
// make build makes both programs.
//
// The public API is this package, sandbox, images, limits, tools, tools/policy, loop,
// loop/openai, loop/anthropic and sandbox/sandboxtest. Other packages may change in
// any version.
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

// Options configure a session. Workspace is required. A session with turns also needs
// Profiles. All other fields may be zero.
type Options struct {
	SandboxOptions

	// Profiles are the models, with their prices and limits; see [loop.Options]. The
	// caller closes the models after the session.
	Profiles []loop.Profile
	// Policy decides which tool calls run. The zero value is the preset "ci", which
	// allows sandboxed and read-only calls and refuses all others.
	Policy policy.Policy
	// Budget bounds each turn, and SessionBudget all turns together. Nil fields are no
	// limit.
	Budget, SessionBudget limits.Budget
	// Instructions are added to the system prompt.
	Instructions string
	// Tools are offered to the model after the built-in ones. They run in this
	// process, with its privileges, under Policy.
	Tools []tools.Factory
	// Egress lists what commands may reach: rules such as
	// "https://api.example.com/v1/", and package managers such as "npm", whose public
	// registries become readable. If it is empty, commands have no network.
	Egress []string
	// Secrets maps names to values, such as API keys, that are kept out of records
	// and logs.
	Secrets map[string]string
}

// Report describes how a session ended.
type Report struct {
	// Session is the session's ID and Dir the directory of its records.
	Session, Dir string
	// Reason is why the last turn ended. [loop.StopAnswered] is success.
	Reason loop.StopReason
	// Answer is the model's answer to the last turn, or "".
	Answer string
	// Turns counts the turns that were started.
	Turns int
	Usage limits.Usage
	// Changed lists changed files, relative to the workspace. Incomplete means that
	// some are missing: there are too many, or the workspace can't be read.
	Changed    []string
	Incomplete bool
	// Patch is a unified diff of the changed text files.
	Patch string
	// Err is why the session failed, with a hint, or nil.
	Err error
}

// Run does one task: it opens a session, runs one turn, and closes the session.
// Cancelling ctx stops running commands; the report covers what was done until then.
// Run returns an error only if it can't open a session. If the session fails, the
// report's Err is set.
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

// Session is a session of many turns, with one history and one sandbox, which starts
// with the first tool call that may need it. Methods must not be called concurrently.
type Session struct {
	session *runner.Session
	parts   *parts
}

// Open opens a session. Cancelling ctx ends the current turn and prevents further
// ones. The caller must close the session.
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

// Ask runs one turn with a user message and returns the model's answer. The error
// says why the turn ended early; at a limit there may be an answer too. ctx ends only
// this turn.
func (s *Session) Ask(ctx context.Context, message string) (string, error) {
	t, err := s.session.Start(message)
	if err != nil {
		return "", err
	}
	r, err := t.Wait(ctx)
	return r.Answer, err
}

// Exec runs a user's command in the session's sandbox, under the same limits as the
// agent's commands, and waits for its end. It starts the sandbox if necessary. The
// command is recorded, but Policy doesn't apply to it. If ctx ends, the command gets
// SIGTERM, and SIGKILL after the grace period; output until then is still delivered.
// Only Argv, Dir, Timeout and the streams of c may be set.
func (s *Session) Exec(ctx context.Context, c sandbox.Command) (sandbox.ExitStatus, error) {
	other := c
	other.Argv = nil
	other.Dir = ""
	other.Timeout = 0
	other.Stdin = nil
	other.Stdout = nil
	other.Stderr = nil
	if !reflect.ValueOf(other).IsZero() { // a bound without effect must not go unnoticed
		return sandbox.ExitStatus{}, fmt.Errorf("run command: %w: it has more than Argv, Dir, Timeout and streams", sandbox.ErrInvalid)
	}
	r, err := s.session.Exec(ctx, runner.UserCommand{
		Argv: c.Argv, Dir: c.Dir, Timeout: c.Timeout, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	return r.Status, err
}

// Call runs one tool call, without telling the model, and returns its result. It uses
// the same policy, sandbox and records as the model's calls. A failed tool has a
// result too; the error means that there is no result.
func (s *Session) Call(ctx context.Context, name tools.Name, input json.RawMessage) (loop.ToolResult, error) {
	return s.session.Call(ctx, name, input)
}

// Close stops running work, removes the sandbox and reports how the session ended.
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

type sessionError struct {
	record.Problem
	cause error
}

func (e *sessionError) Error() string {
	if e.Hint == "" {
		return e.Cause
	}
	return e.Cause + ". " + e.Hint
}

func (e *sessionError) Unwrap() error { return e.cause }
