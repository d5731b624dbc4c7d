package policy

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// maxPhraseBytes bounds a command that a lasting approval can name.
const maxPhraseBytes = 1 << 10

// maxShownPhrase bounds the part of a command that an error shows.
const maxShownPhrase = 200

// StaticPhrase returns the one form of a shell command that a lasting approval
// can be bound to: a single command of literal words, joined by single spaces
// with what needs it quoted. It fails, with the reason, for anything whose
// meaning is decided when it runs, or that can run something else: compounds,
// pipes, redirections, substitutions, variables, globs, assignments, and flags
// that execute (-c, -exec, --pre, …).
func StaticPhrase(command string) (string, error) {
	if len(command) > maxPhraseBytes {
		return "", fmt.Errorf("command is %d bytes, at most %d can be approved for good", len(command), maxPhraseBytes)
	}
	// Shells and parsers read control characters, line ends and blanks of other
	// scripts differently. A newline or a tab is no exception.
	if safe, _ := tools.Display(command); safe != command {
		return "", fmt.Errorf("command %s holds a control character, or one that is not visible", utf8text.Clip(safe, maxShownPhrase))
	}
	words, err := parseStatic(command)
	if err != nil {
		return "", err
	}
	for _, w := range words[1:] {
		if isExecFlag(w) {
			return "", fmt.Errorf("flag %q can run another command", w)
		}
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quoteWord(w)
	}
	phrase := strings.Join(quoted, " ")
	// Differs where a word is of the shell's grammar, or mixes quotes.
	if again, _ := parseStatic(phrase); !slices.Equal(again, words) {
		return "", fmt.Errorf("%s is not the same words when it is read again", phrase)
	}
	return phrase, nil
}

// parseStatic returns the words of a single plain command, going by the parser
// alone. The shells agree with it only where every character is visible.
func parseStatic(command string) ([]string, error) {
	stmt, err := parseSingle(command)
	if err != nil {
		return nil, err
	}
	return staticWords(stmt)
}

// parseSingle returns the only command of a script.
func parseSingle(command string) (*syntax.Stmt, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(command), "")
	if err != nil {
		return nil, fmt.Errorf("command can't be parsed: %w", err)
	}
	if len(file.Stmts) != 1 {
		return nil, errors.New("not a single command")
	}
	return file.Stmts[0], nil
}

// staticWords returns the words of a plain command that runs no other one, all literal.
func staticWords(stmt *syntax.Stmt) ([]string, error) {
	words, err := literalWords(stmt)
	if err != nil {
		return nil, err
	}
	if isRunner(words[0]) {
		return nil, fmt.Errorf("%s runs another command", words[0])
	}
	if runner := runnerSubcommand(words); runner != "" {
		return nil, fmt.Errorf("%s runs another command", runner)
	}
	return words, nil
}

// runnerSubcommand returns the subcommand of a command that runs others, "" for none.
func runnerSubcommand(words []string) string {
	for _, runner := range runnerSubcommands() {
		if path.Base(words[0]) == runner[0] && containsInOrder(words[1:], runner[1:]) {
			return strings.Join(runner, " ")
		}
	}
	return ""
}

// literalWords returns the words of a plain command, all literal.
func literalWords(stmt *syntax.Stmt) ([]string, error) {
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
		// Some builtins evaluate their arguments: test -v 'a[$(id)]' runs id.
		if strings.Contains(word, "$(") || strings.Contains(word, "${") || strings.Contains(word, "`") {
			return nil, fmt.Errorf("word %s holds a substitution, which some commands evaluate", word)
		}
		words[i] = word
	}
	// %1 is fg %1, what is a name before "=" depends on the locale, and "in" is
	// reserved in shells.
	if words[0] == "" || words[0] == "in" || strings.ContainsAny(words[0][:1], "-%") || strings.Contains(words[0], "=") {
		return nil, errors.New("command has no name")
	}
	return words, nil
}

// containsInOrder reports whether all of want are among words, in their order.
func containsInOrder(words, want []string) bool {
	for _, w := range words {
		if len(want) > 0 && w == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// staticWord returns a word's value if it has no part that is decided later:
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
			if part.Dollar {
				return "", errors.New("a word has $\"…\" quotes")
			}
			for _, inner := range part.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok || strings.Contains(lit.Value, "\\") {
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

// quoteWord quotes a word, if it needs quotes. A word that holds quotes of both
// kinds is not read back as the same.
func quoteWord(w string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+:,./-"
	switch {
	case w != "" && strings.Trim(w, plain) == "":
		return w
	case !strings.Contains(w, "'"):
		return "'" + w + "'"
	}
	return `"` + w + `"`
}

// isExecFlag reports whether a word is a flag with which some program runs another
// one, whichever program it is given to.
func isExecFlag(word string) bool {
	if !strings.HasPrefix(word, "-") {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	name = strings.ToLower(name)
	if slices.Contains([]string{
		"c", "e", "i", "x", "call", "command", "cmd", "compress-program", "config", "config-env", "config-file", "engine", "eval", "exec", "execdir", "exec-batch",
		"exec-path", "ext-diff", "extcmd", "fpre", "hook", "hostname-bin", "ok", "okdir", "pager", "plugin", "pre", "preprocessor", "print", "require",
		"receive-pack", "rsh", "rsync-path", "run", "script", "shell", "ssh-command", "textconv", "to-command", "toolexec", "unzip-command", "upload-pack",
		"use-askpass", "use-compress-program", "checkpoint-action", "vet", "vettool", "open-files-in-pager", "editor", "filter", "init-file", "rcfile", "wrapper",
	}, name) {
		return true
	}
	// Short flags may be joined, with each other or with their value.
	return strings.IndexAny(word[1:], "ceix") == 0
}

// isRunner reports whether a command, by any path, is one whose arguments are
// commands, or that reads them from somewhere else: "python3.12" is python.
func isRunner(name string) bool {
	name = path.Base(name)
	return runsOthers(name) || runsOthers(strings.TrimRight(name, "0123456789.-"))
}

// runsOthers are commands whose arguments are commands, that read them from
// somewhere else, or that change what later words mean.
func runsOthers(name string) bool {
	switch name {
	case ".", "alias", "ansible", "ash", "at", "awk", "bash", "batch", "bind", "builtin", "bun", "bunx", "busybox", "capsh", "catchsegv", "chronic", "chroot", "chrt",
		"command", "compgen", "complete", "concurrently", "cpulimit", "crontab", "csh", "dash", "dbus-run-session", "dc", "deno", "doas", "duckdb", "ed", "emacs",
		"enable", "entr", "env", "eval", "ex", "exec", "expect", "fakeroot", "fc", "find", "fish", "flock", "gawk", "gdb", "ghci", "gnuplot", "guile", "hash",
		"hyperfine", "ifne", "ionice", "ipython", "irb", "java", "julia", "just", "ksh", "ldd", "less", "linux32", "linux64", "lldb", "logsave", "ltrace", "lua",
		"luajit", "m4", "make", "man", "mapfile", "mariadb", "mawk", "mksh", "more", "mysql", "nawk", "nice", "ninja", "node", "nodejs", "nodemon", "nohup", "npx",
		"nsenter", "numactl", "nvim", "octave", "osascript", "parallel", "pee", "perf", "perl", "php", "pkexec", "prlimit", "proot", "psql", "pwsh", "pypy", "python",
		"rake", "readarray", "rlwrap", "Rscript", "ruby", "run-parts", "runcon", "runghc", "runuser", "scp", "screen", "script", "sed", "set", "setarch", "setpriv",
		"setsid", "sftp", "sg", "sh", "shopt", "socat", "source", "sqlite", "sqlite3", "ssh", "sshpass", "start-stop-daemon", "stdbuf", "strace", "su", "sudo",
		"systemd-run", "tar", "taskset", "tcl", "tclsh", "tcsh", "time", "timeout", "tmux", "toybox", "trap", "ts-node", "tsx", "unalias", "unbuffer", "unshare", "uvx",
		"valgrind", "vi", "view", "vim", "watch", "watchexec", "wish", "xargs", "xonsh", "xvfb-run", "yash", "zsh":
		return true
	}
	return false
}

// runnerSubcommands are subcommands that run others, of commands that do not.
func runnerSubcommands() [][]string {
	return [][]string{
		{"git", "bisect", "run"},
		{"git", "submodule", "foreach"},
		{"git", "filter-branch"},
		{"git", "difftool"},
		{"git", "mergetool"},
		{"go", "tool"},
		{"npm", "create"},
		{"npm", "exec"},
		{"npm", "explore"},
		{"npm", "init"},
		{"npm", "x"},
		{"pnpm", "create"},
		{"yarn", "create"},
		{"pnpm", "exec"},
		{"pnpm", "dlx"},
		{"yarn", "exec"},
		{"yarn", "dlx"},
		{"go", "generate"},
		{"ip", "exec"},
		{"docker", "run"},
		{"docker", "exec"},
		{"podman", "run"},
		{"podman", "exec"},
		{"kubectl", "exec"},
		{"rustup", "run"},
		{"cargo", "run"},
		{"go", "run"},
	}
}
