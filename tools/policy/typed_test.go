package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// TestUnfinishedCommand: what the next text may continue.
func TestUnfinishedCommand(t *testing.T) {
	for script, want := range map[string]string{
		"":                             "",
		"git push\n":                   "",
		"git pu":                       "git pu",
		"ls\ngit pu":                   "git pu",
		"git \\\n":                     "git \\\n",
		"git \\\\\n":                   "",
		"echo 'a\n":                    "echo 'a\n",
		"echo 'a\nb'\nls":              "ls",
		"if true\nthen ls\n":           "if true\nthen ls\n",
		"f() {\n":                      "f() {\n",
		"print(\"a\")\nx":              "x", // no shell accepts it
		strings.Repeat("x", 2000):      strings.Repeat("x", 1024),
		"ls |\n":                       "ls |\n",
		"echo $(\n":                    "echo $(\n",
		"a && \n":                      "a && \n",
		"sh <<E\ngit push\nE\n":        "",
		"for i in a b; do echo $i\nec": "for i in a b; do echo $i\nec",
	} {
		if got := UnfinishedCommand(script); got != want {
			t.Errorf("%q: %q, want %q", script, got, want)
		}
	}
}

// TestTypedCommandsMayBeAny: text that may run something else than it says.
func TestTypedCommandsMayBeAny(t *testing.T) {
	for text, want := range map[string]bool{
		"ls\n": false, "make -j2 2>&1 | tail\n": false, "print *p\n": false, "[ -e x ] && echo {a..c}\n": false, "r args\n": false,
		"a\tb": true, "\x1b[A": true, "é": true, "!!\n": true, "echo a!b": true, "^a^b\n": true, "x ^a": false, "ls\n^a^b": true, "a\x7fb": true,
		"alias x=y\n": true, "sudo alias x=y\n": true, "al''ias x=y\n": true, "ali\\\nas x=y\n": true, "true; bind x\n": true, "$(stty erase x)\n": true, "r a=b\n": true,
		strings.Repeat("a", maxTypedLine): false, strings.Repeat("a", maxTypedLine+1): true,
	} {
		if got := slices.Contains(TypedCommands("", text), AnyCommand); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	if !slices.Contains(TypedCommands("al", "ias g=touch\n"), AnyCommand) {
		t.Error("an alias in two parts")
	}
}

// TestTypedTextIsRestricted: which typed texts a rule restricts, beside what it
// restricts in a script.
func TestTypedTextIsRestricted(t *testing.T) {
	p := Policy{Classes: classModes(ModeAuto, ModeAuto), Commands: map[string]Mode{"rm *": ModeDeny}}
	for _, c := range []struct {
		before, text  string
		typed, script bool
	}{
		{"", "rm a\n", true, true},
		{"", "shell rm a\n", true, false},
		{"", "qrm a\n", true, false},
		{"", "farm animals\n", true, false}, // a pager may have read "fa"
		{"", "the farm animals\n", false, false},
		{"", "docker run --rm a\n", false, false},
		{"", "rms a\n", false, false},
		{"r", "m a\n", true, false},
		{"x r", "m a\n", true, false},
		{"x qr", "m a\n", true, false},
		{"echo '", "'; rm a\n", true, true},
	} {
		def := tools.Definition{Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Typed: true}
		s := situation{def: def, commands: TypedCommands(c.before, c.text)}
		if got := p.decideSituation(s).Mode == ModeDeny; got != c.typed {
			t.Errorf("%q after %q: %t", c.text, c.before, got)
		}
		s.def.Typed, s.commands = false, []string{c.text}
		if got := p.decideSituation(s).Mode == ModeDeny; got != c.script {
			t.Errorf("%q as a script: %t", c.text, got)
		}
	}
}
