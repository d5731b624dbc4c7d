package main

import (
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Each command that does something says what its exit statuses mean and shows an
// example; all of them speak alike, and fit a terminal.
func TestHelp(t *testing.T) {
	seen := 0
	real := newApp(nil, nil)
	visitCommands(newRoot(&real), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Name() == "help" || strings.HasPrefix(path, "caisson completion") || strings.HasPrefix(cmd.Name(), "__") {
			return // cobra's own
		}
		seen++
		if !unicode.IsUpper([]rune(cmd.Short + " ")[0]) || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is no line of a list", path, cmd.Short)
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > 110 {
				t.Errorf("%s: a line of %d characters: %s", path, n, line)
			}
		}
		for line := range strings.Lines(groupedFlags(cmd)) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > helpColumns {
				t.Errorf("%s: a line of %d characters: %s", path, n, line)
			}
		}
		if cmd.HasSubCommands() || cmd.Hidden || cmd.Name() == "version" {
			return
		}
		if !strings.Contains(cmd.Long, "\nExit status:\n") {
			t.Errorf("%s: its help says nothing of its exit statuses", path)
		}
		if cmd.Example == "" {
			t.Errorf("%s: its help has no example", path)
		}
	})
	if seen < 20 {
		t.Errorf("%d commands were seen", seen)
	}
}

// TestFlagsAreGrouped is acceptance case 141: each flag of caisson run has a group
// of its own, and shows what counts without it.
func TestFlagsAreGrouped(t *testing.T) {
	real := newApp(nil, nil)
	cmd, _, err := newRoot(&real).Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	cmd.InitDefaultHelpFlag()
	groups := groupsByFlag()
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if n := strings.Count(groupedFlags(cmd), "--"+f.Name+" "); n != 1 {
			t.Errorf("--%s is shown %d times", f.Name, n)
		}
		if _, ok := groups[f.Name]; !ok {
			t.Errorf("--%s has no group", f.Name)
		}
	})
	for _, want := range []string{"Task:\n", "Model:\n", "Sandbox:\n", "Limits:\n", "Output:\n", "(default 50)", "(default all; serve: 2)", "(default deny)"} {
		if !strings.Contains(groupedFlags(cmd), want) {
			t.Errorf("help has no %q", want)
		}
	}
}
