package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools"
)

func project(t testing.TB) *fixture {
	t.Helper()
	f := newFixture(t)
	f.file("main.go", "package main\n\nfunc main() {}\n")
	f.file("src/a.go", "package src\n\n// Func is a func.\nfunc Func() {}\n")
	f.file("src/a_test.go", "package src\n")
	f.file("src/deep/er/b.ts", "function b() {}\r\n")
	f.file("src/deep/c.tsx", "let c\n")
	f.file("build/out.go", "func ignored() {}\n")
	f.file("debug.log", "func\n")
	f.file("keep.log", "func kept\n")
	f.file("src/secret.txt", "func\n")
	f.file(".git/config", "func\n")
	f.file(".hidden", "func\n")
	f.file(".gitignore", "# comment\nbuild/\n*.log\r\n!keep.log\n")
	f.file("src/.gitignore", "/secret.txt\n")
	f.file("bin", "func\x00\n")
	return f
}

func TestListDir(t *testing.T) {
	f := project(t)
	f.must(os.Symlink("../outside", filepath.Join(f.root, "src/out")))
	f.must(unix.Mkfifo(filepath.Join(f.root, "src/fifo"), 0o644))
	f.file("odd/a\nb", "")
	f.file("odd/\xff\x1b[2J", "1")
	f.file("odd/a\u202etxt.exe", "12")
	f.file("odd/quote\"", "")
	f.file("odd/ space", "")
	f.file("empty/x", "")
	f.must(os.Remove(filepath.Join(f.root, "empty/x")))
	if got, want := f.text("list_dir", object{"path": "empty"}), "[the directory is empty]\n"; got != want {
		t.Errorf("list of an empty directory: %q, want %q", got, want)
	}
	if got, want := f.text("list_dir", object{"path": "src/deep", "depth": 2}), "src/deep/c.tsx  (6 bytes)\nsrc/deep/er/\nsrc/deep/er/b.ts  (17 bytes)\n"; got != want {
		t.Errorf("list, depth 2: %q, want %q", got, want)
	}
	got := f.text("list_dir", object{"path": "src"})
	want := "src/.gitignore  (12 bytes)\nsrc/a.go  (47 bytes)\nsrc/a_test.go  (12 bytes)\nsrc/deep/\nsrc/fifo  (fifo, can't be read)\nsrc/out -> ../outside\nsrc/secret.txt  (5 bytes)\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("list (-want +got):\n%s", d)
	}
	got = f.text("list_dir", object{"path": "odd"})
	if !strings.Contains(got, `"odd/a\nb"`) || !strings.Contains(got, `"odd/\xff\x1b[2J"  (1 byte)`) || !strings.Contains(got, `"odd/a\u202etxt.exe"`) ||
		!strings.Contains(got, `"odd/quote\""`) || !strings.Contains(got, `"odd/ space"`) || !strings.Contains(got, `1 name with \x escapes`) || strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("odd names: %q, want them escaped", got)
	}
	if got := f.text("list_dir", object{}); !strings.HasPrefix(got, ".git/\n.gitignore") {
		t.Errorf("list of the workspace: %q", got)
	}
}

func TestListDirIsBounded(t *testing.T) {
	f := newFixture(t)
	for i := range 1200 {
		f.file(fmt.Sprintf("a/%04d", i), "")
	}
	f.file("z", "")
	out, err := f.call("list_dir", object{"depth": 2})
	f.must(err)
	got := out.Content[0].Text
	if !out.Truncated || strings.Count(got, "\n") != 1001 || !strings.Contains(got, "\nz  (0 bytes)\n") || !strings.HasSuffix(got, "[1000 entries shown, there are more: list a directory below, or use glob]\n") {
		t.Errorf("truncated %v, %d lines, …%q", out.Truncated, strings.Count(got, "\n"), got[len(got)-100:])
	}
}

func TestGlob(t *testing.T) {
	f := project(t)
	f.file("app/[id]/page.vue", "")
	f.file("app/i/page.vue", "")
	f.file("notes/A\u0308 v\u00a01.md", "")
	for _, c := range []struct {
		input object
		want  string
	}{
		{object{"pattern": "*.go"}, "main.go\nsrc/a.go\nsrc/a_test.go\n"},
		{object{"pattern": "./*.go"}, "main.go\nsrc/a.go\nsrc/a_test.go\n"},
		{object{"pattern": "src/*.go"}, "src/a.go\nsrc/a_test.go\n"},
		{object{"pattern": "**/*.{ts,tsx}"}, "src/deep/c.tsx\nsrc/deep/er/b.ts\n"},
		{object{"pattern": "*.go", "path": "src"}, "src/a.go\nsrc/a_test.go\n"},
		{object{"pattern": "deep/**", "path": "src"}, "src/deep/c.tsx\nsrc/deep/er/b.ts\n"},
		{object{"pattern": "**/**/**/b.ts"}, "src/deep/er/b.ts\n"},
		{object{"pattern": "/workspace/src/a*.go"}, "src/a.go\nsrc/a_test.go\n"},
		{object{"pattern": f.root + "/*.go"}, "main.go\n"},
		{object{"pattern": "*.log"}, "keep.log\n"},
		{object{"pattern": "*.log", "no_ignore": true}, "debug.log\nkeep.log\n"},
		{object{"pattern": "*.go", "path": "build"}, "build/out.go\n"}, // named, so not left out
		{object{"pattern": "secret.txt"}, "[no files match]\n"},
		{object{"pattern": "config", "path": ".git"}, ".git/config\n"},
		{object{"pattern": "config"}, "[no files match]\n"},
		{object{"pattern": ".h*"}, ".hidden\n"},
		{object{"pattern": "main.go", "path": "main.go"}, "main.go\n"},
		{object{"pattern": "app/[id]/*.vue"}, "app/[id]/page.vue\napp/i/page.vue\n"},
		{object{"pattern": "app/[x]/*.vue"}, "[no files match]\n"},
		{object{"pattern": "[id]"}, "[no files match]\n"},
		{object{"pattern": "\u00c4 v ?.md"}, "\"notes/A\u0308 v\\u00a01.md\"\n"},
		{object{"pattern": "notes/\u00c4*"}, "\"notes/A\u0308 v\\u00a01.md\"\n"},
	} {
		if got := f.text("glob", c.input); got != c.want {
			t.Errorf("glob %v: %q, want %q", c.input, got, c.want)
		}
	}
}

func TestGrep(t *testing.T) {
	f := project(t)
	f.file("long.txt", strings.Repeat("a", 1000)+"needle"+strings.Repeat("ä", 1000)+"\n")
	f.file("latin", "caf\xe9 needle\n")
	for _, c := range []struct {
		input object
		want  string
	}{
		{object{"pattern": "func "}, "keep.log:1: func kept\nmain.go:3: func main() {}\nsrc/a.go:4: func Func() {}\n"},
		{object{"pattern": "func", "glob": "*.go"}, "main.go:3: func main() {}\nsrc/a.go:3: // Func is a func.\nsrc/a.go:4: func Func() {}\n"},
		{object{"pattern": "^FUNC", "ignore_case": true, "glob": "src/**"}, "src/a.go:4: func Func() {}\nsrc/deep/er/b.ts:1: function b() {}\n"},
		{object{"pattern": "}$", "path": "src"}, "src/a.go:4: func Func() {}\nsrc/deep/er/b.ts:1: function b() {}\n"},
		{object{"pattern": "() {}", "literal": true, "path": "main.go"}, "main.go:3: func main() {}\n"},
		{object{"pattern": "func", "path": "src/secret.txt"}, "src/secret.txt:1: func\n"},
		{object{"pattern": "ignored", "no_ignore": true}, "build/out.go:1: func ignored() {}\n"},
		{object{"pattern": "ignored"}, "[no matches]\n"},
		{object{"pattern": "func", "path": "bin"}, "[no matches]\n"},
		{object{"pattern": "needle", "path": "latin"}, "latin:1: caf� needle\n"},
		{object{"pattern": "func", "max_results": 1}, ".hidden:1: func\n[1 match shown, there are more: narrow the pattern, the path or the glob]\n"},
		{object{"pattern": "needle", "path": "long.txt"}, "long.txt:1: …" + strings.Repeat("a", 100) + "needle" + strings.Repeat("ä", 97) + "…\n"},
	} {
		if got := f.text("grep", c.input); got != c.want {
			t.Errorf("grep %v: %q, want %q", c.input, got, c.want)
		}
	}
}

func TestGrepIsBounded(t *testing.T) {
	f := newFixture(t)
	f.file("many", strings.Repeat("needle\n", 1000))
	f.file("large", strings.Repeat("needle\n", grepFileBytes/7+1))
	for _, c := range []struct {
		most any
		want int
	}{{nil, 50}, {10, 10}, {500, 200}, {float64(1 << 60), 200}} {
		input := object{"pattern": "needle"}
		if c.most != nil {
			input["max_results"] = c.most
		}
		out, err := f.call("grep", input)
		f.must(err)
		if n := strings.Count(out.Content[0].Text, ": needle\n"); n != c.want || !out.Truncated {
			t.Errorf("max_results %v: %d matches, truncated %v; want %d", c.most, n, out.Truncated, c.want)
		}
		if !strings.Contains(out.Content[0].Text, "1 file over 8 MiB not searched") {
			t.Errorf("the large file is not mentioned: …%q", out.Content[0].Text[len(out.Content[0].Text)-200:])
		}
	}
}

// Acceptance A16: patterns designed to take forever.
func TestHostilePatterns(t *testing.T) {
	f := newFixture(t)
	f.file("a", strings.Repeat("a", 4<<20))
	f.file("words", strings.Repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n", 5000))
	f.file("bin", strings.Repeat("\x00\x01", 1<<20))
	f.file(strings.Repeat("a", 200), "")
	deep := strings.Repeat("aa/", 60)
	f.file(deep+"f", "")
	for _, c := range []struct {
		tool    tools.Name
		pattern string
		refused bool
	}{
		{"grep", "((a*)*)*b", false},
		{"grep", "(a|a)*$b", false},
		{"grep", "(a?){50}a{50}b", false},
		{"grep", "(x{1000}){1000}", true},
		{"grep", strings.Repeat("(", 2000), true},
		{"grep", strings.Repeat("a?", 50_000), true},
		{"grep", "[", true},
		{"grep", `(a)\1`, true},
		{"glob", "**/**/**/**/*", false},
		{"glob", strings.Repeat("**/", 100) + "*", false},
		{"glob", strings.Repeat("*a", 100) + "b", false},
		{"glob", strings.Repeat("**/a*/", 50) + "b", false},
		{"glob", strings.Repeat("{a,aa,aaa}", 3) + "b", false},
		{"glob", strings.Repeat("{a,aa}", 30), true},
		{"glob", "{" + strings.Repeat("a,", 500), true},
		{"glob", strings.Repeat("{", 500) + strings.Repeat("}", 500), false},
		{"glob", "[", true},
		{"glob", "a{b", true},
		{"glob", strings.Repeat("a", 100_000), true},
		{"glob", "../*", true},
		{"glob", "a/../../*", true},
	} {
		out, err := f.call(c.tool, object{"pattern": c.pattern})
		if (err != nil) != c.refused {
			t.Errorf("%s %.60q: %v", c.tool, c.pattern, err)
			continue
		}
		if err != nil {
			if _, reason, _ := f.refused(err); reason != "invalid_pattern" {
				t.Errorf("%s %.60q: reason %s", c.tool, c.pattern, reason)
			}
			continue
		}
		if strings.Contains(out.Content[0].Text, "stopped after") {
			t.Errorf("%s %.60q took all of its time", c.tool, c.pattern)
		}
	}
}

func TestHostileIgnoreFiles(t *testing.T) {
	f := newFixture(t)
	f.file("sub/needle", "")
	f.file(".gitignore", strings.Repeat("*a*a*a*a*a*a*a*a*b\n", 10_000)+"needle\n")
	f.must(unix.Mkfifo(filepath.Join(f.root, "sub/.gitignore"), 0o644))
	f.file("other/.gitignore", "[\n\\\n!\n/\n**\n")
	f.file("other/x", "")
	f.must(os.Symlink("../outside/canary", filepath.Join(f.root, "other/link")))
	if got := f.text("glob", object{"pattern": "needle"}); got != "sub/needle\n" {
		t.Errorf("a rule beyond the bounds counted, or none did: %q", got)
	}
}

// TestIgnoresAsGit: rules that git reads differently from the library.
func TestIgnoresAsGit(t *testing.T) {
	for rules, want := range map[string]string{
		"\ufeff*.log\n":    ".gitignore\nb/c.md\nb/d.txt\n",
		"**\n!*/\n!*.md\n": "b/c.md\n",
		"":                 ".gitignore\na.log\nb/c.md\nb/d.txt\n", // the control
	} {
		f := newFixture(t)
		f.file("a.log", "")
		f.file("b/c.md", "\ufefftext")
		f.file("b/d.txt", "")
		f.file(".gitignore", rules)
		if got := f.text("glob", object{"pattern": "**"}); got != want {
			t.Errorf("%q leaves %q, want %q", rules, got, want)
		}
		if got := f.text("grep", object{"pattern": "^text"}); got != "b/c.md:1: text\n" {
			t.Errorf("a first line after a byte order mark: %q", got)
		}
	}
}

func FuzzSearch(f *testing.F) {
	seeds := []string{"*.go", "**/*", "{a,b}", "[a-z", "((a*)*)*b", "(x{1000}){1000}", "\\", "", "!(a)", "/workspace/*", "../x", "a\x00", "{{{,},},}", "[^]", "**/{**/{**,a},b}/c"}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s, s)
	}
	fix := project(f)
	fix.must(os.Symlink(fix.outside, filepath.Join(fix.root, "out")))
	f.Fuzz(func(t *testing.T, pattern, ignore string) {
		fix := *fix
		fix.t = t
		fix.file("deep/.gitignore", ignore)
		fix.file("deep/aaa/bbb", pattern)
		for _, name := range []tools.Name{"glob", "grep"} {
			out, err := fix.call(name, object{"pattern": pattern, "no_ignore": len(ignore)%2 == 0})
			if err != nil {
				fix.refused(err)
				continue
			}
			if text := out.Content[0].Text; !utf8.ValidString(text) || strings.Contains(text, "stopped after") {
				t.Errorf("%s %q: %q", name, pattern, text)
			}
		}
	})
}
