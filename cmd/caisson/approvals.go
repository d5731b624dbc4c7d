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

// anything is the value of --tool and --workspace that matches all.
const anything = "*"

// defaultPhraseTool is whose commands caisson approvals trust is about.
const defaultPhraseTool = "shell"

// approvalFlags are the flags of the commands about approvals.
type approvalFlags struct {
	tool, workspace string
	all, json       bool
}

func newApprovalsCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "approvals", Short: "List, add and revoke lasting approvals, and show their log",
		Long: "Answers that hold for good are kept in $XDG_STATE_HOME/caisson/approvals.json, by tool, workspace\n" +
			"and, for commands, the whole command. They answer prompts of the policy; a denial of the policy\n" +
			"stays one. A change takes effect at once, in running sessions too.",
	}, newApprovalsListCommand(a), newApprovalsRevokeCommand(a), newApprovalsTrustCommand(a), newApprovalsLogCommand(a))
}

func newApprovalsListCommand(a *app) *cobra.Command {
	var f approvalFlags
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List lasting approvals and refusals",
		Long: "List the stored answers of every workspace, or of one tool or workspace. An empty list is no error.\n" +
			exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson approvals list\n  caisson approvals list --tool shell --workspace .",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			match, err := f.grantFilter(a.environ, "")
			if err != nil {
				return err
			}
			return listApprovals(a, match, f.json)
		},
	}
	f.addFlags(cmd, "every workspace")
	return cmd
}

func newApprovalsRevokeCommand(a *app) *cobra.Command {
	var f approvalFlags
	cmd := &cobra.Command{
		Use:   "revoke [flags] [PHRASE]",
		Short: "Revoke lasting approvals and refusals",
		Long: `Revoke one command's stored answers (PHRASE, as list shows it), a tool's (--tool), or with --all every
one of a tool or a workspace: --all needs --tool or --workspace, and "*" for every one of them.

Without --workspace a PHRASE, and a tool without --all, is revoked in the working directory,
and --all --tool in every workspace. A tool whose answers are about commands needs a PHRASE or --all.
` + exitHelp(map[int]string{exitFailed: "nothing matched"}, usesConfig|usesInput),
		Example: `  caisson approvals revoke "git status"
  caisson approvals revoke --tool write_file
  caisson approvals revoke --tool notion/create-pages --all
  caisson approvals revoke --workspace ./old --all`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return newUsageError("one phrase, in quotes; got %d arguments", len(args))
			}
			return revokeApprovals(a, f, args)
		},
	}
	f.addFlags(cmd, "the working directory")
	cmd.Flags().BoolVar(&f.all, "all", false, "every stored answer of the tool or the workspace")
	return cmd
}

func newApprovalsTrustCommand(a *app) *cobra.Command {
	var f approvalFlags
	cmd := &cobra.Command{
		Use:   "trust [flags] PHRASE",
		Short: "Approve one complete command for good",
		Long: `Approve a command for good, in one workspace. PHRASE is one complete command, and covers that
command alone: not with other arguments, not as a part of another.

These can't be approved for good: text that the shell expands, joins or redirects, commands that set
variables or can run other programs (env, find, make, -c, -exec, --pre, …), and commands that the
policy calls dangerous. A phrase that is approved already is no error.
` + exitHelp(nil, usesConfig|usesInput),
		Example: `  caisson approvals trust "git status"
  caisson approvals trust --workspace ./project "go test ./..."`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return newUsageError("one phrase, in quotes; got %d arguments", len(args))
			}
			return trustPhrase(a, f, args[0])
		},
	}
	f.addFlags(cmd, "the working directory")
	return cmd
}

func (f *approvalFlags) addFlags(cmd *cobra.Command, where string) {
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&f.tool, "tool", "", "a tool: its name, or the form that models write (server__tool)")
	cmd.Flags().StringVar(&f.workspace, "workspace", "", "directory of the workspace (default: "+where+")")
	cmd.Flags().BoolVar(&f.json, "json", false, "write JSON")
}

// toolName returns the canonical name of --tool, "" for any.
func (f approvalFlags) toolName() (tools.Name, error) {
	if f.tool == "" || f.tool == anything {
		return "", nil
	}
	name, err := tools.OperatorName(f.tool)
	if err != nil {
		return "", newUsageError("--tool: %v", err)
	}
	return name, nil
}

// grantFilter matches what --tool and --workspace say; directory is taken where
// --workspace is not given, "" is every one.
func (f approvalFlags) grantFilter(env environ, directory string) (func(approval.Grant) bool, error) {
	name, err := f.toolName()
	if err != nil {
		return nil, err
	}
	if err := needState(env); err != nil {
		return nil, err
	}
	workspace := ""
	if f.workspace != "" {
		directory = f.workspace
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
	if asJSON {
		return writeJSON(a.stdout, append([]approval.Grant{}, list...))
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.stdout, "Nothing is approved or refused for good.")
		return err
	}
	return printGrants(a, list)
}

// printGrants writes a list, a workspace after the other.
func printGrants(a *app, list []approval.Grant) error {
	var errs []error
	say := func(text string) {
		safe, _ := tools.Display(text)
		_, err := fmt.Fprintln(a.stdout, strings.TrimRight(safe, " "))
		errs = append(errs, err)
	}
	workspace := ""
	for _, g := range list {
		if g.Workspace != workspace {
			workspace = g.Workspace
			say(workspace)
		}
		bound := g.Phrase
		if g.Definition != "" {
			bound += " (definition " + g.Definition[:min(len(g.Definition), 12)] + ")"
		}
		say(fmt.Sprintf("  %-5s %s  %s  %s", g.Decision, g.Created.Format("2006-01-02"), g.Tool, strings.TrimSpace(bound)))
	}
	return errors.Join(errs...)
}

func revokeApprovals(a *app, f approvalFlags, args []string) error {
	directory := "."
	switch {
	case f.all && len(args) > 0:
		return newUsageError("a phrase or --all, not both")
	case f.all && f.tool == "" && f.workspace == "":
		return newUsageError(`--all needs --tool or --workspace; --all --workspace "*" revokes everything`)
	case f.all:
		directory = ""
	case len(args) == 0 && (f.tool == "" || f.tool == anything):
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
	if !f.all {
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
	if f.json {
		return writeJSON(a.stdout, append([]approval.Grant{}, removed...))
	}
	_, err = fmt.Fprintf(a.stdout, "Revoked %d:\n", len(removed))
	return errors.Join(err, printGrants(a, removed))
}

// storedForm is a phrase as it is stored; what can't be stored stays as it is,
// and matches nothing.
func storedForm(phrase string) string {
	if canonical, err := policy.StaticPhrase(phrase); err == nil {
		return canonical
	}
	return phrase
}

// nothingMatched returns the reason why nothing was revoked.
func nothingMatched(list []approval.Grant, named func(approval.Grant) bool, args []string) error {
	p := record.Problem{Cause: "nothing matched, and nothing was revoked", Hint: "caisson approvals list shows what is stored."}
	others := 0
	for _, g := range list {
		if named(g) {
			others++
		}
	}
	switch {
	case others > 0 && len(args) == 0:
		p.Hint = fmt.Sprintf("Its %d stored answers are about commands: name one, or take all with --all.", others)
	case others > 0:
		p.Hint = fmt.Sprintf("There are %d others; a phrase is compared whole. caisson approvals list shows them.", others)
	}
	return &commandError{Status: exitFailed, Problem: p}
}

// trustedPhrase is the output of caisson approvals trust --json.
type trustedPhrase struct {
	approval.Grant
	// Changed is false where it was approved already.
	Changed bool `json:"changed"`
}

func trustPhrase(a *app, f approvalFlags, text string) error {
	if f.tool == "" {
		f.tool = defaultPhraseTool
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
	w, err := workspaceFor(a.environ, f.workspace)
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
	if f.json {
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
	line, _ := tools.Display(fmt.Sprintf("%s: %s %s, in %s.", name, phrase, said, w.Path))
	_, err = fmt.Fprintln(a.stdout, line)
	return err
}

// trustablePhrase is a phrase as it is stored. It refuses what could never take
// effect: no call would ever be found to be it, or it would be asked about anyway.
func trustablePhrase(conf *config.Config, text string) (string, error) {
	phrase, err := policy.StaticPhrase(text)
	if err != nil {
		return "", &commandError{Status: exitInput, Err: err, Problem: record.Problem{
			Cause: fmt.Sprintf("%q can't be approved for good: %v", text, err),
			Hint:  "Approve it when it is asked about, or name one complete command of plain words.",
		}}
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
		return "", &commandError{Status: exitInput, Problem: record.Problem{
			Cause: fmt.Sprintf("%q can't be approved for good: the policy calls it dangerous (%s), and what is dangerous is asked about each time", text, danger),
			Hint:  "Approve it when it is asked about, or name a narrower command.",
		}}
	}
	return phrase, nil
}

// findPhraseTool returns the hash of the definition of a tool, "" for our own. It refuses
// tools that run no commands, and what is no tool that is known without a session: an
// approval of a phrase would never be found.
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

// newAuthor is on whose behalf a command changes what is decided for good.
func newAuthor(a *app, by string) approval.Author {
	return approval.Author{By: by, Redact: redact.New(knownSecrets(a)).JSON}
}

const approvalsLogLong = `Show each change of lasting approvals and of trusted workspaces, the oldest first: the time, the user,
the command or session, and the entries that were removed (-) and added (+). A change is logged before
it is made.

The log is $XDG_STATE_HOME/caisson/changes.jsonl, a plain file of yours.
`

func newApprovalsLogCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "log [flags]",
		Short:   "Show who changed approvals and trusted workspaces",
		Long:    approvalsLogLong + exitHelp(nil, usesConfig),
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
	changes, err := approval.ReadChanges(a.environ.stateDir())
	if err != nil {
		err = stateProblem(err)
	}
	var shown error
	switch {
	case asJSON:
		shown = writeJSON(a.stdout, append([]approval.Change{}, changes...))
	case len(changes) > 0:
		shown = printChanges(a, changes)
	case err == nil:
		_, shown = fmt.Fprintln(a.stdout, "Nothing was approved, refused or trusted for good yet.")
	}
	return errors.Join(shown, err)
}

func printChanges(a *app, changes []approval.Change) error {
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

func whoText(c approval.Change) string {
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
