package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Each command describes its exit statuses and shows an example, in the same form, and
// fits a terminal.
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

func TestHelpFitsTheTerminal(t *testing.T) {
	for columns, most := range map[int]int{60: 59, 100: 99, 200: maxHelpColumns} {
		for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"help", "trace", "ls"}} {
			w := newWorld(t, "")
			var out bytes.Buffer
			w.app.stdout = &out
			w.app.terminal = func(stream any) bool { return stream == &out }
			w.app.size = func() (int, int) { return columns, 24 }
			if status := run(t.Context(), args, w.env, w.app); status != 0 {
				t.Errorf("%q: status %d", args, status)
			}
			widest := 0
			for line := range strings.Lines(out.String()) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); len(strings.Fields(line)) > 1 && !strings.HasPrefix(line, "  caisson ") {
					widest = max(widest, n)
				}
			}
			if example := "\n  caisson trace ls --json --limit 0 | jq -r '.[] | select(.state==\"cut short\").session'\n"; args[0] == "help" && !strings.Contains(out.String(), example) {
				t.Errorf("%d columns break an example:\n%s", columns, &out)
			}
			if widest > most || columns > 60 && widest < 75 {
				t.Errorf("%q at %d columns: the widest line has %d:\n%s", args, columns, widest, &out)
			}
		}
	}
}

// TestNoCommand: without a command, a conversation begins if possible, or help is
// shown.
func TestNoCommand(t *testing.T) {
	for _, model := range []string{"", "replay/none.yaml"} {
		w := newWorld(t, "")
		w.app.terminal = func(any) bool { return true }
		w.app.size = func() (int, int) { return 80, 24 }
		if model != "" {
			w.configure(t, "model: "+model+"\n")
		}
		_, out, errs := w.call()
		if talks := strings.Contains(errs, "this is caisson chat; caisson --help lists all commands"); talks != (model != "") || talks == strings.Contains(out, "Available Commands") {
			t.Errorf("model %q: out %q, errors %q", model, out, errs)
		}
	}
}

// TestBrokenPipe: a reader that stops early is no error.
func TestBrokenPipe(t *testing.T) {
	r, out, err := os.Pipe()
	must(t, err)
	defer out.Close()
	r.Close()
	w := newWorld(t, "")
	var errs bytes.Buffer
	w.app.stdout, w.app.stderr = out, &errs
	if status := run(t.Context(), []string{"config", "show"}, w.env, w.app); status != exitPipe || errs.Len() > 0 {
		t.Errorf("status %d, %q", status, &errs)
	}
}

// TestFlagsAreGrouped is acceptance case 141: each flag of caisson run has a group, and
// shows its default.
func TestFlagsAreGrouped(t *testing.T) {
	real := newApp(nil, nil)
	cmd, _, err := newRoot(&real).Find([]string{"run"})
	must(t, err)
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
