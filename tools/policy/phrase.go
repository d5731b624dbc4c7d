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

const maxShownPhrase = 200

// StaticPhrase returns the one form of a shell command that a lasting approval can
// be bound to: a single command of literal words, joined by single spaces and
// quoted where needed. It returns an error for anything whose meaning is decided
// when it runs, or that can run something else: compounds, pipes, redirections,
// substitutions, variables, globs, assignments, and flags that execute (-c, -exec,
// --pre, …).
func StaticPhrase(command string) (string, error) {
	if len(command) > maxPhraseBytes {
		return "", fmt.Errorf("command is %d bytes, at most %d can be approved for good", len(command), maxPhraseBytes)
	}
	// Shells and parsers disagree about control characters, line ends and blanks of
	// other scripts, including newlines and tabs.
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
	// The words differ if one belongs to the shell's grammar, or mixes quotes.
	if again, _ := parseStatic(phrase); !slices.Equal(again, words) {
		return "", fmt.Errorf("%s is not the same words when it is read again", phrase)
	}
	return phrase, nil
}

// parseStatic returns the literal words of a single plain command that runs no other
// one, as the parser sees them. Shells agree with it only if every character is
// visible.
func parseStatic(command string) ([]string, error) {
	words, err := literalWords(command)
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

// runnerSubcommand returns the subcommand in words that runs others, or "".
func runnerSubcommand(words []string) string {
	for _, runner := range runnerSubcommands() {
		if path.Base(words[0]) == runner[0] && containsInOrder(words[1:], runner[1:]) {
			return strings.Join(runner, " ")
		}
	}
	return ""
}

// literalWords returns the words of a single plain command. All must be literal.
func literalWords(command string) ([]string, error) {
	stmt, err := parseSingle(command)
	if err != nil {
		return nil, err
	}
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
	// %1 is fg %1, the locale decides which characters form a name before "=", and
	// "in" is reserved in shells.
	if words[0] == "" || words[0] == "in" || strings.ContainsAny(words[0][:1], "-%") || strings.Contains(words[0], "=") {
		return nil, errors.New("command has no name")
	}
	return words, nil
}

// containsInOrder reports whether words contain all of want, in order.
func containsInOrder(words, want []string) bool {
	for _, w := range words {
		if len(want) > 0 && w == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// staticWord returns a word's value if no part is decided later: a literal without
// escapes, globs, braces or a tilde, or a quoted string.
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

// quoteWord quotes a word if necessary. The result is wrong for a word with both
// kinds of quotes; callers check.
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

// isExecFlag reports whether some program runs another one with this flag. It
// doesn't look at the program.
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
	// Short flags may be joined with each other or with a value.
	return strings.IndexAny(word[1:], "ceix") == 0
}

// isRunner is runsOthers for a name with any path or version: "python3.12" is
// python.
func isRunner(name string) bool {
	name = path.Base(name)
	return runsOthers(name) || runsOthers(strings.TrimRight(name, "0123456789.-"))
}

// runsOthers reports whether a command's arguments are commands, or it reads
// commands from elsewhere, or changes what later words mean.
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

// runnerSubcommands lists subcommands that run others, of commands that don't.
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
