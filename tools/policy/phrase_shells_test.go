package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recorderScript stands in for a command. It appends its name and arguments to
// $TRACE.
const recorderScript = `#!/bin/sh
{ printf '%s\0' "$0" "$@"; printf '\036\0'; } >>"$TRACE"
`

// shellUnderTest is one real shell. Its trace lists the commands that it ran.
type shellUnderTest struct {
	name     string
	argv     []string
	builtins map[string]bool
}

// findShells returns the installed shells that can run a static phrase, and the
// names of the missing ones.
func findShells(t testing.TB) (found []shellUnderTest, missing []string) {
	t.Helper()
	for _, s := range []struct {
		name string
		argv []string
		list string // prints the names of builtins
	}{
		{"bash", []string{"bash", "-c", "--"}, "compgen -b"},
		{"bash --posix", []string{"bash", "--posix", "-c", "--"}, "compgen -b"},
		{"dash", []string{"dash", "-c", "--"}, ""},
		{"busybox sh", []string{"busybox", "sh", "-c", "--"}, "help"},
	} {
		program, err := exec.LookPath(s.argv[0])
		if err != nil {
			missing = append(missing, s.name)
			continue
		}
		shell := shellUnderTest{name: s.name, argv: append([]string{program}, s.argv[1:]...), builtins: map[string]bool{}}
		// The builtins of dash, which can't list them, and of POSIX.
		for name := range strings.FieldsSeq(`. : [ alias bg break cd chdir command continue echo eval exec exit export false fc fg
			getopts hash jobs kill local printf pwd read readonly return set shift test times trap true type ulimit umask unalias unset wait`) {
			shell.builtins[name] = true
		}
		if s.list != "" {
			out, err := exec.Command(shell.argv[0], slices.Concat(shell.argv[1:], []string{s.list})...).Output()
			if err != nil {
				t.Fatalf("list builtins of %s: %v", s.name, err)
			}
			for name := range strings.FieldsSeq(string(out)) {
				shell.builtins[name] = true
			}
		}
		found = append(found, shell)
	}
	return found, missing
}

// shellTrial is a directory in which shells run commands that only record
// themselves.
type shellTrial struct{ bin, work, trace string }

func newShellTrial(t testing.TB) *shellTrial {
	t.Helper()
	root := t.TempDir()
	return &shellTrial{filepath.Join(root, "bin"), filepath.Join(root, "work"), filepath.Join(root, "trace")}
}

// errNoRecorder means that no file can have the command's name.
var errNoRecorder = errors.New("no recorder can have this name")

// run runs a command with a shell in an empty directory where name is a recorder.
// It returns the commands that ran, as words.
func (s *shellTrial) run(shell shellUnderTest, command, name string, locale string) ([][]string, error) {
	for _, dir := range []string{s.work, s.bin} {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(s.trace, nil, 0o600); err != nil {
		return nil, err
	}
	for _, name := range []string{name, "id", "run.sh", "./run.sh"} {
		if err := s.install(name); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell.argv[0], slices.Concat(shell.argv[1:], []string{command})...)
	cmd.Dir = s.work
	cmd.Env = []string{"PATH=" + s.bin, "TRACE=" + s.trace, "HOME=" + s.work, "LC_ALL=" + locale}
	if err := cmd.Run(); err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%s did not end: %w", shell.name, ctx.Err())
	}
	trace, err := os.ReadFile(s.trace)
	if err != nil {
		return nil, err
	}
	var ran [][]string
	for record := range bytes.SplitSeq(trace, []byte("\036\000")) {
		if len(record) == 0 {
			continue
		}
		words := strings.Split(strings.TrimSuffix(string(record), "\000"), "\000")
		words[0] = strings.TrimPrefix(words[0], s.bin+"/")
		ran = append(ran, words)
	}
	return ran, nil
}

// install makes a recorder: on PATH, or below the working directory if the name has
// a slash.
func (s *shellTrial) install(name string) error {
	at := filepath.Join(s.bin, name)
	if strings.Contains(name, "/") {
		at = filepath.Join(s.work, name)
	}
	base := name[strings.LastIndexByte(name, '/')+1:]
	if !filepath.IsLocal(name) || base == "" || base == "." || base == ".." || len(name) > 200 {
		return errNoRecorder
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	err := os.WriteFile(at, []byte(recorderScript), 0o755) //nolint:gosec // a program
	if errors.Is(err, syscall.EISDIR) {                    // of another recorder
		return errNoRecorder
	}
	return err
}

// phraseWords splits a phrase of StaticPhrase, which has only plain words and two
// kinds of quotes.
func phraseWords(phrase string) []string {
	var words []string
	for phrase != "" {
		var word string
		switch q := phrase[:1]; q {
		case "'", `"`:
			word, phrase, _ = strings.Cut(phrase[1:], q)
			phrase = strings.TrimPrefix(phrase, " ")
		default:
			word, phrase, _ = strings.Cut(phrase, " ")
		}
		words = append(words, word)
	}
	return words
}

func staticAndWords(command string) ([]string, bool) {
	phrase, err := StaticPhrase(command)
	if err != nil {
		return nil, false
	}
	return phraseWords(phrase), true
}

// checkStatic compares the words that a matcher returns for a command with the
// words that shells run. difference is "" if they agree. compared is false if the
// matcher refuses the command or no recorder can have its name.
func (s *shellTrial) checkStatic(shells []shellUnderTest, matcher func(string) ([]string, bool), command string) (difference string, compared bool, err error) {
	words, ok := matcher(command)
	if !ok || strings.ContainsRune(command, 0) {
		return "", false, nil
	}
	for _, shell := range shells {
		for _, locale := range []string{"C", "C.UTF-8"} {
			ran, err := s.run(shell, command, words[0], locale)
			if errors.Is(err, errNoRecorder) {
				return "", compared, nil
			}
			if err != nil {
				return "", compared, err
			}
			compared = true
			want := [][]string{words}
			if shell.builtins[words[0]] {
				want = nil
			}
			if !slices.EqualFunc(ran, want, slices.Equal[[]string]) {
				return fmt.Sprintf("%s (%s) runs %q for %q, whose phrase says %q", shell.name, locale, ran, command, want), true, nil
			}
		}
	}
	return "", compared, nil
}

// shellSeeds are commands about which parsers disagree, or might.
func shellSeeds() []string {
	return []string{
		"cat \\\r\n./run.sh", "cat \\\r./run.sh", "cat\r\n./run.sh", "cat x\r", "cat\v./run.sh", "cat\f./run.sh", "cat \x00\n./run.sh", "cat \x01", "cat x\x7f", "cat\t'x\ty'",
		"cat\u00a0run.sh", "cat\u3000run.sh", "cat \u2003x", "cat \x85x", "cat \xa0x", "cat \ufeffx", "cat 'a\u00a0b'", "cat é", "é=b cat x", "\xe9=b cat",
		"git status", "run.sh/x", "git 'a b' \"c d\"", "git ''", "git '' \"\"", "git a'b'\"c\"d", "''git x", "git 'it'\"'\"'s'", "git a#b", "git #b", "git x #\\", "git x;", "git x ;", "git x;#",
		"git !x", "git !!", "git \"!x\"", "! git", "!git x", "git ^a^b", "git %1", "%1 x", "%git", "git x=~", "git a=b", "git a:~", "git -x", "git --", "-- git", "git +(a)", "git @(a|b)", "git a!(b)",
		"git {a,b}", "git {a..c}", "git a{b", "git }", "git {", "git ~", "git ~root", "git *", "git ?", "git [a]", "git [", "git ]", "[ a ]", "[[ a ]]",
		"git $'a'", "git $\"a\"", "git$\"\"", "git $\"\"", "git $", "git a$", "git \"$\"", "git \"a$\"", "git '$x'", "git \"\\a\"", "git '\\a'", "git `id`", "git \"`id`\"", "git $(id)", "git <(id)", "git >(id)",
		"git &>x", "git &>>x", "git >&x", "git 2>&1", "git <<x\nid\nx", "git <<<x", "git {fd}>x", "git |& id", "git ;; id", "git & id", "git || id", "git\\\nid", "git \\\n x", "git 'a\nb'", "git \"a\\\nb\"",
		"function git", "function git id", "select git", "time git", "coproc git", "coproc git id", "let x", "declare x", "typeset x", "export x", "local x", "readonly x=y", "alias git=id", "until git", "then git", "\"\"function x", "'if' x", "'time' x", "i''n x", "in git", "do git", "esac", "done",
		"a=b git", "a+=b git", "a[1]=b git", "1a=b git", "a-b=c git", "'a'=b git", "a'b'=c git", "a=(b) git", "git a=(b)", "test -v 'a[$(./run.sh)]'", "printf -v 'a[$(./run.sh)]' x", "unset 'a[$(./run.sh)]'", "test 'a[$(./run.sh)]' -eq 1",
		"read 'a[$(./run.sh)]'", "wait -p 'a[$(./run.sh)]'", "compgen -C ./run.sh", "jobs -x ./run.sh", "trap ./run.sh EXIT", "builtin eval ./run.sh", "getopts a 'b[$(./run.sh)]'", "let 'a[$(./run.sh)]'", "local 'a[$(./run.sh)]'",
	}
}

// shellTokens are the words that the fuzzer combines, besides bytes.
var shellTokens = slices.Concat(strings.Split(" |\t|\n|\r|\r\n|\\|\\\r\n|\\\n|'|\"|'a b'|\"a b\"|;|&|<|>|(|)|$|`|#|!|=|+=|~|*|?|[|]|{|}|^|%|:|,|.|./|-|--|\v|\f|\x01|\x1b|\x7f|\u00a0|\u3000|\u2003|\u0085|é|語|\xa0|\xe9|\x85", "|"),
	[]string{"|", "||", "&&", "git", "cat", "x", "1", "a=b", "./run.sh", "run.sh", "id", "echo", "test", "time", "function", "coproc", "select", "[[", "]]", "((", "$'", "$\"", "${x}", "<<<", "<<x", "@(", "!(", "..", " 'a[$(id)]' "})

// FuzzStaticPhraseInShells compares StaticPhrase's view of a command with what real
// shells run.
func FuzzStaticPhraseInShells(f *testing.F) {
	shells, missing := findShells(f)
	f.Logf("shells that are missing here: %d %q", len(missing), missing)
	if len(shells) == 0 {
		f.Skip("no shell")
	}
	for _, s := range shellSeeds() {
		f.Add(s)
	}
	trial := newShellTrial(f)
	f.Fuzz(func(t *testing.T, s string) {
		var tokens strings.Builder
		for _, b := range []byte(s) {
			tokens.WriteString(shellTokens[int(b)%len(shellTokens)])
		}
		for _, command := range []string{s, tokens.String()} {
			difference, _, err := trial.checkStatic(shells, staticAndWords, command)
			if err != nil {
				t.Fatal(err)
			}
			if difference != "" {
				t.Error(difference)
			}
		}
	})
}

// TestStaticPhraseInShells runs the fuzzer's seeds. The control is a matcher that
// trusts the parser alone: the shells run something else.
func TestStaticPhraseInShells(t *testing.T) {
	shells, missing := findShells(t)
	t.Logf("shells that are missing here: %d %q", len(missing), missing)
	if len(shells) == 0 {
		t.Skip("no shell")
	}
	trial := newShellTrial(t)
	trusting := func(command string) ([]string, bool) {
		words, err := parseStatic(command)
		return words, err == nil
	}
	static, fooled := 0, 0
	for _, command := range shellSeeds() {
		difference, compared, err := trial.checkStatic(shells, staticAndWords, command)
		if err != nil {
			t.Fatal(err)
		}
		if difference != "" {
			t.Error(difference)
		}
		if compared {
			static++
			continue
		}
		difference, _, err = trial.checkStatic(shells[:1], trusting, command)
		if err != nil {
			t.Fatal(err)
		}
		if difference != "" {
			fooled++
		}
	}
	if static < 10 {
		t.Errorf("only %d of the commands were run: they show little", static)
	}
	if fooled < 2 {
		t.Errorf("the parser alone is wrong about %d of the commands: they show little", fooled)
	}
}
