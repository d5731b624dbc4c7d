package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpColumns is the width of the flags in help.
const helpColumns = 80

// flagGroups are the groups of flags of commands that take settings, in their
// order in help. A flag in none is in the first.
var flagGroups = []flagGroup{
	{"Task", []string{"workspace", "file", "apply", "profile", "require-trust", "ignore-project-config", "instruction-files", "accept-system-workspace"}},
	{"Model", []string{"model", "stream", "no-stream"}},
	{"Policy", []string{"policy", "on-prompt", "confirm-timeout", "fetch-allow"}},
	{"Sandbox", []string{
		"backend", "image", "git", "mode", "submount", "memory", "cpus", "pids", "tmp-size", "open-files", "command-time", "grace", "docker-host", "docker-runtime", "refuse-lost", "accept-runner-as-owner",
	}},
	{"Limits", []string{"max-rounds", "max-tool-calls", "max-tokens", "max-cost-usd", "timeout", "concurrency"}},
	{"Output", []string{"json", "output", "patch-out", "keep-changes", "keep-sessions", "verbose", "help"}},
}

// flagGroup is one group of flags.
type flagGroup struct {
	title string
	flags []string
}

// setHelp has help show flags in groups, within the width of a terminal.
func setHelp(root *cobra.Command) {
	const plain = "Flags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}"
	cobra.AddTemplateFunc("groupedFlags", groupedFlags)
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), plain, "{{groupedFlags .}}", 1))
}

// groupedFlags returns the flags of a command as help shows them: in groups
// where it takes settings.
func groupedFlags(cmd *cobra.Command) string {
	local := cmd.LocalFlags()
	if local.Lookup("backend") == nil {
		return "Flags:\n" + usages(local)
	}
	groupOf := map[string]int{}
	sets := make([]*pflag.FlagSet, len(flagGroups))
	for i, g := range flagGroups {
		sets[i] = pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		sets[i].SortFlags = false
		for _, name := range g.flags {
			groupOf[name] = i
		}
	}
	local.VisitAll(func(f *pflag.Flag) { sets[groupOf[f.Name]].AddFlag(f) })
	var out []string
	for i, g := range flagGroups {
		if sets[i].HasAvailableFlags() {
			out = append(out, g.title+":\n"+usages(sets[i]))
		}
	}
	return strings.Join(out, "\n\n")
}

func usages(flags *pflag.FlagSet) string {
	return strings.TrimRight(flags.FlagUsagesWrapped(helpColumns), " \n")
}
