package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

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

func TestTypedBefore(t *testing.T) {
	for _, before := range []string{"", "git pu", "x"} {
		for _, text := range []string{"sh\n", "alias x=y\n", "x"} {
			if got := TypedBefore(TypedCommands(before, text)); got != before {
				t.Errorf("%q before %q: %q", before, text, got)
			}
		}
	}
	if got := TypedBefore([]string{AnyCommand}); got != "" {
		t.Errorf("%q", got)
	}
}

// TestTypedCommandsMayBeAny: text that may run something else than it says.
func TestTypedCommandsMayBeAny(t *testing.T) {
	for text, want := range map[string]bool{
		"ls\n": false, "make -j2 2>&1 | tail\n": false, "print *p\n": false, "[ -e x ] && echo {a..c}\n": false, "r args\n": false,
		"a\tb": true, "\x1b[A": true, "é": true, "!!\n": true, "echo a!b": true, "^a^b\n": true, "x ^a": false, "ls\n^a^b": true, "a\x7fb": true,
		"alias x=y\n": true, "sudo alias x=y\n": true, "al''ias x=y\n": true, "ali\\\nas x=y\n": true, "true; bind x\n": true, "$(stty erase x)\n": true, "r a=b\n": true,
		"BASH_ALIASES[g]=touch\n": true, "BASH_CMDS[g]=x\n": true, "declare BASH_ALIASES[g]=touch\n": true, "eval 'aliases[g]=touch'\n": true, "galiases[g]=touch\n": true,
		"saliases[g]=touch\n": true, "functions[g]=touch\n": true, "commands[g]=/bin/touch\n": true, "aliases=(g touch)\n": true, "commands=3\n": false, "words[1]=x\n": false,
		"printf -v 'BASH_ALIASES[g]' touch\n": true, "read BASH_ALIASES[g] <x\n": true, "read 'aliases[g]'\n": true, "read -A aliases\n": true, "set -A aliases g touch\n": true,
		"printf -vBASH_ALIASES[g] touch\n": true, "builtin printf -v BASH_ALI''ASES[g] touch\n": true, "printf -v $'\\x42ASH_ALIASES[g]' touch\n": true, "printf -v \"$x\" touch\n": true,
		"read \"$x\"\n": true, "mapfile -t $x\n": true, ": ${BASH_ALIASES[g]:=touch}\n": true, ": ${aliases[g]:=touch}\n": true, "declare -n r=BASH_ALIASES\n": true, "declare \"$x$y\"\n": true, "declare -n r=$x\n": true,
		"export PATH=$PATH:/x\n": false, "declare -n r=x\n": false, "local x y\n": false,
		"printf '%s\\n' $x\n": false, "printf -v x %d 3\n": false, "read -r x\n": false, "set -e\n": false, "export A=b\n": false, "list_commands[1]\n": false, "echo aliases\n": false,
		"commandline touch x\n": true, "hist -s a=b\n": true, "vared x\n": true, "print -z touch x\n": true, "print -rz x\n": true, "print -r x\n": false,
		strings.Repeat("x \\\n", 600): true, strings.Repeat("eval ", 180) + "\n": true, strings.Repeat(strings.Repeat("some ordinary words with names.of.files ", 25)+"\n", 4): false,
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
		{"", "system \"rm a\"\n", true, false},
		{"", "os.execute 'rm a'\n", true, false},
		{"", "os.system(\"rm a\")\n", true, true}, // no shell accepts it
		{"", "system \"rmdir a\"\n", false, false},
		{"", "x = `rm a`\n", true, true},
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

// TestTypedTextIsJudgedSoon: words that each may run the rest cost little, and are
// restricted and dangerous if they are too many.
func TestTypedTextIsJudgedSoon(t *testing.T) {
	p := Policy{Classes: classModes(ModeAuto, ModeAuto), Commands: map[string]Mode{"git push *": ModePrompt}}
	m, err := Policy{Dangerous: DangerousCommands()}.DangerMatcher("")
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Repeat("sudo ", 60) + "sh -c '" + strings.Repeat("a;", 300) + "'\n"
	for _, text := range []string{strings.Repeat("eval ", 800), strings.Repeat(strings.Repeat("eval ", 180)+"\n", 4), strings.Repeat(quoted, 4)} {
		began := time.Now()
		s := situation{def: tools.Definition{Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Typed: true}, commands: TypedCommands("x", text)}
		if v := p.decideSituation(s); v.Mode != ModePrompt {
			t.Errorf("%.20q: %+v", text, v)
		}
		if m.FindTyped(text) == "" && len(strings.TrimSpace(text)) > maxTypedLine && strings.Contains(text, "\n") {
			t.Errorf("%.20q is not dangerous", text)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%.20q took %v", text, took)
		}
	}
}

// TestTypedDangerInQuotes: another program than a shell runs what is in quotes.
func TestTypedDangerInQuotes(t *testing.T) {
	m, err := Policy{Dangerous: DangerousCommands()}.DangerMatcher("")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"os.execute \"rm -rf /\"\n": true, "os.system('git push -f')\n": true, "system(\"rm -rf /\")\n": true, "os.execute \"rm -rf build\"\n": false,
	} {
		if got := m.FindTyped(text); (got != "") != want || m.Find(text) != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
}
