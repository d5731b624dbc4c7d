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
func guardOutput(d deps, env environ) (deps, *ci.Guard) {
	g := ci.New(env.get, d.stdout, d.stderr)
	if g == nil {
		return d, nil
	}
	d.stdout, d.stderr = g.Stdout(), g.Stderr()
	isTerminal, exit := d.terminal, d.exit
	d.terminal = func(stream any) bool {
		if s, ok := stream.(*ci.Stream); ok {
			return isTerminal(s.Unwrap())
		}
		return isTerminal(stream)
	}
	d.exit = func(status int) {
		g.Close()
		exit(status)
	}
	return d, g
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
func closeGuard(d deps, g *ci.Guard) {
	if n := g.Escaped(); n > 0 {
		fmt.Fprintf(d.stderr, "caisson: on standard output %s escaped, as in :\\u003a, so that the CI runner does not obey text; docs/ci.md says how to get it unchanged\n",
			plural(n, "marker is", "markers are"))
	}
	g.Close()
}
