package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// anything is the value of --tool and --workspace that matches everything.
const anything = "*"

// defaultPhraseTool is the tool of caisson approvals trust without --tool.
const defaultPhraseTool = "shell"

type approvalFlags struct {
	Tool      string `flag:"tool" doc:"a tool: its name, or the form that models write (server__tool)"`
	Workspace string `flag:"workspace" doc:"directory of the workspace (default: the working directory; for ls and --all, every workspace)"`
	JSON      bool   `flag:"json" doc:"write JSON"`
}

func newApprovalsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "approvals", Short: "List, add and revoke lasting approvals, and show their log",
		Long: `Caisson keeps lasting answers in $XDG_STATE_HOME/caisson/approvals.json, by tool, workspace and, for
commands, the whole command. They answer prompts of the policy, and never override a denial of the policy.
A change takes effect at once, also in running sessions.`,
	}, newApprovalsListCommand(a), newApprovalsRevokeCommand(a), newApprovalsTrustCommand(a), newApprovalsLogCommand(a))
}

func newApprovalsListCommand(a *app) *cobra.Command {
	var f approvalFlags
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Aliases: []string{"list"}, Short: "List lasting approvals and refusals", Args: noArgs,
		Long:    "List the stored answers of every workspace, or of one tool or workspace. It is no error if there are none.\n",
		Example: "  caisson approvals ls\n  caisson approvals ls --tool shell --workspace .",
		RunE: func(*cobra.Command, []string) error {
			match, err := f.grantFilter(a.environ, "")
			if err != nil {
				return err
			}
			return listApprovals(a, match, f.JSON)
		},
	}, &f, usesConfig|usesInput, nil)
}

func newApprovalsRevokeCommand(a *app) *cobra.Command {
	var f struct {
		approvalFlags
		All bool `flag:"all" doc:"every stored answer of the tool or the workspace"`
	}
	return newCommand(&cobra.Command{
		Use: "revoke [flags] [PHRASE]", Short: "Revoke lasting approvals and refusals", Args: wantArgs(0, 1, "one phrase, in quotes"),
		Long: `Revoke the stored answers for one command (PHRASE, as ls shows it), for a tool (--tool), or with --all
for every command of a tool or a workspace. --all needs --tool or --workspace; "*" means all of them.

Without --workspace, a PHRASE or a tool is revoked in the working directory, and --all --tool in every
workspace. A tool with answers about commands needs a PHRASE or --all.
`,
		Example: `  caisson approvals revoke "git status"
  caisson approvals revoke --tool write_file
  caisson approvals revoke --tool notion/create-pages --all
  caisson approvals revoke --workspace ./old --all`,
		RunE: func(_ *cobra.Command, args []string) error { return revokeApprovals(a, f.approvalFlags, f.All, args) },
	}, &f, usesConfig|usesInput, statuses{exitFailed: "nothing matched"})
}

func newApprovalsTrustCommand(a *app) *cobra.Command {
	var f approvalFlags
	return newCommand(&cobra.Command{
		Use: "trust [flags] PHRASE", Short: "Approve one complete command for good", Args: wantArgs(1, 1, "one phrase, in quotes"),
		Long: `Approve a command for good, in one workspace. PHRASE is one complete command. The approval covers
that command alone: not with other arguments, and not as a part of another command.

These can't be approved for good: text that the shell expands, joins or redirects; commands that set
variables or can run other programs (env, find, make, -c, -exec, --pre, …); and commands that the policy
calls dangerous. It is no error if the phrase is approved already.
`,
		Example: `  caisson approvals trust "git status"
  caisson approvals trust --workspace ./project "go test ./..."`,
		RunE: func(_ *cobra.Command, args []string) error { return trustPhrase(a, f, args[0]) },
	}, &f, usesConfig|usesInput, nil)
}

// toolName returns the canonical name of --tool, or "" for any tool.
func (f approvalFlags) toolName() (tools.Name, error) {
	if f.Tool == "" || f.Tool == anything {
		return "", nil
	}
	name, err := tools.OperatorName(f.Tool)
	if err != nil {
		return "", newUsageError("--tool: %v", err)
	}
	return name, nil
}

// grantFilter matches --tool and --workspace. Without --workspace it takes directory,
// "" for any.
func (f approvalFlags) grantFilter(env environ, directory string) (func(approval.Grant) bool, error) {
	name, err := f.toolName()
	if err != nil {
		return nil, err
	}
	if err := needState(env); err != nil {
		return nil, err
	}
	workspace := ""
	if f.Workspace != "" {
		directory = f.Workspace
	}
	if directory != "" && directory != anything {
		if workspace, err = namedWorkspace(env, directory); err != nil {
			return nil, err
		}
	}
	return func(g approval.Grant) bool {
		return (name == "" || g.Tool.Same(name)) && (workspace == "" || g.Workspace == workspace)
	}, nil
}

func listApprovals(a *app, match func(approval.Grant) bool, asJSON bool) error {
	list, err := a.environ.grantStore().List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(g approval.Grant) bool { return !match(g) })
	slices.SortStableFunc(list, func(a, b approval.Grant) int {
		return cmp.Or(strings.Compare(a.Workspace, b.Workspace), strings.Compare(string(a.Tool), string(b.Tool)), strings.Compare(a.Phrase, b.Phrase))
	})
	return a.show(asJSON, record.NonNil(list), func(p *page) {
		if len(list) == 0 {
			p.line("Nothing is approved or refused for good.")
		}
		describeGrants(p, list)
	})
}

// describeGrants lists answers by workspace. They must be sorted by it.
func describeGrants(p *page, list []approval.Grant) {
	workspace := ""
	for _, g := range list {
		if g.Workspace != workspace {
			workspace = g.Workspace
			p.line("%s", workspace)
		}
		bound := g.Phrase
		if g.Definition != "" {
			bound += " (definition " + g.Definition[:min(len(g.Definition), 12)] + ")"
		}
		p.line("  %-5s %s  %s  %s", g.Decision, g.Created.Format("2006-01-02"), g.Tool, strings.TrimSpace(bound))
	}
}

func revokeApprovals(a *app, f approvalFlags, all bool, args []string) error {
	directory := "."
	switch {
	case all && len(args) > 0:
		return newUsageError("a phrase or --all, not both")
	case all && f.Tool == "" && f.Workspace == "":
		return newUsageError(`--all needs --tool or --workspace; --all --workspace "*" revokes everything`)
	case all:
		directory = ""
	case len(args) == 0 && (f.Tool == "" || f.Tool == anything):
		return newUsageError("name a phrase, a tool (--tool), or --all with --tool or --workspace")
	}
	match, err := f.grantFilter(a.environ, directory)
	if err != nil {
		return err
	}
	store := a.environ.grantStore()
	list, err := store.List()
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	named := match
	if !all {
		phrase := ""
		if len(args) > 0 {
			phrase = storedForm(args[0])
		}
		match = func(g approval.Grant) bool { return named(g) && g.Phrase == phrase }
	}
	if !slices.ContainsFunc(list, match) {
		return nothingMatched(list, named, args)
	}
	removed, err := store.As(newAuthor(a, "caisson approvals revoke")).Revoke(match)
	if err != nil {
		return stateProblem(err)
	}
	return a.show(f.JSON, record.NonNil(removed), func(p *page) {
		p.line("Revoked %d:", len(removed))
		describeGrants(p, removed)
	})
}

// storedForm returns a phrase in the form that is stored. It returns a phrase that
// can't be stored unchanged: it matches nothing.
func storedForm(phrase string) string {
	if canonical, err := policy.StaticPhrase(phrase); err == nil {
		return canonical
	}
	return phrase
}

func nothingMatched(list []approval.Grant, named func(approval.Grant) bool, args []string) error {
	hint := "caisson approvals ls shows what is stored."
	others := 0
	for _, g := range list {
		if named(g) {
			others++
		}
	}
	switch {
	case others > 0 && len(args) == 0:
		hint = fmt.Sprintf("Its %d stored answers are about commands: name one, or revoke all of them with --all.", others)
	case others > 0:
		hint = fmt.Sprintf("There are %d others. A phrase must match the whole command; caisson approvals ls shows them.", others)
	}
	return newFailure(exitFailed, nil, "nothing matched, and nothing was revoked", hint)
}

// trustedPhrase is the output of caisson approvals trust --json.
type trustedPhrase struct {
	approval.Grant
	// Changed is false if the phrase was already approved.
	Changed bool `json:"changed"`
}

func trustPhrase(a *app, f approvalFlags, text string) error {
	if f.Tool == "" {
		f.Tool = defaultPhraseTool
	}
	name, err := f.toolName()
	if err != nil {
		return err
	}
	if name == "" {
		return newUsageError("trust is for one tool, not every one")
	}
	conf, err := loadConfig(a, "")
	if err != nil {
		return err
	}
	definition, err := findPhraseTool(&conf, name)
	if err != nil {
		return err
	}
	if err := needState(a.environ); err != nil {
		return err
	}
	phrase, err := trustablePhrase(&conf, text)
	if err != nil {
		return err
	}
	w, err := workspaceFor(a.environ, f.Workspace)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	answer := trustedPhrase{Grant: approval.Grant{Tool: name, Workspace: w.Path, Phrase: phrase, Definition: definition, Decision: approval.DecisionAllow}}
	store := a.environ.grantStore()
	decision, known, err := store.Find(answer.Grant)
	if err := warnCorrupt(a, err); err != nil {
		return err
	}
	if answer.Changed = !known || decision != approval.DecisionAllow; answer.Changed {
		if err := store.As(newAuthor(a, "caisson approvals trust")).Add(answer.Grant); err != nil {
			return stateProblem(err)
		}
	}
	if f.JSON {
		list, err := store.List()
		if i := slices.IndexFunc(list, answer.SameKey); err == nil && i >= 0 {
			answer.Grant = list[i]
		}
		return writeJSON(a.stdout, answer)
	}
	said := "is approved for good"
	switch {
	case !answer.Changed:
		said = "was approved already"
	case known:
		said = "was refused for good, and is approved now"
	}
	return a.say("%s: %s %s, in %s.", name, phrase, said, w.Path)
}

// trustablePhrase returns text in the form that is stored. It refuses phrases whose
// approval would have no effect: no call would match, or the policy would ask anyway.
func trustablePhrase(conf *config.Config, text string) (string, error) {
	phrase, err := policy.StaticPhrase(text)
	if err != nil {
		return "", newFailure(exitInput, err, fmt.Sprintf("%q can't be approved for good: %v", text, err), "Approve it when it is asked about, or name one complete command of plain words.")
	}
	p, err := conf.ToolPolicy("default")
	if err != nil {
		return "", err
	}
	danger, err := p.DangerousIn(phrase)
	if err != nil {
		return "", err
	}
	if danger != "" {
		return "", newFailure(exitInput, nil, fmt.Sprintf("%q can't be approved for good: the policy calls it dangerous (%s), and what is dangerous is asked about each time", text, danger),
			"Approve it when it is asked about, or name a narrower command.")
	}
	return phrase, nil
}

// findPhraseTool returns the hash of a tool's definition, "" for Caisson's own tools.
// It refuses tools that run no commands or aren't known without a session: an approval
// of a phrase would never match.
func findPhraseTool(conf *config.Config, name tools.Name) (definition string, err error) {
	defs, err := toolsOf(conf)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(defs, func(def tools.Definition) bool { return def.Name == name })
	switch {
	case i < 0 && name.Server() == "":
		return "", noTool(string(name))
	case i < 0:
		return "", newUsageError("%s is a tool of a server, and approved with its definition: answer with \"always\" when it is asked about, or set its mode in policy.tools", name)
	case defs[i].Commands == nil:
		return "", newUsageError("%s runs no commands of a shell: it has no phrase to approve; answer with \"always\" when it is asked about, or set its mode in policy.tools", name)
	}
	return defs[i].Hash, nil
}

func newAuthor(a *app, by string) approval.Author {
	return approval.Author{By: by, Redact: redact.New(knownSecrets(a)).JSON}
}

func newApprovalsLogCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "log [flags]", Short: "Show who changed approvals and trusted workspaces", Args: noArgs,
		Long: `Show each change of lasting approvals and of trusted workspaces, oldest first: the time, the user, the
command or session, and the entries that were removed (-) and added (+). Caisson logs a change before it
makes it.

The log is $XDG_STATE_HOME/caisson/changes.jsonl, a plain file of yours.
`,
		Example: "  caisson approvals log\n  caisson approvals log --json | jq '.[] | select(.file==\"trust.json\")'",
		RunE: func(*cobra.Command, []string) error {
			if err := needState(a.environ); err != nil {
				return err
			}
			changes, err := approval.ReadChanges(a.environ.stateDir())
			if err != nil {
				err = stateProblem(err) // show what could be read
			}
			return errors.Join(a.show(f.JSON, record.NonNil(changes), func(p *page) {
				if len(changes) == 0 && err == nil {
					p.line("Nothing was approved, refused or trusted for good yet.")
				}
				describeChanges(p, changes)
			}), err)
		},
	}, &f, usesConfig, nil)
}

func describeChanges(p *page, changes []approval.Change) {
	for _, c := range changes {
		p.line("%s  %s  %s", begunText(c.Time, time.DateTime), whoText(c), c.By)
		for _, e := range c.Removed {
			p.line("  - %s", entryText(c.File, e))
		}
		for _, e := range c.Added {
			p.line("  + %s", entryText(c.File, e))
		}
	}
}

func whoText(c approval.Change) string {
	if c.User == "" {
		return fmt.Sprintf("uid %d", c.UID)
	}
	return fmt.Sprintf("%s (%d)", c.User, c.UID)
}

// entryText describes an entry of a file of answers. It returns an entry that it can't
// read unchanged.
func entryText(file string, entry json.RawMessage) string {
	switch file {
	case approvalsFile:
		var g approval.Grant
		if json.Unmarshal(entry, &g) == nil {
			return strings.TrimRight(fmt.Sprintf("%-5s %s  %s", g.Decision, g.Tool, g.Phrase), " ") + "  in " + g.Workspace
		}
	case trustFile:
		var w approval.TrustedWorkspace
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
