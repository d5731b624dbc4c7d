package policy

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// maxDangerousSteps bounds the commands and scripts that are searched in one
// command: each word behind sudo or xargs may be one. What has more counts as
// dangerous.
const maxDangerousSteps = 1000

// maxRunnerWords bounds where behind sudo, env or xargs a command is looked for.
const maxRunnerWords = 64

// dangerIn returns the first command of a script that matches a pattern, for
// people and not made safe; "" where none does.
func dangerIn(patterns []dangerPattern, script string) string {
	if len(patterns) == 0 {
		return ""
	}
	if len(script) > maxDangerousBytes {
		return fmt.Sprintf("a command of more than %d bytes", maxDangerousBytes)
	}
	s := dangerSearch{match: func(name string, args, shown []string) string { return matchPatterns(patterns, name, args, shown) }}
	s.searchScript(script, 0)
	return s.found
}

// dangerSearch goes through one script.
type dangerSearch struct {
	// match returns how a command is shown that is searched for, or "". Redirections
	// are the command ">". shown are the arguments as a person knows them, nil for args.
	match func(name string, args, shown []string) string
	// hidden searches what [hiddenScripts] finds, too.
	hidden bool
	steps  int
	found  string
}

// countStep counts one more searched command, and reports whether the search goes on.
func (s *dangerSearch) countStep() bool {
	if s.steps++; s.steps > maxDangerousSteps && s.found == "" {
		s.found = fmt.Sprintf("a command in which more than %d could be meant", maxDangerousSteps)
	}
	return s.found == ""
}

func (s *dangerSearch) searchScript(text string, depth int) {
	if !s.countStep() || depth > maxDangerousDepth {
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(markControls(text)), "")
	if err != nil && strings.Contains(text, "\n") {
		// The shell runs a line before it reads the next one, and may accept
		// what the parser refuses.
		for line := range strings.SplitSeq(text, "\n") {
			s.searchScript(line, depth+1)
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool { // of what was parsed until an error
		if s.found != "" {
			return false
		}
		if s.hidden {
			for _, script := range hiddenScripts(n) {
				s.searchScript(script, depth+1)
			}
		}
		switch n := n.(type) {
		case *syntax.Redirect:
			if n.Word != nil && strings.Contains(n.Op.String(), ">") {
				s.found = s.match(">", []string{wordText(n.Word)}, nil)
			}
		case *syntax.Stmt:
			s.searchInput(n, depth)
		case *syntax.CallExpr:
			s.searchCall(wordTexts(n.Args), depth)
		}
		return true
	})
}

// controlMark stands for a control character that the parser treats in a way of
// its own and shells as any other character: it drops NUL, and a carriage return
// before a newline. The mark belongs to no script.
const controlMark = '\U000f0000'

// markControls returns a script with its control characters marked, except
// newlines and tabs, and with bytes that aren't UTF-8 marked too.
func markControls(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == utf8.RuneError {
			return controlMark
		}
		return r
	}, text)
}

// searchInput looks at a script that a shell gets in a here-document.
func (s *dangerSearch) searchInput(stmt *syntax.Stmt, depth int) {
	for _, script := range inputScripts(stmt) {
		s.searchScript(script, depth+1)
	}
}

// inputScripts returns the scripts that a command gets in here-documents, if a shell is
// among its words.
func inputScripts(stmt *syntax.Stmt) (scripts []string) {
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return nil
	}
	words := wordTexts(call.Args)
	if !isRunner(words[0]) {
		words = words[:1]
	}
	if !slices.ContainsFunc(words, func(w string) bool { return takesScripts(path.Base(w)) }) {
		return nil
	}
	for _, r := range stmt.Redirs {
		switch {
		case r.Hdoc != nil:
			scripts = append(scripts, wordText(r.Hdoc))
		case r.Op == syntax.WordHdoc:
			scripts = append(scripts, wordText(r.Word))
		}
	}
	return scripts
}

func wordTexts(args []*syntax.Word) []string {
	words := make([]string, len(args))
	for i, w := range args {
		words[i] = wordText(w)
	}
	return words
}

// searchCall looks at one command, and at those that it would run.
func (s *dangerSearch) searchCall(words []string, depth int) {
	if len(words) == 0 {
		return
	}
	s.searchCommand(words, depth)
	if !isRunner(words[0]) || takesNames(path.Base(words[0])) {
		return
	}
	for i := 1; i < min(len(words), maxRunnerWords) && s.found == ""; i++ {
		s.searchCommand(words[i:], depth)
	}
}

// searchCommand looks at one command, and at scripts among its arguments.
func (s *dangerSearch) searchCommand(words []string, depth int) {
	if !s.countStep() {
		return
	}
	name := path.Base(words[0])
	s.found = s.match(name, words[1:], words[1:])
	if name == "git" && s.found == "" {
		if sub := gitSubcommand(words[1:]); len(sub) > 0 {
			s.found = s.match("git-"+sub[0], sub[1:], words[1:])
		}
	}
	if takesScripts(name) {
		for i := 1; i < len(words) && s.found == ""; i++ {
			text := words[i]
			if name == "env" { // -S'rm a', --split-string='rm a'
				text = strings.TrimPrefix(strings.TrimPrefix(text, "-S"), "--split-string=")
			}
			s.searchScript(text, depth+1)
		}
	}
}

// takesNames are commands that run others, and whose arguments are names of
// something else: man reboot, make mkfs.
func takesNames(name string) bool {
	return slices.Contains([]string{"alias", "crontab", "ed", "emacs", "ex", "hash", "less", "make", "man", "more", "ninja", "nvim", "vi", "view", "vim"}, name)
}

// takesScripts are commands whose arguments are scripts of a shell, or whose
// input is one.
func takesScripts(name string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox", "eval", "su", "ssh", "env", "watch", "flock", "script", "parallel", "trap", "compgen", "complete", "mapfile", "readarray"}, name)
}

// gitSubcommand returns the words of git from the subcommand on: git(1) has its
// own options before it, some with a value of their own.
func gitSubcommand(words []string) []string {
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		n := 1
		if slices.Contains([]string{"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix", "--attr-source", "--list-cmds"}, words[0]) {
			n = min(2, len(words))
		}
		words = words[n:]
	}
	return words
}

// matchPatterns returns a command that one of the patterns matches, for people; "" if
// none does.
func matchPatterns(patterns []dangerPattern, name string, args, shown []string) string {
	for _, p := range patterns {
		if !p.matchesCommand(name, args) {
			continue
		}
		if shown == nil {
			shown = args
		}
		if sub, ok := strings.CutPrefix(name, "git-"); ok && slices.Contains(shown, sub) {
			name = "git"
		}
		return utf8text.Clip(strings.TrimSpace(name+" "+strings.Join(shown, " ")), maxFoundBytes)
	}
	return ""
}

// wordText is a word without its quotes where nothing in it is expanded, and
// otherwise as it is written; without its control characters.
func wordText(w *syntax.Word) string {
	var b strings.Builder
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(strings.ReplaceAll(part.Value, `\`, ""))
		case *syntax.SglQuoted:
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			for _, inner := range part.Parts {
				b.WriteString(partText(inner))
			}
		default:
			b.WriteString(partText(part))
		}
	}
	return strings.ReplaceAll(b.String(), string(controlMark), "")
}

// partText is a part as it is written; ${HOME} counts as $HOME.
func partText(p syntax.WordPart) string {
	if lit, ok := p.(*syntax.Lit); ok {
		return lit.Value
	}
	var b strings.Builder
	_ = syntax.NewPrinter().Print(&b, &syntax.Word{Parts: []syntax.WordPart{p}})
	if inner, ok := strings.CutPrefix(b.String(), "${"); ok {
		if name := strings.TrimSuffix(inner, "}"); syntax.ValidName(name) {
			return "$" + name
		}
	}
	return b.String()
}
