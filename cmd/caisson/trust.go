package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/project"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

const trustLong = `Let a workspace's own settings (.caisson/config.yaml) and its MCP servers (.mcp.json) count, as they
are now: the workspace is bound to the hashes of the files, and is untrusted again when one changes,
comes or goes. Settings can only tighten. A file that would loosen anything, or with which no session
would start, is an error and can't be trusted.

A server of .mcp.json with a command runs in the sandbox, without network and never on this machine.
It gets no variable of your environment but those that mcp_env of your configuration names. Its tools
prompt until policy.tools names them. Its command is shown here.

Instruction files (AGENTS.md in the root, or CLAUDE.md there without one; AGENTS.md in directories
below) count as your own instructions to the model, each as it is now. One that comes or changes is
data for the model, and nothing more. The same holds for the SKILL.md of skills (.agents/skills,
.claude/skills).

The effect of the file is shown, and the text of the instructions; with --dry-run nothing else
happens. PATH is a directory, by default the working directory.
`

// trustedAnswer is the output of caisson trust --json.
type trustedAnswer struct {
	Workspace    string                  `json:"workspace"`
	Trusted      bool                    `json:"trusted"`
	Files        []approval.TrustedFile  `json:"files"`
	Settings     []config.ProjectSetting `json:"settings"`
	Servers      []config.ProjectServer  `json:"servers,omitempty"`
	Instructions []project.Instruction   `json:"instructions"`
	Notes        []string                `json:"notes,omitempty"`
}

func newTrustCommand(a *app) *cobra.Command {
	var asJSON, dryRun, list bool
	cmd := &cobra.Command{
		Use:     "trust [flags] [PATH]",
		Short:   "Let a workspace's own settings count",
		Long:    trustLong + exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson trust --dry-run ./project\n  caisson trust ./project\n  caisson trust --list",
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return newUsageError("trust takes one directory, got %d arguments", len(args))
			case list && (len(args) > 0 || dryRun):
				return newUsageError("--list goes with no directory and no --dry-run")
			}
			if err := needState(a.environ); err != nil {
				return err
			}
			if list {
				return listTrusted(a, asJSON)
			}
			return trustWorkspace(a, firstArgument(args), dryRun, asJSON)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would count, and store nothing")
	cmd.Flags().BoolVar(&list, "list", false, "list the trusted workspaces")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func newUntrustCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "untrust [flags] [PATH]",
		Short: "Let a workspace's own settings count no more",
		Long: "Forget that a workspace is trusted. PATH is a directory, by default the working directory; it need\n" +
			"not exist any more. A workspace that was not trusted is no error.\n" +
			exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson untrust\n  caisson untrust /home/me/old",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return newUsageError("untrust takes one directory, got %d arguments", len(args))
			}
			if err := needState(a.environ); err != nil {
				return err
			}
			return untrustWorkspace(a, firstArgument(args), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return cmd
}

func trustWorkspace(a *app, folder string, dryRun, asJSON bool) error {
	w, err := workspaceFor(a.environ, folder)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	own, err := readOwn(w)
	if err != nil {
		return err
	}
	s := &settings{deps: a.deps, environ: a.environ, project: own.config, projectServers: own.servers, workspaceDir: resolvePath(w.Path)}
	if err := s.load(config.File{}); err != nil {
		return err
	}
	if err := s.checkStartable(w); err != nil {
		return err
	}
	answer := trustedAnswer{Workspace: w.Path, Trusted: !dryRun, Files: own.files, Settings: s.conf.ProjectSettings()}
	if own.servers != nil {
		if answer.Servers, err = s.conf.Servers().DescribeProject(*own.servers); err != nil {
			return err
		}
	}
	answer.Instructions, answer.Notes, err = project.FindInstructions(context.Background(), w.Dir, w.Path)
	if err != nil {
		return projectError(w, err)
	}
	instructions := project.TrustedFiles(answer.Instructions)
	if answer.Files == nil {
		answer.Files = []approval.TrustedFile{}
	}
	store := a.environ.trustStore()
	if dryRun {
		entry, known, err := store.Find(w.Path)
		answer.Trusted = known && entry.Covers(own.files) && slices.Equal(entry.Instructions, instructions)
		if err := warnCorrupt(a, err); err != nil {
			return err
		}
	} else if err := storeTrust(a, store.As(newAuthor(a, "caisson trust")), w.Path, own.files, instructions); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, answer)
	}
	return showTrust(a.stdout, answer, dryRun)
}

// storeTrust stores, and tells of a file that could not be read before.
func storeTrust(a *app, store *approval.Trust, workspace string, files, instructions []approval.TrustedFile) error {
	if _, err := store.List(); err != nil {
		if err := warnCorrupt(a, err); err != nil {
			return err
		}
	}
	if err := store.Add(workspace, files, instructions...); err != nil {
		return stateProblem(err)
	}
	return nil
}

func showTrust(out io.Writer, a trustedAnswer, dryRun bool) error {
	var errs []error
	say := func(format string, args ...any) {
		text, _ := tools.Display(fmt.Sprintf(format, args...))
		_, err := fmt.Fprintln(out, text)
		errs = append(errs, err)
	}
	switch {
	case len(a.Files) == 0 && a.Trusted:
		say("%s is trusted. It has no settings of its own; if some come, trust ends.", a.Workspace)
	case len(a.Files) == 0:
		say("%s has no settings of its own, and is not trusted.", a.Workspace)
	case a.Trusted:
		say("%s is trusted: its own settings count, as they are now.", a.Workspace)
	default:
		say("%s is not trusted. Its own settings would do this:", a.Workspace)
	}
	for _, f := range a.Files {
		say("  %s  sha256 %s", f.Path, f.SHA256)
	}
	for _, s := range a.Settings {
		if s.Counts {
			say("    %s: %s", s.Key, s.Value)
		} else {
			say("    %s: %s (changes nothing: yours is %s)", s.Key, s.Value, s.Effective)
		}
	}
	for _, server := range a.Servers {
		for _, line := range server.Lines() {
			say("    %s", line)
		}
	}
	for _, line := range project.DescribeInstructions(a.Instructions, a.Notes) {
		say("%s", line)
	}
	if dryRun && !a.Trusted {
		say("Nothing was stored. Without --dry-run it is.")
	}
	return errors.Join(errs...)
}

func untrustWorkspace(a *app, folder string, asJSON bool) error {
	path, err := namedWorkspace(a.environ, folder)
	if err != nil {
		return err
	}
	store := a.environ.trustStore()
	if _, err := store.List(); err != nil {
		if err := warnCorrupt(a, err); err != nil {
			return err
		}
	}
	was, err := store.As(newAuthor(a, "caisson untrust")).Remove(path)
	if err != nil {
		return stateProblem(err)
	}
	if asJSON {
		return writeJSON(a.stdout, map[string]any{"workspace": path, "was_trusted": was})
	}
	shown, _ := tools.Display(path)
	text := shown + " is not trusted any more."
	if !was {
		text = shown + " was not trusted."
	}
	_, err = fmt.Fprintln(a.stdout, text)
	return err
}

func listTrusted(a *app, asJSON bool) error {
	list, err := a.environ.trustStore().List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	if asJSON {
		if list == nil {
			list = []approval.TrustedWorkspace{}
		}
		return writeJSON(a.stdout, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.stdout, "No workspace is trusted.")
		return err
	}
	var errs []error
	for _, w := range list {
		shown, _ := tools.Display(w.Workspace)
		_, err := fmt.Fprintf(a.stdout, "%s  since %s\n", shown, w.Created.Format("2006-01-02"))
		errs = append(errs, err)
		for _, f := range slices.Concat(w.Files, w.Instructions) {
			_, err := fmt.Fprintf(a.stdout, "  %s  sha256 %s\n", f.Path, f.SHA256)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
