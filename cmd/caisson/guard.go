package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci"
)

// dataCommands write data that a file must get as it is: a patch, a program's
// own output, records, a page.
var dataCommands = []string{"caisson diff", "caisson sandbox exec", "caisson trace export", "caisson trace html"}

// guardOutput puts a guard in front of the streams where a CI system's runner
// would obey what they say. It returns nil elsewhere.
func guardOutput(a *app) *ci.Guard {
	g := ci.New(a.environ.get, a.stdout, a.stderr)
	if g == nil {
		return nil
	}
	a.stdout, a.stderr = g.Stdout(), g.Stderr()
	isTerminal, exit := a.terminal, a.exit
	a.terminal = func(stream any) bool {
		if s, ok := stream.(*ci.Stream); ok {
			return isTerminal(s.Unwrap())
		}
		return isTerminal(stream)
	}
	a.exit = func(status int) {
		g.Close()
		exit(status)
	}
	return g
}

// configureGuard tells the guard what a command writes to standard output.
func configureGuard(g *ci.Guard, cmd *cobra.Command) {
	path := cmd.CommandPath()
	if asJSON := cmd.Flags().Lookup("json"); path == "caisson trace export" || asJSON != nil && asJSON.Value.String() == "true" {
		g.WriteJSON()
	}
	if slices.Contains(dataCommands, path) {
		g.KeepFiles()
	}
}

// closeGuard ends the guard, and reports what it changed for good.
func closeGuard(a *app, g *ci.Guard) {
	if n := g.Escaped(); n > 0 {
		fmt.Fprintf(a.stderr, "caisson: on standard output %s escaped, as in :\\u003a, so that the CI runner does not obey text; docs/ci.md says how to get it unchanged\n",
			plural(n, "marker is", "markers are"))
	}
	g.Close()
}
