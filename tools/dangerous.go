package tools

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Dangerous-command patterns are for people, not a boundary: what they miss the
// sandbox holds, and a command that wants to get past them does. A pattern is
// the name of a command and what must be among its arguments, in any order:
//
//	rm -r|-R|--recursive /     each word must be there; "|" parts alternatives
//	mkfs*                      "*" stands for anything, "\*" for a star
//	> /dev/sd*                 what is written to by a redirection
//
// A single-letter flag is found in a cluster too (-r in -rf), a long one with
// its value (--force in --force=x). Words are compared as they are parsed: quotes
// are gone, and a word that the shell would expand is compared as it is written.
// One that holds a slash is compared in its shortest spelling as well: // and /x/..
// are /.

// maxDangerousBytes bounds the command that is looked at; a longer one counts
// as dangerous. The parser takes 64 MiB of stack for the worst 16 KiB.
const maxDangerousBytes = 16 << 10

// maxFoundBytes bounds what is shown of a dangerous command.
const maxFoundBytes = 120

// maxDangerousDepth bounds scripts in the arguments of sh -c and eval.
const maxDangerousDepth = 4

// DangerousCommands are the built-in patterns: what destroys more than a
// project's own files, or work that nothing brings back.
func DangerousCommands() []string {
	const device = `/dev/sd*|/dev/hd*|/dev/vd*|/dev/xvd*|/dev/nvme*|/dev/mmcblk*|/dev/mapper/*|/dev/disk/*|/dev/mem|/dev/kmem`
	return []string{
		`rm -r|-R|--recursive /|/\*|~|~/|~/\*|$HOME|$HOME/|$HOME/\*|.|./|..|../|\*|./\*|.git|.git/|/workspace|/workspace/|/workspace/\*`,
		`rm --no-preserve-root`,
		`find -delete`,
		`mkfs*`, `mke2fs`, `mkswap`, `wipefs`, `shred`, `blkdiscard`,
		`dd if=*`, `dd of=` + strings.ReplaceAll(device, "|", "|of="),
		`> ` + device,
		`chmod|chown|chgrp -R|--recursive /|/\*|~|~/|$HOME`,
		`git push -f|--force|--force-with-lease|--mirror|--delete|+*`,
		`git reset --hard`,
		`git clean -f|--force`,
		`shutdown`, `reboot`, `halt`, `poweroff`,
	}
}

// raise makes a dangerous command asked about, each time, where somebody can be
// asked; where nobody can, it runs as the policy says, and a warning tells of it.
func (r *round) raise(p *pending, v Verdict) Verdict {
	if p.tool.def.Commands == nil || v.Mode != ModeAuto && v.Mode != ModePromptOnce && v.Mode != ModePrompt {
		return v
	}
	for _, command := range p.tool.def.Commands(p.call.Input) {
		if p.dangerous, _ = Display(dangerIn(r.d.danger, command)); p.dangerous != "" {
			break
		}
	}
	switch {
	case p.dangerous == "" || v.Mode == ModePrompt:
		return v
	case r.d.opts.Broker != nil && !r.d.opts.Policy.NoPrompts:
		return Verdict{ModePrompt, "dangerous command " + p.dangerous + ", " + v.Rule}
	case v.Mode == ModeAuto:
		r.warn(p, fmt.Sprintf("a command that is called dangerous ran without an answer, because nobody can be asked: %s", p.dangerous))
	}
	return v
}

// dangerPattern is one pattern, parsed: the alternatives of each word.
type dangerPattern struct{ words [][]globPattern }

// parseDangerous parses patterns; the error names the one that is none.
func parseDangerous(patterns []string) ([]dangerPattern, error) {
	parsed := make([]dangerPattern, 0, len(patterns))
	for _, text := range patterns {
		var p dangerPattern
		for word := range strings.FieldsSeq(text) {
			var alternatives []globPattern
			for a := range strings.SplitSeq(word, "|") {
				alternatives = append(alternatives, parseGlob(a))
			}
			p.words = append(p.words, alternatives)
		}
		switch {
		case len(text) > 1<<10:
			return nil, fmt.Errorf("dangerous command pattern %q…: longer than 1024 bytes", text[:40])
		case len(p.words) == 0:
			return nil, errors.New("dangerous command pattern is empty")
		case slices.ContainsFunc(p.words, func(alternatives []globPattern) bool {
			return slices.ContainsFunc(alternatives, func(g globPattern) bool { return g.text == "" })
		}):
			return nil, fmt.Errorf("dangerous command pattern %q: an alternative is empty", text)
		case p.words[0][0].text == ">" && len(p.words) != 2:
			return nil, fmt.Errorf("dangerous command pattern %q: one word must follow >", text)
		}
		parsed = append(parsed, p)
	}
	return parsed, nil
}

// dangerIn gives the first command of a script that matches a pattern, for
// people and not made safe; "" where none does.
func dangerIn(patterns []dangerPattern, script string) string {
	if len(patterns) == 0 {
		return ""
	}
	if len(script) > maxDangerousBytes {
		return fmt.Sprintf("a command of more than %d bytes", maxDangerousBytes)
	}
	s := dangerSearch{patterns: patterns}
	s.script(script, 0)
	return s.found
}

// dangerSearch goes through one script.
type dangerSearch struct {
	patterns []dangerPattern
	found    string
}

func (s *dangerSearch) script(text string, depth int) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if file == nil || err != nil && len(file.Stmts) == 0 {
		return // the shell won't run it either
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if s.found != "" {
			return false
		}
		switch n := n.(type) {
		case *syntax.Redirect:
			if n.Word != nil && strings.Contains(n.Op.String(), ">") {
				s.match(">", []string{wordText(n.Word)})
			}
		case *syntax.CallExpr:
			words := make([]string, len(n.Args))
			for i, w := range n.Args {
				words[i] = wordText(w)
			}
			s.call(words, depth)
		}
		return true
	})
}

// call looks at one command, at those that it would run, and at scripts among
// its arguments.
func (s *dangerSearch) call(words []string, depth int) {
	if len(words) == 0 {
		return
	}
	name := path.Base(words[0])
	s.match(name, words[1:])
	switch name {
	case "sh", "bash", "dash", "zsh", "ksh", "busybox", "eval", "su", "ssh":
		for _, w := range words[1:] {
			if depth < maxDangerousDepth {
				s.script(w, depth+1)
			}
		}
	}
	if isRunner(name) {
		for i := range words[1:] {
			s.match(path.Base(words[i+1]), words[i+2:])
		}
	}
}

func (s *dangerSearch) match(name string, args []string) {
	for _, p := range s.patterns {
		if s.found == "" && p.matches(name, args) {
			s.found = clip(strings.TrimSpace(name+" "+strings.Join(args, " ")), maxFoundBytes)
		}
	}
}

func (p dangerPattern) matches(name string, args []string) bool {
	if !anyGlob(p.words[0], name) {
		return false
	}
	for _, alternatives := range p.words[1:] {
		if !slices.ContainsFunc(args, func(arg string) bool { return argMatches(alternatives, arg) }) {
			return false
		}
	}
	return true
}

func argMatches(alternatives []globPattern, arg string) bool {
	short := arg
	if strings.Contains(arg, "/") {
		short = path.Clean(arg)
	}
	for _, a := range alternatives {
		switch {
		case a.match(arg), a.match(short):
			return true
		case strings.HasPrefix(a.text, "--") && len(arg) > len(a.text) && arg[len(a.text)] == '=' && strings.HasPrefix(arg, a.text):
			return true
		case len(a.text) == 2 && a.text[0] == '-' && a.text[1] != '-' && len(arg) > 2 && arg[0] == '-' && arg[1] != '-' && strings.IndexByte(arg, a.text[1]) > 0:
			return true
		}
	}
	return false
}

func anyGlob(patterns []globPattern, s string) bool {
	return slices.ContainsFunc(patterns, func(g globPattern) bool { return g.match(s) })
}

// globPattern matches a whole text: between its parts anything may stand.
type globPattern struct {
	text  string // as it was written
	parts []string
}

// parseGlob reads a pattern: "*" is any text, a backslash takes the next
// character as it is.
func parseGlob(text string) globPattern {
	g := globPattern{text: text, parts: []string{""}}
	for i := 0; i < len(text); i++ {
		last := len(g.parts) - 1
		switch c := text[i]; {
		case c == '*':
			g.parts = append(g.parts, "")
			continue
		case c == '\\' && i+1 < len(text):
			i++
		}
		g.parts[last] += text[i : i+1]
	}
	return g
}

func (g globPattern) match(s string) bool {
	first, last := g.parts[0], g.parts[len(g.parts)-1]
	if len(g.parts) == 1 {
		return s == first
	}
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range g.parts[1 : len(g.parts)-1] {
		_, rest, found := strings.Cut(s, part)
		if !found {
			return false
		}
		s = rest
	}
	return true
}

// wordText is a word without its quotes where nothing in it is expanded, and
// otherwise as it is written.
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
	return b.String()
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
