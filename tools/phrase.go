package tools

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// maxPhraseBytes bounds a command that a lasting approval can name.
const maxPhraseBytes = 1 << 10

// StaticPhrase gives the one form of a shell command that a lasting approval
// can be bound to: a single command of literal words, joined by single spaces
// with what needs it quoted. It fails, with the reason, for anything whose
// meaning is decided when it runs, or that can run something else: compounds,
// pipes, redirections, substitutions, variables, globs, assignments, and flags
// that execute (-c, -exec, --pre, …).
func StaticPhrase(command string) (string, error) {
	if len(command) > maxPhraseBytes {
		return "", fmt.Errorf("command is %d bytes, at most %d can be approved for good", len(command), maxPhraseBytes)
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
	if err != nil {
		return "", fmt.Errorf("command can't be parsed: %w", err)
	}
	if len(file.Stmts) != 1 || len(file.Last) > 0 {
		return "", errors.New("not a single command")
	}
	words, err := staticWords(file.Stmts[0])
	if err != nil {
		return "", err
	}
	for _, w := range words[1:] {
		if executes(w) {
			return "", fmt.Errorf("flag %q can run another command", w)
		}
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i], err = quoteWord(w); err != nil {
			return "", err
		}
	}
	return strings.Join(quoted, " "), nil
}

// staticWords gives the words of a plain command, all literal.
func staticWords(stmt *syntax.Stmt) ([]string, error) {
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	switch {
	case !ok || len(call.Args) == 0:
		return nil, errors.New("not a plain command")
	case stmt.Negated || stmt.Background || stmt.Coprocess || stmt.Disown || len(stmt.Redirs) > 0:
		return nil, errors.New("negated, in the background or redirected")
	case len(call.Assigns) > 0:
		return nil, errors.New("sets variables")
	}
	words := make([]string, len(call.Args))
	for i, arg := range call.Args {
		word, err := staticWord(arg)
		if err != nil {
			return nil, err
		}
		if safe, _ := Display(word); safe != word {
			return nil, fmt.Errorf("word %s holds what a person would not see", safe)
		}
		words[i] = word
	}
	if strings.HasPrefix(words[0], "-") || words[0] == "" {
		return nil, errors.New("command has no name")
	}
	if slices.Contains(runners(), words[0]) {
		return nil, fmt.Errorf("%s runs another command", words[0])
	}
	return words, nil
}

// staticWord gives a word's value where it has no part that is decided later:
// a literal without escapes, globs, braces or a tilde, or a quoted string.
func staticWord(w *syntax.Word) (string, error) {
	var b strings.Builder
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(part.Value, "*?[]{}~\\#") {
				return "", fmt.Errorf("word %q is expanded by the shell", part.Value)
			}
			b.WriteString(part.Value)
		case *syntax.SglQuoted:
			if part.Dollar {
				return "", errors.New("a word has $'…' quotes")
			}
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			for _, inner := range part.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok || part.Dollar || strings.Contains(lit.Value, "\\") {
					return "", errors.New("a quoted word is expanded by the shell")
				}
				b.WriteString(lit.Value)
			}
		default:
			return "", errors.New("a word is expanded by the shell")
		}
	}
	return b.String(), nil
}

// quoteWord writes a word so that StaticPhrase reads it back.
func quoteWord(w string) (string, error) {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+:,./-"
	switch {
	case w != "" && strings.Trim(w, plain) == "":
		return w, nil
	case !strings.Contains(w, "'"):
		return "'" + w + "'", nil
	case !strings.ContainsAny(w, "\"$`\\"):
		return `"` + w + `"`, nil
	}
	return "", fmt.Errorf("word %q mixes quotes", w)
}

// executes says whether a word is a flag with which some program runs another
// one, whichever program it is given to.
func executes(word string) bool {
	if !strings.HasPrefix(word, "-") {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	name = strings.ToLower(name)
	if slices.Contains([]string{
		"c", "e", "i", "x", "command", "cmd", "config", "config-env", "config-file", "eval", "exec", "execdir", "exec-batch",
		"exec-path", "extcmd", "fpre", "hook", "hostname-bin", "ok", "okdir", "pager", "plugin", "pre", "print", "require",
		"receive-pack", "rsh", "run", "shell", "ssh-command", "to-command", "toolexec", "upload-pack", "use-compress-program",
		"checkpoint-action", "vet", "vettool", "open-files-in-pager", "editor", "filter", "init-file", "rcfile",
	}, name) {
		return true
	}
	// Short flags may be joined, with each other or with their value.
	short := strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--")
	return short && len(word) > 2 && strings.ContainsAny(word[1:2], "ceix")
}

// runners are commands whose arguments are commands, or that read them from
// somewhere else.
func runners() []string {
	return []string{
		".", "awk", "bash", "builtin", "bun", "busybox", "chroot", "command", "dash", "deno", "doas", "env", "eval", "exec",
		"expect", "find", "flock", "gawk", "ionice", "ksh", "lua", "make", "mawk", "nice", "node", "nohup", "nsenter", "perl",
		"php", "python", "python3", "ruby", "script", "sed", "setarch", "setsid", "sh", "source", "ssh", "stdbuf", "strace",
		"su", "sudo", "tar", "tcl", "tclsh", "time", "timeout", "trap", "unshare", "vi", "vim", "watch", "xargs", "zsh",
	}
}
