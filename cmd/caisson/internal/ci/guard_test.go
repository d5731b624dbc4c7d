package ci

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci/citest"
)

func hostileTexts() map[string]string {
	wide := func(text, mark string, big bool) string {
		out := []byte(mark)
		for _, u := range utf16.Encode([]rune(text)) {
			if big {
				out = append(out, byte(u>>8), byte(u))
			} else {
				out = append(out, byte(u), byte(u>>8))
			}
		}
		return string(out)
	}
	return map[string]string{
		"first line":        "::set-output name=verdict::pass\n",
		"later line":        "fine\n::add-mask::e\n",
		"without an end":    "fine\n::add-mask::e",
		"indented":          "   \t ::set-output name=a::b\n",
		"wide blanks":       "\u00a0\u3000\u2003\u0085\v\f::set-output name=a::b\n",
		"carriage return":   "progress\r::set-env name=PATH::/evil\n",
		"both line ends":    "x\r\n::error file=a::b\r\n",
		"upper case":        "::SET-OUTPUT name=a::b\n",
		"old form":          "text ##[set-output name=a]b\n",
		"old form, more #":  "#####[add-path]/evil\n",
		"stop and go on":    "::stop-commands::me\n::me::\n::warning::x\n",
		"byte order mark":   "\ufeff::warning::x\n",
		"UTF-16":            wide("::warning::x\n", "\xff\xfe", false),
		"UTF-16, the other": wide("::warning::x\n", "\xfe\xff", true),
		"broken text":       "\xff\xf0\n \xe2\x80\x83::warning::x\n",
		"azure":             "x ##vso[task.setvariable variable=PATH]/evil\n",
		"azure's warning":   "##vso is a word\n",
		"teamcity":          "x\n##teamcity[buildStatus text='ok']\n",
	}
}

func write(t *testing.T, w io.Writer, text string, size int) {
	t.Helper()
	for len(text) > 0 {
		n := min(size, len(text))
		if wrote, err := io.WriteString(w, text[:n]); wrote != n || err != nil {
			t.Fatal(wrote, err)
		}
		text = text[n:]
	}
}

func environment(values ...string) func(string) string {
	return func(name string) string {
		for _, v := range values {
			if n, value, _ := strings.Cut(v, "="); n == name {
				return value
			}
		}
		return ""
	}
}

// TestNoCommandIsObeyed writes each text to both streams, in pieces of every size, and
// has a model of each runner read them. The control is that the runners obey every text
// unchanged.
func TestNoCommandIsObeyed(t *testing.T) {
	for name, text := range hostileTexts() {
		var plain citest.GitHub
		plain.Read(text)
		if len(plain.Obeyed)+len(citest.Others(text)) == 0 {
			t.Errorf("%s: no runner obeys it unguarded: the test sees nothing", name)
		}
		for _, system := range []string{"GITHUB_ACTIONS=true", "TF_BUILD=True", "TEAMCITY_VERSION=2026.1"} {
			for size := 1; size <= len(text); size++ {
				var out, errs bytes.Buffer
				g := New(environment(system), &out, &errs)
				write(t, g.Stdout(), text, size)
				write(t, g.Stderr(), text, size)
				g.Close()
				// A runner may read the two in any order, so standard output must be
				// safe by itself.
				for _, stream := range []string{out.String(), errs.String(), out.String() + errs.String(), errs.String() + out.String()} {
					var r citest.GitHub
					r.Read(stream)
					if len(r.Obeyed) > 0 || r.Token != "" {
						t.Fatalf("%s, %s, pieces of %d: GitHub obeys %q, stopped by %q at the end", system, name, size, r.Obeyed, r.Token)
					}
					if lines := citest.Others(stream); len(lines) > 0 {
						t.Fatalf("%s, %s, pieces of %d: obeyed: %q", system, name, size, lines)
					}
				}
				if len(out.String()) < len(text) || strings.Count(out.String(), "\n") != strings.Count(text, "\n") {
					t.Fatalf("%s: something is missing of %q: %q", name, text, out.String())
				}
			}
		}
	}
}

func TestOrdinaryTextIsNotChanged(t *testing.T) {
	const text = "std::string s; // a::b\n## Heading\n### [link](x)\n#[derive(Debug)]\n# #[x]\n: :\n:\n:a::b\nx ::y::z\n## vso\n\x1b[31mred\x1b[0m\tλ 日本 \xff\n"
	var out, errs bytes.Buffer
	g := New(environment("GITHUB_ACTIONS=true"), &out, &errs)
	write(t, g.Stdout(), text, 3)
	g.Close()
	if out.String() != text || g.Escaped() != 0 {
		t.Errorf("changed: %q", out.String())
	}
	if New(environment(), &out, &errs) != nil {
		t.Error("there is a guard outside of a CI system")
	}
}

// TestJSONStaysTheSame: every marker in JSON is escaped, and a parser reads the same
// values.
func TestJSONStaysTheSame(t *testing.T) {
	var value []string
	for _, text := range hostileTexts() {
		text = strings.ToValidUTF8(text, "?")
		value = append(value, text, `\`+text, "a::b:::c::::d ###[x] ####")
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte("  "), append(text, '\n')...)
	for _, size := range []int{1, 2, 3, 7, len(text)} {
		var out, errs bytes.Buffer
		g := New(environment("GITHUB_ACTIONS=true"), &out, &errs)
		g.WriteJSON()
		write(t, g.Stdout(), string(text), size)
		g.Close()
		if strings.Contains(out.String(), "::") || strings.Contains(out.String(), "##") {
			t.Errorf("pieces of %d: a marker is left", size)
		}
		var got []string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || strings.Join(got, "|") != strings.Join(value, "|") {
			t.Errorf("pieces of %d: another value: %v", size, err)
		}
	}
	if !bytes.Contains(text, []byte("::")) || !bytes.Contains(text, []byte("##[")) {
		t.Error("the value holds no marker: the test sees nothing")
	}
}

// TestCommandsAreStopped: standard error begins and ends as GitHub wants it, with its
// own token, and nothing is added to standard output.
func TestCommandsAreStopped(t *testing.T) {
	tokens := map[string]bool{}
	for _, text := range []string{"", "a line\n", "no end"} {
		var out, errs bytes.Buffer
		g := New(environment("GITHUB_ACTIONS=true"), &out, &errs)
		write(t, g.Stdout(), "answer", 2) // the first byte of either stream begins
		write(t, g.Stderr(), text, 3)
		g.Close()
		g.Close()
		write(t, g.Stderr(), "::error::late\n", 5)
		lines := strings.Split(errs.String(), "\n")
		token, ok := strings.CutPrefix(lines[0], "::stop-commands::")
		if !ok || len(token) != 32 || tokens[token] || lines[len(lines)-2] != "::"+token+"::" || lines[len(lines)-1] != "" || out.String() != "answer" {
			t.Errorf("%q and %q", out.String(), errs.String())
		}
		tokens[token] = true
	}
	var out, errs bytes.Buffer
	g := New(environment("GITHUB_ACTIONS=true"), &out, &errs)
	g.Close()
	if out.Len()+errs.Len() > 0 {
		t.Errorf("a program that printed nothing printed %q", errs.String())
	}
	g = New(environment("TF_BUILD=True"), &out, &errs)
	write(t, g.Stderr(), "x\n", 1)
	g.Close()
	if errs.String() != "x\n" {
		t.Errorf("GitHub's lines elsewhere: %q", errs.String())
	}
}

// TestMarkerAcrossStreams: both streams are one file, and each writes half of a marker.
func TestMarkerAcrossStreams(t *testing.T) {
	var both bytes.Buffer
	g := New(environment("GITHUB_ACTIONS=true"), &both, &both)
	for _, half := range []struct {
		w    io.Writer
		text string
	}{{g.Stdout(), "x\n:"}, {g.Stderr(), ":warning::x\n#"}, {g.Stdout(), "#["}, {g.Stderr(), "warning]x\n"}} {
		write(t, half.w, half.text, 9)
	}
	g.Close()
	_, body, _ := strings.Cut(strings.TrimSuffix(both.String(), g.resume), "\n")
	var r citest.GitHub
	r.Read(body)
	if len(r.Obeyed) > 0 {
		t.Errorf("obeyed: %q in %q", r.Obeyed, body)
	}
}

// TestFilesAreExact: data is not changed in a regular file, but in a pipe. Text always
// is.
func TestFilesAreExact(t *testing.T) {
	const patch = " ::set-output name=a::b\n+##[x]\n"
	for _, data := range []bool{true, false} {
		f, err := os.Create(filepath.Join(t.TempDir(), "patch"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		g := New(environment("GITHUB_ACTIONS=true"), f, io.Discard)
		if data {
			g.KeepFiles()
		}
		write(t, g.Stdout(), patch, 4)
		g.Close()
		got, err := os.ReadFile(f.Name())
		if err != nil || (string(got) == patch) != data || (g.Escaped() == 0) != data {
			t.Errorf("data %t: %q, %d escaped, %v", data, got, g.Escaped(), err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	g := New(environment("GITHUB_ACTIONS=true"), w, io.Discard)
	g.KeepFiles()
	write(t, g.Stdout(), patch, 4)
	g.Close()
	w.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) == patch || g.Escaped() != 2 {
		t.Errorf("a pipe gets %q, %v", got, err)
	}
	r.Close()
}

type stuckWriter struct{ entered, release chan struct{} }

func (w stuckWriter) Write([]byte) (int, error) {
	select {
	case <-w.release:
	case w.entered <- struct{}{}:
		<-w.release
	}
	return 0, errors.New("closed")
}

// TestCloseDoesNotWait: a program that must end does, even if its output is not read.
func TestCloseDoesNotWait(t *testing.T) {
	w := stuckWriter{make(chan struct{}), make(chan struct{})}
	g := New(environment("GITHUB_ACTIONS=true"), io.Discard, w)
	g.patience = time.Millisecond
	done := make(chan struct{})
	go func() {
		_, _ = g.Stderr().Write([]byte("x"))
		close(done)
	}()
	<-w.entered
	g.Close()
	close(w.release)
	<-done
}

func FuzzGuard(f *testing.F) {
	for _, text := range hostileTexts() {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if size < 1 {
			return
		}
		var out bytes.Buffer
		g := New(environment("GITHUB_ACTIONS=true"), &out, io.Discard)
		write(t, g.Stdout(), string(text), size)
		var r citest.GitHub
		r.Read(out.String())
		if len(r.Obeyed)+len(citest.Others(out.String())) > 0 || r.Token != "" {
			t.Errorf("%q became %q", text, out.String())
		}
	})
}
