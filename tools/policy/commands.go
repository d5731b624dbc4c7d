package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

type commandRule struct {
	text  string
	words []string
	// open means that more words may follow: the entry ends with " *".
	open bool
	// program is the program whose arguments these words are.
	program string
	mode    Mode
}

func parseCommands(entries map[string]Mode) ([]commandRule, error) {
	rules := make([]commandRule, 0, len(entries))
	for _, text := range slices.Sorted(maps.Keys(entries)) {
		rule, err := parseCommandRule(text, entries[text])
		if err != nil {
			return nil, fmt.Errorf("command %q: %w", text, err)
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func parseCommandRule(text string, mode Mode) (commandRule, error) {
	rule := commandRule{text: text, mode: mode}
	if !slices.Contains([]Mode{ModeAuto, ModePrompt, ModeDeny}, mode) {
		return rule, fmt.Errorf("has the mode %q; modes of commands are auto, prompt, deny", mode)
	}
	phrase, open := strings.CutSuffix(text, " *")
	words, err := plainWords(phrase)
	switch {
	case text == "*":
		return rule, errors.New("names no program; policy.default has the modes of all commands")
	case err != nil:
		return rule, err
	}
	rule.words, rule.open = words, open
	if mode != ModeAuto {
		return rule, nil
	}
	if takesScripts(path.Base(words[0])) && (words[0] == "eval" || slices.ContainsFunc(words[1:], func(w string) bool { return isExecFlag(w) || w == "-S" })) {
		return rule, errors.New("holds a script")
	}
	if open {
		if rule.program = openProgram(words); rule.program == "" {
			return rule, errors.New("the words that * stands for would be commands; name the program before *")
		}
	}
	return rule, nil
}

// plainWords returns the words of a single plain command, all literal and visible.
func plainWords(command string) ([]string, error) {
	if len(command) > maxPhraseBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxPhraseBytes)
	}
	if safe, _ := tools.Display(command); safe != command {
		return nil, errors.New("holds a control character, or one that is not visible")
	}
	return literalWords(command)
}

// openProgram returns the program whose arguments follow words, or "" if they would
// be commands, scripts or modules.
func openProgram(words []string) string {
	if len(words) == 0 || strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=") {
		return ""
	}
	name := path.Base(words[0])
	switch strings.TrimRight(name, "0123456789.-") {
	case "make", "gmake", "ninja":
		return name
	case "python", "pypy":
		if len(words) < 3 || words[1] != "-m" || slices.Contains([]string{"cProfile", "code", "pdb", "profile", "runpy", "timeit", "trace"}, words[2]) {
			return ""
		}
		return openProgram(words[2:])
	case "bunx", "npx", "uvx":
		return openProgram(words[1:])
	}
	if isRunner(name) {
		return ""
	}
	if at := slices.IndexFunc(words, isLauncher); at > 0 {
		switch {
		case slices.Contains([]string{"docker", "podman", "kubectl", "ip", "ssh"}, name):
			return ""
		case words[at] == "run" && slices.Contains([]string{"npm", "pnpm", "yarn"}, name):
			return name
		}
		return openProgram(words[at+1:])
	}
	if runnerSubcommand(words) != "" || setsProgram(words) {
		return ""
	}
	return name
}

// isLauncher reports whether many programs have this subcommand, with a command as
// its arguments.
func isLauncher(word string) bool {
	return slices.Contains([]string{"cmd", "dlx", "eval", "exec", "foreach", "run", "runner", "shell", "x"}, word)
}

// mayLaunch reports whether a program may have such a subcommand. Programs whose
// options are known have only the ones in [runnerSubcommands].
func mayLaunch(program string) bool {
	return harmlessOptions(program) == "" || slices.Contains([]string{"npm", "pnpm", "yarn"}, program)
}

// setsProgram reports whether a command may store the name of a program that a
// later one runs: git config core.pager.
func setsProgram(words []string) bool {
	switch path.Base(words[0]) {
	case "cargo", "composer", "gh", "git", "npm", "pip", "pip3", "pnpm", "poetry", "yarn":
		return slices.Contains(words[1:], "config") || slices.Contains(words[1:], "set")
	}
	return false
}

// matchesPlain reports whether the rule covers a plain command. An open auto rule
// does not cover further words that could run something else.
func (r commandRule) matchesPlain(words []string) bool {
	if len(words) < len(r.words) || !slices.Equal(words[:len(r.words)], r.words) {
		return false
	}
	rest := words[len(r.words):]
	if len(rest) == 0 || !r.open {
		return len(rest) == 0
	}
	if r.mode != ModeAuto {
		return true
	}
	if r.program == "git" && len(r.words) == 1 && strings.HasPrefix(rest[0], "-") {
		return false // git -p is not the same option as git log -p
	}
	if runnerSubcommand(words) != "" && runnerSubcommand(r.words) == "" || setsProgram(words) {
		return false
	}
	if known := knownSubcommands(r.program); known != "" && len(r.words) == 1 {
		if at := slices.IndexFunc(rest, func(w string) bool { return !strings.HasPrefix(w, "-") }); at >= 0 && !slices.Contains(strings.Fields(known), rest[at]) {
			return false
		}
	}
	return !slices.ContainsFunc(rest, func(w string) bool {
		return !isHarmlessWord(r.program, w) || isLauncher(w) && mayLaunch(r.program)
	})
}

// isHarmlessWord reports whether a program's further word names no program, no file
// to execute and no other directory, and assigns nothing.
func isHarmlessWord(program, word string) bool {
	switch {
	case word == "" || word == "--":
		return true
	case word[0] == '-':
		return isHarmlessOption(program, word)
	case strings.ContainsRune("@+", rune(word[0])) || strings.Contains(word, "="):
		return false // @file holds more words, +word selects a toolchain or is a command
	case program == "git":
		return !strings.Contains(word, "::") // ext::COMMAND
	}
	return true
}

// expands are characters that let the shell turn a word into other words.
const expands = "$`{*?["

// matchesCommand reports whether a restricting rule covers a command in a script.
// The program may have any path, and options may be between the rule's words.
func (r commandRule) matchesCommand(name string, args []string) bool {
	words := append([]string{name}, args...)
	if sub, ok := strings.CutPrefix(name, "git-"); ok {
		words = append([]string{"git", sub}, args...)
	}
	own := slices.Clone(r.words)
	own[0] = path.Base(own[0])
	next := 0
	for i, word := range words {
		switch {
		case next == len(own):
			return r.open || strings.ContainsAny(word, expands)
		case word == own[next]:
			next++
		case i > 0 && strings.ContainsAny(word, expands):
			return true // it may be any words, or none
		case i == 0, name == "git", !strings.HasPrefix(word, "-") && (i < 2 || !strings.HasPrefix(words[i-1], "-")):
			return false // neither an option nor its value; git's are skipped elsewhere
		}
	}
	return next == len(own)
}

// decideCommand returns the rule for one command, if there is one. A rule that lets
// it run must cover the whole command; a restricting one counts anywhere in it. A
// deny wins, then the rule with the most words.
func decideCommand(rules []commandRule, command string, s situation) (decided commandRule, ok bool) {
	consider := func(r commandRule) {
		switch {
		case !ok, r.mode == ModeDeny && decided.mode != ModeDeny:
		case decided.mode == ModeDeny:
			return
		case len(r.words) < len(decided.words), len(r.words) == len(decided.words) && r.open && !decided.open:
			return
		case len(r.words) == len(decided.words) && r.open == decided.open && r.mode.rank() <= decided.mode.rank():
			return
		}
		decided, ok = r, true
	}
	words, err := plainWords(command)
	if err == nil {
		for _, r := range rules {
			if r.matchesPlain(words) && (r.mode != ModeAuto || s.danger.Find(command) == "") {
				consider(r)
			}
		}
	}
	for _, r := range restrictionsIn(rules, command) {
		if err != nil || r.mode == ModeDeny || !r.matchesPlain(words) {
			consider(r)
		}
	}
	if s.def.Typed {
		found, complete := restrictionsNamed(restricting(rules), maxTypedSteps, typedParts(command)...)
		if !complete {
			found = restricting(rules)
		}
		for _, r := range found {
			consider(r)
		}
	}
	return decided, ok
}

// restrictionsIn returns the rules that restrict a command in a script, or all of
// them if the script can't be searched completely or computes what it runs.
func restrictionsIn(rules []commandRule, script string) []commandRule {
	rules = restricting(rules)
	if len(rules) == 0 || len(script) > maxDangerousBytes {
		return rules
	}
	all := scriptSearch{hidden: true}
	if all.searchScript(script, 0); all.computed {
		return rules
	}
	found, complete := restrictionsNamed(rules, maxDangerousSteps, script)
	if !complete {
		return rules
	}
	return found
}

// namesRestricted reports whether a part of typed text is a command that a rule
// restricts.
func (s situation) namesRestricted(rules []commandRule) bool {
	return slices.ContainsFunc(s.commands, func(command string) bool {
		found, _ := restrictionsNamed(restricting(rules), maxTypedSteps, typedParts(command)...)
		return len(found) > 0 && command != AnyCommand
	})
}

func restricting(rules []commandRule) (found []commandRule) {
	for _, r := range rules {
		if r.mode == ModePrompt || r.mode == ModeDeny {
			found = append(found, r)
		}
	}
	return found
}

// restrictionsNamed returns the rules whose commands some scripts name, and whether
// they were searched completely in a number of steps.
func restrictionsNamed(rules []commandRule, most int, scripts ...string) (found []commandRule, complete bool) {
	s := dangerSearch{most: most, hidden: true, match: func(name string, args, _ []string) string {
		for _, r := range rules {
			if r.matchesCommand(name, args) {
				found = append(found, r)
			}
		}
		return ""
	}}
	for _, script := range scripts {
		s.searchScript(script, 0)
	}
	return found, s.found == ""
}

// decideCommands applies the rules about commands to a verdict. It becomes milder
// only if a rule lets each command run.
func (p Policy) decideCommands(v Verdict, s situation) Verdict {
	rules, err := parseCommands(p.Commands)
	if err != nil || len(rules) == 0 || v.Mode == ModeDeny {
		return v // Validate reports the error
	}
	lifted := len(s.commands) > 0
	var strictest Verdict
	for _, command := range s.commands {
		rule, ok := decideCommand(rules, command, s)
		if !ok {
			lifted = false
			continue
		}
		if strictest.Rule == "" || rule.mode.rank() > strictest.Mode.rank() {
			strictest = Verdict{Mode: rule.mode, Rule: "command " + rule.text, Command: rule.text}
		}
	}
	if strictest.Rule != "" && slices.Contains(s.commands, AnyCommand) {
		// An answer about the rule's own command doesn't cover any command, nor the
		// other way round.
		if s.namesRestricted(rules) {
			strictest.Command += " " + AnyCommand
		} else {
			strictest.Command = AnyCommand
		}
	}
	if strictest.Rule != "" && (lifted || strictest.Mode.rank() > v.Mode.rank()) {
		return strictest
	}
	return v
}
