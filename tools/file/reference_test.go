package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// reference does searches without optimization: one entry after another, every line
// by the regular expression alone.
type reference struct {
	f     *fixture
	rules map[string][]ignoreRule
}

// walk visits what a search from the workspace looks at.
func (r *reference) walk(ignored bool, visit func(e workspace.Entry)) {
	r.rules = map[string][]ignoreRule{}
	enter := func(dir string) {
		rules := slices.Clip(r.rules[path.Dir(dir)])
		var domain []string
		if dir != "." {
			domain = strings.Split(dir, "/")
		}
		f, _ := r.f.reader.ReadFile(context.Background(), path.Join(dir, ".gitignore"), 0, 0)
		for line := range strings.Lines(string(f.Data)) {
			if line = strings.TrimRight(line, "\r\n"); line != "" && line[0] != '#' {
				ofPath := strings.Contains(strings.TrimSuffix(line, "/"), "/")
				from := domain
				if !ofPath {
					from = nil
				}
				rules = append(rules, ignoreRule{gitignore.ParsePattern(line, from), ofPath})
			}
		}
		r.rules[dir] = rules
	}
	enter(".")
	list, err := r.f.reader.List(context.Background(), ".", workspace.DefaultMaxDepth)
	r.f.must(err)
	left := "" // a directory that is left out, with a slash
	for _, e := range list.Entries {
		if left != "" && strings.HasPrefix(e.Path, left) {
			continue
		}
		isDir := e.Type == workspace.TypeDir
		skip := path.Base(e.Path) == ".git"
		for _, rule := range r.rules[path.Dir(e.Path)] {
			names := strings.Split(e.Path, "/")
			if !rule.ofPath {
				names = names[len(names)-1:]
			}
			if got := rule.Match(names, isDir); got != gitignore.NoMatch && path.Base(e.Path) != ".git" {
				skip = got == gitignore.Exclude
			}
		}
		switch {
		case skip && !ignored && isDir:
			left = e.Path + "/"
		case skip && !ignored:
		case isDir:
			enter(e.Path)
		default:
			visit(e)
		}
	}
}

func (r *reference) glob(pattern string, ignored bool) string {
	var b strings.Builder
	r.walk(ignored, func(e workspace.Entry) {
		name := e.Path
		if !strings.Contains(pattern, "/") {
			name = path.Base(name)
		}
		if doublestar.MatchUnvalidated(pattern, name) {
			b.WriteString(shown(e.Path) + "\n")
		}
	})
	if b.Len() == 0 {
		return "[no files match]\n"
	}
	return b.String()
}

func (r *reference) grep(in grepInput, most int) string {
	re, err := in.compilePattern()
	r.f.must(err)
	var b strings.Builder
	found, more := 0, false
	r.walk(in.NoIgnore, func(e workspace.Entry) {
		if e.Type != workspace.TypeFile || more {
			return
		}
		f, err := r.f.reader.ReadFile(context.Background(), e.Path, 0, 0)
		r.f.must(err)
		if bytes.IndexByte(f.Data[:min(len(f.Data), sampleBytes)], 0) >= 0 {
			return
		}
		number := 0
		for line := range bytes.Lines(f.Data) {
			number++
			line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'})
			at := re.FindIndex(line)
			if at == nil {
				continue
			}
			if found == most {
				more = true
				return
			}
			found++
			fmt.Fprintf(&b, "%s:%d: %s\n", shown(e.Path), number, snippet(line, at))
		}
	})
	if found == 0 {
		b.WriteString("[no matches]\n")
	}
	if more {
		fmt.Fprintf(&b, "[%s shown, there are more: narrow the pattern, the path or the glob]\n", limits.FormatCount(found, "match"))
	}
	return b.String()
}

// Pieces that files, patterns and names are made of.
var (
	words    = rapid.SampledFrom([]string{"foo", "Foo", "FOO", "bar", "K", "\u212a", "s", "\u017f", "İ", "i", "é", "É", "\xff", "\n", "\r\n", "\n\n", " ", "a.b", strings.Repeat("x", 400)})
	patterns = rapid.SampledFrom([]string{
		"foo", "Foo|bar", "(foo|bar)+", "fo+", "^foo", "foo$", "foo bar", "[fF]oo", "f.o", "o{2}", "k", "s", "i", "é", "a\\.b", "x{200}", ".", "", "\\bfoo\\b",
		"foo\n", "foo\\s*bar", "(?:foo)?bar", "foo|", "K|s", "\uFFFD", "ſoo", "x*foo", "oo.*ba", "(?i)FOO", "(?i:b)ar", "fook", "sk",
	})
	names = rapid.SampledFrom([]string{"a", "b.go", "c", "f49.go", "foo.txt", "build", ".git", ".x"})
	globs = rapid.SampledFrom([]string{
		"*.go", "**/*.go", "**/f49.go", "a/**", "a/*/f49.go", "**/a/**/b.go", "**", "*", "**/*", "{a,b}/*", "**/{b,f49}.go", "**/[bf]*.go", "a/**/*", "b.go", "a/b.go", "**/a/*", "?", "**/?.go",
	})
	ignoreLines = rapid.SampledFrom([]string{"build/", "*.go", "!b.go", "/c", "a/b.go", "foo.*", "**/a", "!*/", "**", "#x", "\\#", " ", "a/", ".git"})
)

// TestSearchesAreAsBefore: on any tree grep and glob return the results of the
// reference implementation.
func TestSearchesAreAsBefore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		dirs := []string{""}
		for range rapid.IntRange(0, 25).Draw(rt, "entries") {
			name := path.Join(rapid.SampledFrom(dirs).Draw(rt, "parent"), names.Draw(rt, "name"))
			if _, err := os.Lstat(filepath.Join(f.root, name)); err == nil {
				continue
			}
			switch rapid.IntRange(0, 6).Draw(rt, "type") {
			case 0, 1:
				f.must(os.Mkdir(filepath.Join(f.root, name), 0o755))
				dirs = append(dirs, name)
			case 2:
				f.must(os.Symlink(rapid.SampledFrom([]string{"a", "../outside/canary", "b.go"}).Draw(rt, "target"), filepath.Join(f.root, name)))
			default:
				f.file(name, strings.Join(rapid.SliceOfN(words, 0, 12).Draw(rt, "text"), ""))
			}
		}
		for _, dir := range dirs {
			if rapid.IntRange(0, 2).Draw(rt, "has rules") == 0 {
				f.file(path.Join(dir, ".gitignore"), strings.Join(rapid.SliceOfN(ignoreLines, 0, 4).Draw(rt, "rules"), "\n"))
			}
		}
		r := &reference{f: f}
		in := grepInput{
			Pattern: patterns.Draw(rt, "pattern"), IgnoreCase: rapid.Bool().Draw(rt, "ignore case"),
			Literal: rapid.Bool().Draw(rt, "literal"), NoIgnore: rapid.Bool().Draw(rt, "no ignore"),
		}
		most := rapid.SampledFrom([]int{1, 2, 50}).Draw(rt, "most")
		if in.Pattern != "" {
			got := f.text("grep", object{"pattern": in.Pattern, "ignore_case": in.IgnoreCase, "literal": in.Literal, "no_ignore": in.NoIgnore, "max_results": most})
			if d := cmp.Diff(r.grep(in, most), got); d != "" {
				rt.Errorf("grep %+v (-reference +got):\n%s", in, d)
			}
		}
		pattern := globs.Draw(rt, "glob")
		if d := cmp.Diff(r.glob(pattern, in.NoIgnore), f.text("glob", object{"pattern": pattern, "no_ignore": in.NoIgnore})); d != "" {
			rt.Errorf("glob %s (-reference +got):\n%s", pattern, d)
		}
		f.must(os.RemoveAll(f.root))
	})
}

// TestRequiredLiterals: every match contains one of the texts.
func TestRequiredLiterals(t *testing.T) {
	for expr, want := range map[string]string{
		"foo": "foo", "fo+bar": "bar", "(foo|bar)baz": "baz", "foo|barn": "foo barn", "foo|b*": "", "[ab]": "", "a?": "", "(?i:FooKit)": "foo~",
		"(?i:kk)": "", "x{3}": "x", "\uFFFDfoo": "", "foo.*barn": "barn", "a|b|c|d|e|f|g|h|i|jj": "",
	} {
		var got []string
		for _, l := range requiredLiterals(expr) {
			text := l.text
			if l.fold {
				text += "~"
			}
			got = append(got, text)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %q, want %q", expr, s, want)
		}
	}
	l := requiredLiterals("(?i:needle)")[0]
	for _, c := range []struct {
		data string
		want int
	}{{"a NeEdLe", 2}, {"needle", 0}, {"dneedl", -1}, {"", -1}, {"nddneedle", 3}, {"NEEDLneedle", 5}} {
		if got := l.index([]byte(c.data)); got != c.want {
			t.Errorf("%q: %d, want %d", c.data, got, c.want)
		}
	}
}

// TestSearchesAgreeWithOthers compares names with ripgrep's and fd's, if installed,
// on a tree where they mean the same.
func TestSearchesAgreeWithOthers(t *testing.T) {
	f := newFixture(t)
	f.must(os.Mkdir(filepath.Join(f.root, ".git"), 0o755)) // so that .gitignore counts to them
	f.file(".gitignore", "*.log\n/out/\n!keep.log\n")
	f.file("a/.gitignore", "b/\n")
	for i := range 300 {
		text := "nothing\n"
		if i%7 == 0 {
			text += "\tfind the Needle here\n"
		}
		f.file(fmt.Sprintf("%s/%s/f%02d%s", []string{"a", "b", "out", "c.d"}[i%4], []string{"b", "x"}[i%2], i, []string{".go", ".log", ""}[i%3]), text)
	}
	f.file("keep.log", "Needle\n")
	f.file("binary", "Needle\x00\n")
	f.must(unix.Mkfifo(filepath.Join(f.root, "fifo"), 0o644))
	for _, c := range []struct {
		tool  tools.Name
		input object
		argv  []string
	}{
		{"grep", object{"pattern": "Needle", "max_results": 200}, []string{"rg", "--hidden", "--line-number", "--no-heading", "--sort=path", "Needle"}},
		{"grep", object{"pattern": "the n[e]+dle", "ignore_case": true, "max_results": 200}, []string{"rg", "-i", "--hidden", "--line-number", "--no-heading", "--sort=path", "the n[e]+dle"}},
		{"glob", object{"pattern": "**/x/*.go"}, []string{"fdfind", "--hidden", "--glob", "--full-path", "**/x/*.go"}},
	} {
		exe, err := exec.LookPath(c.argv[0])
		if err != nil {
			t.Logf("not compared: %v", err)
			continue
		}
		cmd := exec.CommandContext(t.Context(), exe, append(c.argv[1:], ".")...)
		if c.tool == "glob" {
			cmd = exec.CommandContext(t.Context(), exe, c.argv[1:]...)
		}
		cmd.Dir = f.root
		out, err := cmd.Output()
		f.must(err)
		lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(string(out), "./", "")), "\n")
		got := strings.Split(strings.TrimSpace(f.text(c.tool, c.input)), "\n")
		for i := range got { // "path:line: text" is ours
			got[i] = strings.Replace(got[i], ": ", ":", 1)
		}
		slices.Sort(lines)
		slices.Sort(got)
		if d := cmp.Diff(lines, got); d != "" || len(got) < 10 {
			t.Errorf("%v (-%s +ours):\n%s", c.input, c.argv[0], d)
		}
	}
}
