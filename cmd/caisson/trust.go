package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/project"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
)

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
	var f struct {
		DryRun bool `flag:"dry-run" doc:"show the effect, and store nothing"`
		List   bool `flag:"list" doc:"list the trusted workspaces"`
		JSON   bool `flag:"json" doc:"write JSON"`
	}
	return newCommand(&cobra.Command{
		Use: "trust [flags] [PATH]", Short: "Let a workspace's own settings count", Args: wantArgs(0, 1, "one directory"),
		Long: `Use a workspace's own settings (.caisson/config.yaml) and MCP servers (.mcp.json) from now on. Trust holds
for these files as they are now: it ends when one of them changes, appears or disappears. Settings
can only be stricter than yours. A file that would loosen a setting, or with which no session would
start, is an error and can't be trusted.

A server of .mcp.json with a command runs in the sandbox, without network and never on this machine.
It gets no variable of your environment except those that mcp_env in your configuration names. Its
tools prompt until policy.tools names them. Its command is shown here.

Instruction files (AGENTS.md in the root, or CLAUDE.md if there is no AGENTS.md; AGENTS.md in
directories below) count as your own instructions to the model, as they are now. A new or changed one
is only data for the model. The same holds for the SKILL.md of skills (.agents/skills,
.claude/skills).

The command shows the effect of the files, and the text of the instructions. With --dry-run it does
nothing else. PATH is a directory, by default the working directory.
`,
		Example: "  caisson trust --dry-run ./project\n  caisson trust ./project\n  caisson trust --list",
		RunE: func(_ *cobra.Command, args []string) error {
			if f.List && (len(args) > 0 || f.DryRun) {
				return newUsageError("--list can't be used with a directory or --dry-run")
			}
			if err := needState(a.environ); err != nil {
				return err
			}
			if f.List {
				return listTrusted(a, f.JSON)
			}
			return trustWorkspace(a, firstArgument(args), f.DryRun, f.JSON)
		},
	}, &f, usesConfig|usesInput, nil)
}

func newUntrustCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write JSON"`
	}
	return newCommand(&cobra.Command{
		Use: "untrust [flags] [PATH]", Short: "Stop using a workspace's own settings", Args: wantArgs(0, 1, "one directory"),
		Long: `Stop trusting a workspace. PATH is a directory, by default the working directory; it need not exist
any more. It is no error if the workspace was not trusted.
`,
		Example: "  caisson untrust\n  caisson untrust /home/me/old",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := needState(a.environ); err != nil {
				return err
			}
			return untrustWorkspace(a, firstArgument(args), f.JSON)
		},
	}, &f, usesConfig|usesInput, nil)
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
		if answer.Servers, err = s.conf.DescribeServers(*own.servers); err != nil {
			return err
		}
	}
	answer.Instructions, answer.Notes, err = project.FindInstructions(context.Background(), w.Dir, w.Path)
	if err != nil {
		return projectError(w, err)
	}
	instructions := project.TrustedFiles(answer.Instructions)
	answer.Files = record.NonNil(answer.Files)
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
	return a.show(asJSON, answer, func(p *page) { describeTrust(p, answer, dryRun) })
}

// storeTrust trusts files of a workspace. It warns if the stored trust was corrupt and
// was moved aside.
func storeTrust(a *app, store *approval.Trust, workspace string, files, instructions []approval.TrustedFile) error {
	_, err := store.List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	if err := store.Add(workspace, files, instructions...); err != nil {
		return stateProblem(err)
	}
	return nil
}

func describeTrust(p *page, a trustedAnswer, dryRun bool) {
	switch {
	case len(a.Files) == 0 && a.Trusted:
		p.line("%s is trusted. It has no settings of its own; if some appear, trust ends.", a.Workspace)
	case len(a.Files) == 0:
		p.line("%s has no settings of its own, and is not trusted.", a.Workspace)
	case a.Trusted:
		p.line("%s is trusted: its own settings count, as they are now.", a.Workspace)
	default:
		p.line("%s is not trusted. Its own settings would do this:", a.Workspace)
	}
	for _, f := range a.Files {
		p.line("  %s  sha256 %s", f.Path, f.SHA256)
	}
	for _, s := range a.Settings {
		if s.Counts {
			p.line("    %s: %s", s.Key, s.Value)
		} else {
			p.line("    %s: %s (changes nothing: yours is %s)", s.Key, s.Value, s.Effective)
		}
	}
	for _, server := range a.Servers {
		for _, line := range server.Lines() {
			p.line("    %s", line)
		}
	}
	for _, line := range project.DescribeInstructions(a.Instructions, a.Notes) {
		p.line("%s", line)
	}
	if dryRun && !a.Trusted {
		p.line("Nothing was stored. Run it without --dry-run to store it.")
	}
}

func untrustWorkspace(a *app, folder string, asJSON bool) error {
	path, err := namedWorkspace(a.environ, folder)
	if err != nil {
		return err
	}
	store := a.environ.trustStore()
	_, err = store.List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	was, err := store.As(newAuthor(a, "caisson untrust")).Remove(path)
	if err != nil {
		return stateProblem(err)
	}
	return a.show(asJSON, map[string]any{"workspace": path, "was_trusted": was}, func(p *page) {
		if was {
			p.line("%s is no longer trusted.", path)
		} else {
			p.line("%s was not trusted.", path)
		}
	})
}

func listTrusted(a *app, asJSON bool) error {
	list, err := a.environ.trustStore().List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	return a.show(asJSON, record.NonNil(list), func(p *page) {
		if len(list) == 0 {
			p.line("No workspace is trusted.")
		}
		for _, w := range list {
			p.line("%s  since %s", w.Workspace, w.Created.Format("2006-01-02"))
			for _, f := range slices.Concat(w.Files, w.Instructions) {
				p.line("  %s  sha256 %s", f.Path, f.SHA256)
			}
		}
	})
}
