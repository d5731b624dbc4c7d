package policy

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// maxDangerousSteps bounds the commands and scripts searched in one command: each
// word after sudo or xargs may be one. A command with more counts as dangerous.
const maxDangerousSteps = 1000

// maxRunnerWords bounds how many words after sudo, env or xargs may begin a
// command.
const maxRunnerWords = 64

// dangerIn returns the first command in a script that matches a pattern, not made
// safe for display, or "".
func dangerIn(patterns []dangerPattern, script string) string {
	if len(patterns) == 0 {
		return ""
	}
	if len(script) > maxDangerousBytes {
		return fmt.Sprintf("a command of more than %d bytes", maxDangerousBytes)
	}
	s := newDangerSearch(patterns)
	s.searchScript(script, 0)
	return s.found
}

func newDangerSearch(patterns []dangerPattern) dangerSearch {
	return dangerSearch{match: func(name string, args, shown []string) string {
		return matchPatterns(patterns, name, args, shown)
	}}
}

type dangerSearch struct {
	// match returns how to show a command that matches, or "". A redirection is the
	// command ">". shown are the arguments as people know them; nil means args.
	match func(name string, args, shown []string) string
	// hidden also searches what [hiddenScripts] finds, and calls match for each
	// declaration and each assignment to a part of a variable: the command "=".
	hidden bool
	// most bounds the steps; 0 means maxDangerousSteps.
	most  int
	steps int
	found string
}

// countStep counts a searched command. It reports whether the search goes on.
func (s *dangerSearch) countStep() bool {
	most := cmp.Or(s.most, maxDangerousSteps)
	if s.steps++; s.steps > most && s.found == "" {
		s.found = fmt.Sprintf("a command in which more than %d could be meant", most)
	}
	return s.found == ""
}

func (s *dangerSearch) searchScript(text string, depth int) {
	if !s.countStep() || depth > maxDangerousDepth {
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(markControls(text)), "")
	if err != nil && strings.Contains(text, "\n") {
		// The shell runs a line before it reads the next one, and may accept what
		// the parser refuses.
		for line := range strings.SplitSeq(text, "\n") {
			s.searchScript(line, depth+1)
		}
	}
	syntax.Walk(file, func(n syntax.Node) bool { // the part before an error
		if s.found != "" {
			return false
		}
		if s.hidden {
			for _, script := range hiddenScripts(n) {
				s.searchScript(script, depth+1)
			}
		}
		switch n := n.(type) {
		case *syntax.Assign:
			if s.hidden && s.found == "" && n.Name != nil && (n.Index != nil || n.Array != nil) {
				s.found = s.match("=", []string{n.Name.Value}, nil)
			}
		case *syntax.DeclClause:
			if s.hidden && s.found == "" {
				s.found = s.match(n.Variant.Value, namesDeclared(n), nil)
			}
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

// namesDeclared returns the words of a declaration that are no assignments: options,
// names and expansions. If it declares references (-n), it adds the names that they
// refer to.
func namesDeclared(d *syntax.DeclClause) (words []string) {
	references := false
	for _, a := range d.Args {
		switch {
		case a.Name == nil && a.Value != nil:
			word := wordText(a.Value)
			words = append(words, word)
			references = references || isCluster(word) && strings.Contains(word, "n")
		case a.Naked && a.Name != nil:
			words = append(words, a.Name.Value)
		case references && a.Value != nil:
			words = append(words, wordText(a.Value))
		}
	}
	return words
}

// controlMark replaces control characters that the parser treats specially but
// shells don't: it drops NUL, and a carriage return before a newline. No script
// contains the mark.
const controlMark = '\U000f0000'

// markControls marks control characters, except newlines and tabs, and invalid
// UTF-8.
func markControls(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == utf8.RuneError {
			return controlMark
		}
		return r
	}, text)
}

// searchInput searches scripts that a shell reads from here-documents.
func (s *dangerSearch) searchInput(stmt *syntax.Stmt, depth int) {
	for _, script := range inputScripts(stmt) {
		s.searchScript(script, depth+1)
	}
}

// inputScripts returns a command's here-documents if a shell is among its words.
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

// searchCall searches one command, and the commands that it would run.
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

// searchCommand searches one command, and scripts among its arguments.
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

// takesNames reports whether a command runs others but has arguments that name
// something else: man reboot, make mkfs.
func takesNames(name string) bool {
	return slices.Contains([]string{"alias", "crontab", "ed", "emacs", "ex", "hash", "less", "make", "man", "more", "ninja", "nvim", "vi", "view", "vim"}, name)
}

// takesScripts reports whether a command's arguments or input are shell scripts.
func takesScripts(name string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox", "eval", "su", "ssh", "env", "watch", "flock", "script", "parallel", "trap", "compgen", "complete", "mapfile", "readarray"}, name)
}

// gitSubcommand returns git's words from the subcommand on. git(1) has options
// before it, some with a separate value.
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

// matchPatterns returns the command for people if one of the patterns matches it,
// else "".
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

// wordText returns a word without quotes and control characters. Expansions are as
// written.
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

// partText returns a part as written, but ${HOME} as $HOME.
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
