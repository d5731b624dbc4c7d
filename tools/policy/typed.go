package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools"
)

// AnyCommand stands for commands that are not known, such as what keys make of a
// line in a terminal. The strictest rule that restricts some command applies to it.
const AnyCommand = `"$@"`

// maxTypedLine bounds a typed line that is judged, and the unfinished text that is
// judged with what follows it.
const maxTypedLine = 1 << 10

// maxTypedSteps bounds the commands and scripts searched in all parts of a typed
// text.
const maxTypedSteps = 5 * maxDangerousSteps

// TypedCommands returns the [tools.Definition].Commands of a text that is typed
// into a terminal after before, which is from [UnfinishedCommand]. They contain
// AnyCommand if the text may run something else than it says. Together they are
// never covered by an answer or a rule for one command.
func TypedCommands(before, text string) []string {
	script := before + text
	// ": &" is never plain, so no auto rule and no answer for good covers the call.
	commands := []string{": &", script}
	if before != "" {
		i := len(before)
		for i > 0 && isWordByte(before[i-1]) {
			i--
		}
		// A program may have read a part of before.
		commands = append(commands, text, before[i:]+text)
	}
	if slices.ContainsFunc(commands, changesInput) {
		commands = append(commands, AnyCommand)
	}
	return commands
}

// TypedBefore returns the argument before of the [TypedCommands] call that returned
// these commands.
func TypedBefore(commands []string) string {
	if len(commands) < 4 { // without before there are two, and perhaps AnyCommand
		return ""
	}
	return strings.TrimSuffix(commands[1], commands[2])
}

// UnfinishedCommand returns the end of a typed text that a shell may continue with
// what is typed next.
func UnfinishedCommand(script string) string {
	at := strings.LastIndexByte(script, '\n') + 1
	whole := strings.TrimSuffix(script[:at], "\n")
	continued := (len(whole)-len(strings.TrimRight(whole, `\`)))%2 == 1
	_, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script[:at]), "")
	if !continued && !syntax.IsIncomplete(err) {
		script = script[at:]
	}
	return script[max(0, len(script)-maxTypedLine):]
}

// changesInput reports whether a typed text may run something else than it says, or
// change what is typed later: by a key, by the shell's history, or by another
// meaning of keys or words.
func changesInput(text string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if len(line) > maxTypedLine || strings.HasPrefix(line, "^") || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' || r == '!' }) {
			return true
		}
	}
	if slices.ContainsFunc(typedLines(text), func(line string) bool { return len(line) > maxTypedLine }) {
		return true
	}
	if usesTable(withoutEscapes.Replace(text)) {
		return true
	}
	s := dangerSearch{most: maxTypedSteps, hidden: true, match: func(name string, args, _ []string) string {
		switch name {
		case "abbr", "alias", "bind", "bindkey", "commandline", "compdef", "complete", "fc", "hash", "hist", "history", "stty", "vared", "zle":
			return name
		case "print": // of zsh
			if slices.ContainsFunc(args, func(arg string) bool { return isCluster(arg) && strings.Contains(arg, "z") }) {
				return name
			}
		case "=":
			if slices.Contains(commandTables, args[0]) {
				return args[0]
			}
		case "printf":
			if len(args) > 0 && strings.HasPrefix(args[0], "-v") && slices.ContainsFunc(args[:min(2, len(args))], mayNameTable) {
				return name
			}
		case "declare", "export", "getopts", "local", "mapfile", "read", "readarray", "readonly", "set", "typeset", "wait":
			if slices.ContainsFunc(args, mayNameTable) {
				return name
			}
		case "r": // of ksh and zsh: r pull=push
			if strings.Contains(strings.Join(args, " "), "=") {
				return name
			}
		}
		return ""
	}}
	for _, part := range typedParts(text) {
		s.searchScript(part, 0)
	}
	return s.found != ""
}

// commandTables are variables of bash and zsh whose parts say what a word runs.
var commandTables = []string{"BASH_ALIASES", "BASH_CMDS", "aliases", "galiases", "saliases", "functions", "commands"}

// withoutEscapes removes quotes and escapes, so that a quoted name becomes whole.
var withoutEscapes = strings.NewReplacer("\\\n", "", `\`, "", "'", "", `"`, "")

// usesTable reports whether a text names an element of one of the commandTables. Any
// use counts, because expansions assign too. A name of bash's counts even without an
// element: nothing else has such a name.
func usesTable(text string) bool {
	return slices.ContainsFunc(commandTables, func(table string) bool {
		for rest := text; ; {
			before, after, found := strings.Cut(rest, table)
			if !found {
				return false
			}
			if strings.HasPrefix(table, "BASH_") || strings.HasPrefix(after, "[") && (before == "" || !isWordByte(before[len(before)-1])) {
				return true
			}
			rest = after
		}
	})
}

// mayNameTable reports whether an argument of a command that assigns to the variables
// it names may name one of the commandTables.
func mayNameTable(arg string) bool {
	name, _, _ := strings.Cut(arg, "[")
	return strings.ContainsAny(arg, "$`\\") || slices.Contains(commandTables, name)
}

// typedLines returns the lines of a text, with continued ones joined.
func typedLines(text string) []string {
	return strings.Split(strings.ReplaceAll(text, "\\\n", ""), "\n")
}

// withoutQuotes is for words in quotes that another program than a shell runs.
var withoutQuotes = strings.NewReplacer("'", " ", `"`, " ", "`", " ")

// typedParts returns the ends of each line of a typed text that may be a command:
// from each word on, because programs have words for "run this", and from each
// letter of the first word on, because a program may read single keys before a
// shell reads the rest. Each part comes twice, with quotes and without them. A line
// that is too long has no parts: it counts as any command.
func typedParts(text string) (parts []string) {
	for _, line := range typedLines(text) {
		if len(line) > maxTypedLine {
			continue
		}
		line = strings.TrimLeft(line, " ")
		bare := withoutQuotes.Replace(line)
		word, _, _ := strings.Cut(line, " ")
		first := len(word)
		for i := range line {
			if line[i] != ' ' && (i < first || !isWordByte(line[i-1])) {
				parts = append(parts, line[i:])
				if bare[i] != ' ' && bare[i:] != line[i:] {
					parts = append(parts, bare[i:])
				}
			}
		}
	}
	return parts
}

func isWordByte(c byte) bool {
	return c == '_' || c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// FindTyped is Find for a text that is typed into a terminal: each part of it may
// be a command.
func (m DangerMatcher) FindTyped(text string) string {
	if found := m.Find(text); found != "" || m.IsEmpty() {
		return found
	}
	s := newDangerSearch(m.patterns)
	s.most = maxTypedSteps
	for _, part := range typedParts(text) {
		s.searchScript(part, 0)
	}
	found, _ := tools.Display(s.found)
	return found
}

// IsEmpty reports whether no pattern is there.
func (m DangerMatcher) IsEmpty() bool { return len(m.patterns) == 0 }
