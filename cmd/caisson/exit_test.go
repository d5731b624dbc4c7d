package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/sandbox"
)

// TestSessionHints: hints of faults name flags and commands of this program. An error's
// own hint is kept.
func TestSessionHints(t *testing.T) {
	own := &commandError{Problem: record.Problem{Cause: "no engine", Hint: "Start one."}}
	for want, f := range map[string]runner.Fault{
		"Start one.":               {Kind: runner.FaultSandboxStart, Err: fmt.Errorf("start: %w", own)},
		"process. For namespaces":  {Kind: runner.FaultSandboxStart, Err: fmt.Errorf("runc run: %w: %w", sandbox.ErrNoNamespaces, syscall.EPERM)},
		"--service none":           {Kind: runner.FaultSandboxStart, Err: &sandbox.ServiceError{Program: "serve", Err: sandbox.ErrUnavailable}},
		"caisson doctor shows":     {Kind: runner.FaultSandboxStart, Err: sandbox.ErrUnavailable},
		"workdir, --workdir":       {Kind: runner.FaultSandboxStart, Err: fmt.Errorf("create: %w", &sandbox.MountError{Err: sandbox.ErrInvalid})},
		"user, --user":             {Kind: runner.FaultSandboxStart, Err: sandbox.ImageError(&images.UserError{User: "ghost"})},
		"(caisson doctor), and":    {Kind: runner.FaultSandboxLost},
		"caisson diff shows the":   {Kind: runner.FaultCancelled, Overlay: true},
		"are in the workspace.":    {Kind: runner.FaultCancelled},
		"trust. --on-prompt deny":  {Kind: runner.FaultNoApprover, Stopped: true},
		"without --json. Or allow": {Kind: runner.FaultNoApprover},
		"--confirm-timeout":        {Kind: runner.FaultLateAnswer},
		"Ctrl-D":                   {Kind: runner.FaultNoAnswer},
		"--skip-conflicts ses_1":   {Kind: runner.FaultConflicts, Session: "ses_1"},
		"caisson apply ses_1":      {Kind: runner.FaultNotApplied, Session: "ses_1"},
		"The next caisson run":     {Kind: runner.FaultLeft},
		"not run again":            {Kind: runner.FaultCommandLost},
		"caisson sandbox ls":       {Kind: runner.FaultNotLive},
		"under err_1.":             {Kind: runner.FaultModel, LogFile: "/s/log", ErrorID: "err_1"},
	} {
		if got := sessionHint(f); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", f.Kind, got, want)
		}
	}
}

func TestStatusesOfRunnerErrors(t *testing.T) {
	for want, errs := range map[int][]error{
		exitFailed:       {&runner.UserCommandError{Kind: runner.FaultOther}, &runner.UserCommandError{Kind: "busy"}, &runner.UserCommandError{Kind: runner.FaultDisk}},
		exitInput:        {&runner.UserCommandError{Kind: runner.FaultNotLive}, &runner.UserCommandError{Kind: runner.FaultCommand}, &runner.UserCommandError{Kind: runner.FaultNotHeld}, fmt.Errorf("create: %w", &sandbox.MountError{Err: sandbox.ErrInvalid})},
		exitSandboxStart: {&runner.UserCommandError{Kind: runner.FaultSandboxStart}},
		exitSandboxLost:  {&runner.UserCommandError{Kind: runner.FaultCommandLost}, &runner.UserCommandError{Kind: runner.FaultReplaced}, &runner.UserCommandError{Kind: runner.FaultEndUnknown}},
		exitFatal:        {&runner.UserCommandError{Kind: runner.FaultRecords}, runner.Fault{Kind: runner.FaultRecords, Dir: "/s", Err: syscall.ENOSPC}},
		exitConfig:       {runner.Fault{Kind: runner.FaultInvalidLimits, Err: errors.New("limits")}},
	} {
		for _, err := range errs {
			if got := describeError(err); got.Status != want || got.Hint == "" {
				t.Errorf("%#v: %d, %q, want %d", err, got.Status, got.Hint, want)
			}
		}
	}
	if got := describeError(&runner.UserCommandError{Kind: "busy", Hint: "Wait."}); got.Hint != "Wait." {
		t.Errorf("the session's hint became %q", got.Hint)
	}
}

func TestJoinedErrorsAreOneParagraph(t *testing.T) {
	var out strings.Builder
	a := &app{stderr: &out, deps: deps{}, terminal: func(any) bool { return false }}
	reportError(a, describeError(errors.Join(errors.New("first"), errors.New("second"))).Problem)
	a.warn(errors.Join(errors.New("third"), errors.New("fourth")).Error())
	if want := "caisson: first; second.\ncaisson: third; fourth\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestPrepareErrors: errors for a server's client name no flag, command, or file or
// variable of the host. Errors that the server words are unchanged.
func TestPrepareErrors(t *testing.T) {
	commandLine := regexp.MustCompile(`(^|[\s("'])--[a-z]|\bcaisson [a-z]+|/host|OUR_KEY`)
	for want, err := range map[string]error{
		"untrusted":               &untrustedError{"/w", "the workspace is not trusted"},
		"workspace_configuration": &ownError{&config.Error{Where: "policy", Message: "it is wrong"}},
		"configuration":           &config.Error{Where: "/host/config.yaml:3:1", Message: "it is wrong", Hint: "see caisson run --help"},
		"sandbox":                 fmt.Errorf("choose /host/engine: %w", sandbox.ErrUnavailable),
		"model":                   &commandError{Status: exitAuth, Problem: record.Problem{Cause: "OUR_KEY is not set", Hint: "Use --model."}},
		"input":                   &commandError{Status: exitInput, Problem: record.Problem{Cause: "no recording /host/a.jsonl", Hint: "Use --model."}},
	} {
		got, ok := errors.AsType[*server.PrepareError](prepareError(err))
		if !ok || got.Code != want || commandLine.MatchString(got.Cause+" "+got.Hint) {
			t.Errorf("%v: %+v, want %s", err, got, want)
		}
	}
	for _, err := range []error{&runner.WorkspaceError{Op: "open", Path: "/w"}, &state.DirError{Path: "/s"}, errors.New("any")} {
		if got := prepareError(err); !errors.Is(got, err) || errors.As(got, new(*server.PrepareError)) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// TestClientFacts: facts for a server's client name no flag or command. The control is
// the command line.
func TestClientFacts(t *testing.T) {
	for _, forClients := range []bool{false, true} {
		image := "debian:stable"
		c, err := config.Load(config.Options{Flags: config.File{Image: &image}, NameKeys: forClients, Requirements: t.TempDir() + "/none"})
		must(t, err)
		b := &sessionBuilder{backends: &backends{settings: &settings{conf: c, forClients: forClients}}}
		if got := b.describeAbsent(make([]host.Absent, 2)); len(got) != 1 || strings.Contains(got[0], "caisson doctor") == forClients {
			t.Errorf("for clients %v: %q", forClients, got)
		}
	}
}

// TestToolchainLine: the suggested line is valid configuration and keeps existing
// entries.
func TestToolchainLine(t *testing.T) {
	s := &settings{environ: environ{"HOME=/home/me"}}
	s.conf.HostImage.Toolchains = []string{"/opt/a b"}
	line := s.toolchainLine([]string{"/home/me/.cargo/bin", "/opt/x: [y]", "/home/meow", "/opt/\"q\"<\t"})
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(line+"\n"), 0o600))
	c, err := config.Load(config.Options{Environ: s.environ, Path: file, Needed: true})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	got, err := c.Toolchains()
	if want := []string{"/opt/a b", "/home/me/.cargo/bin", "/opt/x: [y]", "/home/meow", "/opt/\"q\"<\t"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: %q, %v, want %q", line, got, err, want)
	}
	if !strings.Contains(line, "[\"/opt/a b\", ~/.cargo/bin,") {
		t.Errorf("%s is not as people write it", line)
	}
}
