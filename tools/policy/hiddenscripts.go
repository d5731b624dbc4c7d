package policy

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// hiddenScripts returns texts in a command that are data to the shell but that a
// program may run: values of variables and options (PAGER=x, git -c core.pager=x,
// tar -I x), words after a launcher (uv run x), and substitutions in quotes, which
// test -v and other builtins expand. A text that begins with an expansion is
// returned only if it certainly names a program.
func hiddenScripts(n syntax.Node) (scripts []string) {
	add := func(name, text string) {
		text = strings.TrimLeft(text, "!:| ")
		if first, _, _ := strings.Cut(text, " "); first != "" && (!strings.ContainsAny(first, expands) || namesProgram().MatchString(name)) {
			scripts = append(scripts, text)
		}
	}
	switch n := n.(type) {
	case *syntax.SglQuoted:
		scripts = quotedSubstitution(n.Value)
	case *syntax.Lit:
		if strings.Contains(n.Value, `\`) {
			scripts = quotedSubstitution(strings.ReplaceAll(n.Value, `\`, ""))
		}
	case *syntax.Assign:
		if n.Name != nil && n.Value != nil {
			add(n.Name.Value, wordText(n.Value))
		}
	case *syntax.CallExpr:
		words := wordTexts(n.Args)
		if len(words) > 0 && (strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=")) {
			return // options, or their values: no program has such a name
		}
		for i, word := range words {
			name, value, assigns := strings.Cut(word, "=")
			rest := words[i+1 : min(len(words), i+1+maxRunnerWords)]
			switch {
			case i == 0:
			case assigns && (word[0] != '-' || isExecFlag(word) || namesProgram().MatchString(name)):
				add(name, value)
				add(name, value[strings.LastIndexByte(value, '=')+1:]) // --checkpoint-action=exec=x
			case launchesAt(words, i):
				name = "command"
				for j := range rest {
					add(name, rest[j])
					add(name, quoteWords(rest[j:]))
					name = "" // an option, or its value
				}
			case (isExecFlag(word) || strings.HasPrefix(word, "-I")) && !isHarmlessOption(words[0], word):
				if len(rest) > 0 {
					name = path.Base(words[0]) + " " + word
					add(name, rest[0])
					add(name, quoteWords(rest))
				}
				if word[1] != '-' {
					add("", word[2:]) // -Ix
				}
			}
		}
	}
	return scripts
}

// launchesAt reports whether word i, one of the first words of a command, is a
// launcher as in uv run: a word after it is the program.
func launchesAt(words []string, i int) bool {
	return i > 0 && i < 3 && i < len(words) && isLauncher(words[i]) && (mayLaunch(path.Base(words[0])) || runnerSubcommand(words) != "") &&
		!(words[i] == "run" && slices.Contains([]string{"npm", "pnpm", "yarn"}, words[0]))
}

// quoteWords joins words to a command. Words that the shell would expand stay
// unquoted.
func quoteWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; !strings.ContainsAny(w, expands) {
			quoted[i] = quoteWord(w)
		}
	}
	return strings.Join(quoted, " ")
}

// quotedSubstitution returns a script that makes the substitutions in a text, or
// none.
func quotedSubstitution(text string) []string {
	if strings.Contains(text, "$(") || strings.Contains(text, "`") {
		return []string{": " + text}
	}
	return nil
}

// namesProgram matches names of variables, settings and options whose values are
// commands.
var namesProgram = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(^alias\..*|^ENV|PAGER|EDITOR|VISUAL|COMMAND|CMD|ASKPASS|SHELL|LESSOPEN|LESSCLOSE|BASH_ENV|SSH|RSH|PROGRAM|HELPER|EXEC|EXTERNAL|EXTERNAL_DIFF|TEXTCONV|ACTION|^tar -I|^rsync -e|^fd(find)? -x)$`)
})
