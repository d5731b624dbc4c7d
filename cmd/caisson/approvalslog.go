package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

// author is on whose behalf a command changes what is decided for good.
func author(d deps, env environ, by string) tools.Author {
	return tools.Author{By: by, Redact: runner.JSONRedactor(knownSecrets(d, env))}
}

const approvalsLogLong = `Show each change of lasting approvals and of trusted workspaces, the oldest first: when, who, by which
command or session, what came (+) and went (-). A change is in the log before it is made; one that was
then not made, and one behind which the file was changed by something else, are said to be.

The log is $XDG_STATE_HOME/caisson/changes.jsonl. Each line has the hash of the one before: a line that
was changed or taken out is found here. What is missing at the end shows as a file that is not as the
last line left it; a log that somebody made anew does not show.
`

func newApprovalsLogCommand(d deps, env environ) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "log [flags]",
		Short:   "Show who changed approvals and trusted workspaces, and verify that log",
		Long:    approvalsLogLong + ownExitHelp(map[int]string{runner.ExitFailed: "the log was changed"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitConfig),
		Example: "  caisson approvals log\n  caisson approvals log --json | jq '.[] | select(.result!=\"made\")'",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needState(env); err != nil {
				return err
			}
			return showChanges(d, env, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

func showChanges(d deps, env environ, asJSON bool) error {
	changes, err := tools.ReadChanges(env.stateDir())
	damage := errors.Is(err, tools.ErrChangeLog)
	if err != nil && !damage {
		return stateProblem(err)
	}
	var shown error
	switch {
	case asJSON:
		shown = writeJSON(d.stdout, append([]tools.LoggedChange{}, changes...))
	case len(changes) > 0:
		shown = printChanges(d, changes)
	case !damage:
		_, shown = fmt.Fprintln(d.stdout, "Nothing was approved, refused or trusted for good yet.")
	}
	if !damage {
		return shown
	}
	return errors.Join(shown, &runner.Error{Status: runner.ExitFailed, Err: err, Problem: runner.Problem{
		Cause: err.Error(),
		Mend:  "What was shown is what stands before that. No approval is changed until the log is moved aside.",
	}})
}

func printChanges(d deps, changes []tools.LoggedChange) error {
	var errs []error
	say := func(format string, args ...any) {
		text, _ := tools.Display(fmt.Sprintf(format, args...))
		_, err := fmt.Fprintln(d.stdout, strings.TrimRight(text, " "))
		errs = append(errs, err)
	}
	for _, c := range changes {
		note := map[tools.ChangeResult]string{
			tools.ChangeNotMade: "  NOT MADE", tools.ChangeUnknown: "  then " + c.File + " was changed by something else",
		}[c.Result]
		say("%s  %s  %s%s", begunText(c.Time, time.DateTime), whoText(c.Change), c.By, note)
		for _, e := range c.Removed {
			say("  - %s", entryText(c.File, e))
		}
		for _, e := range c.Added {
			say("  + %s", entryText(c.File, e))
		}
	}
	return errors.Join(errs...)
}

func whoText(c tools.Change) string {
	if c.User == "" {
		return fmt.Sprintf("uid %d", c.UID)
	}
	return fmt.Sprintf("%s (%d)", c.User, c.UID)
}

// entryText is one entry of a file of answers, in words; as it stands there where
// it can't be read.
func entryText(file string, entry json.RawMessage) string {
	switch file {
	case approvalsFile:
		var g tools.Grant
		if json.Unmarshal(entry, &g) == nil {
			return strings.TrimRight(fmt.Sprintf("%-5s %s  %s", g.Decision, g.Tool, g.Phrase), " ") + "  in " + g.Workspace
		}
	case trustFile:
		var w tools.TrustedWorkspace
		if json.Unmarshal(entry, &w) == nil {
			text := []string{"trust " + w.Workspace}
			for _, f := range w.Files {
				text = append(text, f.Path+" sha256 "+f.SHA256)
			}
			return strings.Join(text, "  ")
		}
	}
	return string(entry)
}

// changeFindings are about the log: one that was changed, and files that something
// changed past it.
func changeFindings(env environ) []finding {
	changes, err := tools.ReadChanges(env.stateDir())
	if err != nil {
		return []finding{{
			Check: checkApprovals, Result: resultWarning, Detail: err.Error(),
			Mend: "Look at the log; no approval is changed until it can be read, or is moved aside.",
		}}
	}
	var findings []finding
	seen := map[string]bool{}
	for _, c := range slices.Backward(changes) {
		if !seen[c.File] && c.Result == tools.ChangeUnknown {
			findings = append(findings, finding{
				Check: checkApprovals, Result: resultWarning, Detail: c.File + " was changed by something that does not log",
				Mend: "Look at what caisson approvals list, caisson trust --list and caisson approvals log show; the next change by a command settles it.",
			})
		}
		seen[c.File] = true
	}
	return findings
}
