package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
)

// author is on whose behalf a command changes what is decided for good.
func author(a *app, by string) tools.Author {
	return tools.Author{By: by, Redact: redact.New(knownSecrets(a)).JSON}
}

const approvalsLogLong = `Show each change of lasting approvals and of trusted workspaces, the oldest first: when, who, by which
command or session, and what was removed (-) and added (+). A change is logged before it is made.

The log is $XDG_STATE_HOME/caisson/changes.jsonl, a file of yours that nothing protects from you.
`

func newApprovalsLogCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "log [flags]",
		Short:   "Show who changed approvals and trusted workspaces",
		Long:    approvalsLogLong + exitHelp(nil, runner.ExitConfig),
		Example: "  caisson approvals log\n  caisson approvals log --json | jq '.[] | select(.file==\"trust.json\")'",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needState(a.environ); err != nil {
				return err
			}
			return showChanges(a, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

func showChanges(a *app, asJSON bool) error {
	changes, err := tools.ReadChanges(a.environ.stateDir())
	if err != nil {
		err = stateProblem(err)
	}
	var shown error
	switch {
	case asJSON:
		shown = writeJSON(a.stdout, append([]tools.Change{}, changes...))
	case len(changes) > 0:
		shown = printChanges(a, changes)
	case err == nil:
		_, shown = fmt.Fprintln(a.stdout, "Nothing was approved, refused or trusted for good yet.")
	}
	return errors.Join(shown, err)
}

func printChanges(a *app, changes []tools.Change) error {
	var errs []error
	printLine := func(format string, args ...any) {
		text, _ := tools.Display(fmt.Sprintf(format, args...))
		_, err := fmt.Fprintln(a.stdout, strings.TrimRight(text, " "))
		errs = append(errs, err)
	}
	for _, c := range changes {
		printLine("%s  %s  %s", begunText(c.Time, time.DateTime), whoText(c), c.By)
		for _, e := range c.Removed {
			printLine("  - %s", entryText(c.File, e))
		}
		for _, e := range c.Added {
			printLine("  + %s", entryText(c.File, e))
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
