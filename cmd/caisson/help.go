package main

import (
	"cmp"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
)

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
	{"Sandbox", []string{"env"}},
	{"Files and user", []string{"submount"}},
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
