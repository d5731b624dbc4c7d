package main

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/mcpclients"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

// settingFlag is a setting of the configuration as a flag.
type settingFlag struct {
	setting config.Setting
	file    *config.File
	text    string
}

func (f *settingFlag) Set(v string) error {
	if f.setting.List && f.text != "" { // given before
		v = f.text + "," + v
	}
	f.text = v
	err := f.setting.Set(f.file, v, "--"+f.setting.Flag)
	if e, ok := errors.AsType[*config.Error](err); ok {
		return errors.New(e.Message) // pflag names the flag
	}
	return err
}

func (f *settingFlag) String() string { return f.text }

// Type returns the name of the value in help.
func (f *settingFlag) Type() string {
	if f.setting.Value == "" {
		return "bool"
	}
	return f.setting.Value
}

var _ pflag.Value = (*settingFlag)(nil)

// variableFlag is the flag for variables of commands. It works like docker run's.
type variableFlag struct{ file *config.File }

func (f variableFlag) Set(v string) error {
	name, value, ok := strings.Cut(v, "=")
	switch {
	case name == "":
		return errors.New("want NAME=VALUE, or NAME for a variable of caisson's own environment")
	case !ok:
		f.file.MoreEnvFrom = append(f.file.MoreEnvFrom, name)
		return nil
	case f.file.Env == nil:
		f.file.Env = map[string]string{}
	}
	f.file.Env[name] = value
	return nil
}

func (variableFlag) String() string { return "" }

func (variableFlag) Type() string { return "NAME=VALUE" }

// repeatedFlag is a flag of one value that may be repeated.
type repeatedFlag struct {
	settingFlag
	values []string
}

func (f *repeatedFlag) Set(v string) error {
	if !slices.Contains(f.values, v) {
		f.values = append(f.values, v)
	}
	return f.settingFlag.Set(v)
}

// addSettings adds flags that set the settings of some groups or flags, or all, in file. A
// setting has its letter unless another flag of the command has it.
func addSettings(cmd *cobra.Command, file *config.File, groups ...string) {
	for _, s := range config.Settings() {
		if groups != nil && !slices.Contains(groups, s.Group) && !slices.Contains(groups, s.Flag) {
			continue
		}
		letter := s.Letter
		if letter != "" && cmd.Flags().ShorthandLookup(letter) != nil {
			letter = ""
		}
		flag := cmd.Flags().VarPF(&settingFlag{setting: s, file: file}, s.Flag, letter, s.Usage)
		flag.DefValue = s.Default // help shows it
		if s.Value == "" {
			flag.NoOptDefVal = "true"
		}
	}
	if groups == nil || slices.Contains(groups, "Sandbox") {
		cmd.Flags().VarP(variableFlag{file}, "env", "e", "set a variable for commands; NAME alone passes on caisson's own (repeatable)")
	}
}

// newCommand completes a command with its flags and the exit statuses in help. flags is
// nil or a pointer to a struct as for addFlags.
func newCommand(cmd *cobra.Command, flags any, traits commandTraits, own statuses) *cobra.Command {
	cmd.Long = strings.TrimSuffix(cmd.Long, "\n") + "\n" + exitHelp(own, traits)
	cmd.Flags().SortFlags = false
	if flags != nil {
		addFlags(cmd, reflect.ValueOf(flags).Elem())
	}
	return cmd
}

// addFlags adds a flag for each field of a struct that has the tag flag: the name and,
// after a comma, the letter. The tag doc is the text in help, default the default. A
// list with the tag split may be one value with commas. An embedded struct adds its own
// flags. A [config.File] adds all settings, or the groups and flags in the tag groups of it
// or of the struct.
func addFlags(cmd *cobra.Command, to reflect.Value, groups ...string) {
	flags := cmd.Flags()
	for field, value := range to.Fields() {
		if !field.IsExported() && !field.Anonymous {
			continue
		}
		groups := groups
		if text, ok := field.Tag.Lookup("groups"); ok {
			groups = strings.Split(text, ",")
		}
		name, letter, _ := strings.Cut(field.Tag.Get("flag"), ",")
		doc := field.Tag.Get("doc")
		switch {
		case field.Type == reflect.TypeFor[config.File]():
			addSettings(cmd, value.Addr().Interface().(*config.File), groups...)
			continue
		case field.Anonymous:
			addFlags(cmd, value, groups...)
			continue
		case name == "":
			continue
		}
		switch p := value.Addr().Interface().(type) {
		case *string:
			flags.VarP((*textFlag)(p), name, letter, doc)
		case *bool:
			flags.BoolVarP(p, name, letter, false, doc)
		case *int:
			flags.IntVarP(p, name, letter, 0, doc)
		case *uint16:
			flags.Uint16VarP(p, name, letter, 0, doc)
		case *time.Duration:
			flags.DurationVarP(p, name, letter, 0, doc)
		case *[]string:
			if _, split := field.Tag.Lookup("split"); split {
				flags.StringSliceVarP(p, name, letter, nil, doc)
			} else {
				flags.StringArrayVarP(p, name, letter, nil, doc)
			}
		default:
			panic("no flag can have the type " + field.Type.String())
		}
		if text, ok := field.Tag.Lookup("default"); ok {
			f := flags.Lookup(name)
			if err := f.Value.Set(text); err != nil {
				panic(err)
			}
			f.DefValue = f.Value.String()
		}
	}
}

// textFlag is the value of a flag that takes a text. It refuses an empty one, the value
// of an unset variable: --verify "$TESTS" would verify nothing.
type textFlag string

func (f *textFlag) String() string { return string(*f) }
func (f *textFlag) Type() string   { return "string" }

func (f *textFlag) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; leave the flag out, or give it a value")
	}
	*f = textFlag(text)
	return nil
}

type profileFlag struct {
	Profile string `flag:"profile" doc:"use the settings of profiles.NAME in the configuration"`
}

// projectOptions select how a command treats a workspace's own settings.
type projectOptions struct {
	Require bool `flag:"require-trust" doc:"refuse a workspace that is not trusted (caisson trust)"`
	Ignore  bool `flag:"ignore-project-config" doc:"ignore the workspace's own settings, even if it is trusted"`
}

// workspaceFlags are the flags of a command that opens a session without a model.
type workspaceFlags struct {
	Workspace string `flag:"workspace" default:"." doc:"directory to work in"`
	profileFlag
	projectOptions
	Settings config.File
}

// wantArgs checks the number of arguments, which what describes. most is -1 for any
// number.
func wantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return newUsageError("%s takes %s, got %s", cmd.CommandPath(), what, formatCount(len(args), "argument", "arguments"))
		}
		return nil
	}
}

func firstArgument(args []string) string { return firstOr(args, "") }

const (
	// helpColumns is the width of flags in help without a terminal. maxHelpColumns is
	// the most that help uses of a terminal.
	helpColumns, maxHelpColumns = 80, 110
	// columnsKey is the root command's annotation with the terminal's columns.
	columnsKey = "columns"
)

// flagGroups are the groups of flags in help, in order, for commands that take
// settings. They list only flags that are not settings: the table of settings names the
// groups of the others. A flag in no group is in the first.
var flagGroups = []flagGroup{
	{"Task", []string{"workspace", "file", "resume", "apply", "best-of", "judge", "profile", "require-trust", "ignore-project-config"}},
	{"Checks", []string{"output-schema", "verify", "verify-junit", "replay-strict", "replay-ignore"}},
	{"Model", []string{"no-stream"}},
	{"Policy", nil},
	{"Sandbox", []string{"env", "submount"}},
	{"Limits", nil},
	{"Output", []string{"json", "output", "patch-out", "junit", "report", "verbose", "help"}},
}

type flagGroup struct {
	title string
	flags []string
}

func groupsByFlag() map[string]int {
	out, byTitle := map[string]int{}, map[string]int{}
	for i, g := range flagGroups {
		byTitle[g.title] = i
		for _, name := range g.flags {
			out[name] = i
		}
	}
	for _, s := range config.Settings() {
		if i, ok := byTitle[s.Group]; ok {
			out[s.Flag] = i
		}
	}
	return out
}

// setHelp makes help show flags in groups, within the terminal's width.
func setHelp(a *app, root *cobra.Command) {
	const plain = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	columns := 0
	if a.stdout != nil && a.terminal(a.stdout) {
		columns, _ = a.size()
		columns = min(columns-1, maxHelpColumns)
		root.Annotations = map[string]string{columnsKey: strconv.Itoa(columns)}
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		text := strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)) + "\n\n" + cmd.UsageString()
		if columns > 0 {
			text = fitHelp(text, columns)
		}
		_, _ = io.WriteString(cmd.OutOrStdout(), text) // help is best effort
	})
	cobra.AddTemplateFunc("groupedFlags", groupedFlags)
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), plain, "{{groupedFlags .}}", 1))
}

// fitHelp wraps a text at columns: paragraphs whose lines are not indented, and single
// indented lines, whose continuation is indented to their last wide gap. Commands stay
// whole so that users can copy them.
func fitHelp(text string, columns int) string {
	var out []string
	joins := false
	for line := range strings.SplitSeq(text, "\n") {
		plain := line != "" && !strings.HasPrefix(line, " ")
		if plain && joins {
			out[len(out)-1] += " " + line
		} else {
			out = append(out, line)
		}
		joins = plain && !strings.HasSuffix(line, ":")
	}
	var rows []string
	for _, line := range out {
		if strings.HasPrefix(line, "  caisson ") {
			rows = append(rows, line)
			continue
		}
		indent := 0
		if strings.HasPrefix(line, " ") {
			indent = len(line) - len(strings.TrimLeft(line, " ")) + 2
			if gap := strings.LastIndex(line, "  "); gap >= indent && gap < columns/2 {
				indent = gap + 2
			}
		}
		rows = append(rows, ui.WrapWords(line, columns, strings.Repeat(" ", indent))...)
	}
	return strings.Join(rows, "\n")
}

// groupedFlags returns a command's flags for help, in groups if it takes settings.
func groupedFlags(cmd *cobra.Command) string {
	local := cmd.LocalFlags()
	columns, err := strconv.Atoi(cmd.Root().Annotations[columnsKey])
	if err != nil { // no terminal
		columns = helpColumns
	}
	if local.Lookup("backend") == nil {
		return "Flags:\n" + formatFlags(local, columns)
	}
	groupOf := groupsByFlag()
	sets := make([]*pflag.FlagSet, len(flagGroups))
	for i, g := range flagGroups {
		sets[i] = pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		sets[i].SortFlags = false
	}
	local.VisitAll(func(f *pflag.Flag) { sets[groupOf[f.Name]].AddFlag(f) })
	var out []string
	for i, g := range flagGroups {
		if sets[i].HasAvailableFlags() {
			out = append(out, g.title+":\n"+formatFlags(sets[i], columns))
		}
	}
	return strings.Join(out, "\n\n")
}

func formatFlags(flags *pflag.FlagSet, columns int) string {
	return strings.TrimRight(flags.FlagUsagesWrapped(columns), " \n")
}

// completed is the number of sessions that a shell is offered, newest first.
const completed = 30

type candidates func(env environ) ([]cobra.Completion, cobra.ShellCompDirective)

// addCompletion completes the user's own things, such as sessions and images, and the
// words of settings. It runs at each press of the tab key, so it starts and asks
// nothing.
func addCompletion(root *cobra.Command, a *app) {
	addBashFallback(root)
	env, servers := a.environ, completeKeys(func(c config.Config) map[string]config.MCPServer { return c.MCP })
	arguments := map[string]candidates{
		"caisson diff": completeSessions, "caisson open": completeSessions, "caisson apply": completeSessions, "caisson sandbox exec": completeLiveSessions, "caisson sandbox attach": completeLiveSessions, "caisson sandbox rm": completeLiveSessions, "caisson sandbox cp": completeLiveSessions,
		"caisson trace show": completeSessions, "caisson trace verify": completeSessions, "caisson trace export": completeSessions, "caisson trace html": completeSessions, "caisson egress suggest": completeSessions,
		"caisson tools ls": completeTools, "caisson tools call": completeTools, "caisson trust": completeDirectories, "caisson untrust": completeDirectories, "caisson config schema": completeWords("user", "project", "requirements"),
		"caisson images rm": completeImages, "caisson images export": completeImages, "caisson images pull": completeImages, "caisson caches rm": completeCaches,
		"caisson mcp add-to": completeClients, "caisson mcp test": servers, "caisson mcp login": servers, "caisson mcp logout": servers,
	}
	flags := map[string]candidates{
		"workspace": completeDirectories, "tool": completeTools, "profile": completeKeys(func(c config.Config) map[string]config.File { return c.Profiles }), "model": completeKeys(func(c config.Config) map[string]config.Model { return c.Models }), "format": completeWords("jsonl", "json", "atif"), "report": completeWords("auto", "github", "none"),
		"image": completeImages, "resume": completeSessions, "cache": completeWords(caches.Presets()...), "mcp": servers,
	}
	lists := map[string]bool{} // the flags that take several words
	for _, s := range config.Settings() {
		if s.Words != nil {
			flags[s.Flag] = completeWords(s.Words...)
		}
		lists[s.Flag] = s.List
	}
	visitCommands(root, func(cmd *cobra.Command) {
		if c, ok := arguments[cmd.CommandPath()]; ok {
			cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveDefault
				}
				return c(env)
			}
		}
		for name, c := range flags {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			err := cmd.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
				words, directive := c(env)
				if !lists[name] {
					return words, directive
				}
				before := typed[:strings.LastIndexByte(typed, ',')+1]
				var out []cobra.Completion
				for _, word := range words {
					if !slices.Contains(strings.Split(before, ","), word) {
						out = append(out, before+word)
					}
				}
				return out, directive
			})
			if err != nil {
				panic(err) // the flag exists and has none yet
			}
		}
	})
}

// bashFallback replaces the functions that cobra's script takes from the
// bash-completion package, if that is not installed. COMP_WORDBREAKS has ":" and "=",
// so words with them are joined again.
const bashFallback = `if ! declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
    _get_comp_words_by_ref() {
        local i
        words=() cword=0
        for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
            if ((i > 1)) && [[ ${COMP_WORDS[i]} == [:=]* || ${COMP_WORDS[i-1]} == *[:=] ]]; then
                words[${#words[@]}-1]+=${COMP_WORDS[i]}
            else
                words+=("${COMP_WORDS[i]}")
            fi
            ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1))
        done
        cur=${words[cword]} prev=${words[cword-1]}
    }
fi
if ! declare -F __ltrim_colon_completions >/dev/null 2>&1; then
    __ltrim_colon_completions() {
        local head=${1%"${1##*:}"} i
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$head"}
        done
    }
fi
`

func addBashFallback(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil || bash.RunE == nil {
		return // cobra's default changed: its script then needs the package
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := io.WriteString(cmd.OutOrStdout(), bashFallback); err != nil {
			return err
		}
		return script(cmd, args)
	}
}

func visitCommands(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		visitCommands(c, f)
	}
}

func completeWords(words ...string) candidates {
	return func(environ) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeDirectories(environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

func completeSessions(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return listSessions(env, func(trace.Entry) bool { return true })
}

func completeLiveSessions(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	return listSessions(env, func(e trace.Entry) bool { return e.State == trace.StateLive })
}

func completeImages(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	if env.cacheDir() == "" {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := store.References(filepath.Join(env.cacheDir(), "images"))
	return names, cobra.ShellCompDirectiveDefault // or a path
}

// completeCaches returns the IDs of caches, with their workspaces.
func completeCaches(env environ) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	if state, err := findState(env); err == nil {
		list, _ := caches.NewStore(state).List()
		for _, e := range list {
			out = append(out, cobra.CompletionWithDesc(e.ID, makeSafe(e.Workspace)))
		}
	}
	return out, cobra.ShellCompDirectiveDefault // or a workspace
}

func completeClients(environ) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	for _, c := range mcpclients.All() {
		out = append(out, cobra.CompletionWithDesc(c.Name, c.Title))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// listSessions returns the newest sessions, with their age and task.
func listSessions(env environ, keep func(trace.Entry) bool) ([]cobra.Completion, cobra.ShellCompDirective) {
	const order = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	state, err := findState(env)
	if err != nil {
		return nil, order
	}
	list, err := trace.List(state, completed, nil)
	if err != nil {
		return nil, order
	}
	var out []cobra.Completion
	for _, e := range list {
		if keep(e) {
			out = append(out, cobra.CompletionWithDesc(e.Session, doctor.FormatAge(e.Begun, time.Now())+" ago: "+oneLine(e.Task)))
		}
	}
	return out, order
}

// oneLine returns the beginning of a text, safe to show.
func oneLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	safe := makeSafe(text)
	if r := []rune(safe); len(r) > 40 {
		safe = string(r[:40]) + "…"
	}
	return safe
}

// completeTools returns the configured tools, or Caisson's own if the configuration
// can't be read.
func completeTools(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
	var defs []tools.Definition
	conf, err := loadConfig(&app{environ: env}, "")
	if err == nil {
		defs, err = toolsOf(&conf)
	}
	if err != nil {
		if defs, err = runner.Definitions(); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
	}
	var out []cobra.Completion
	for _, d := range defs {
		out = append(out, cobra.CompletionWithDesc(string(d.Name), string(d.Class)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeKeys completes the keys of a map of the user's file. It completes nothing if
// the file can't be read.
func completeKeys[T any](of func(config.Config) map[string]T) candidates {
	return func(env environ) ([]cobra.Completion, cobra.ShellCompDirective) {
		conf, _ := loadConfig(&app{environ: env}, "")
		return slices.Sorted(maps.Keys(of(conf))), cobra.ShellCompDirectiveNoFileComp
	}
}
