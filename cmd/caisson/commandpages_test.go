package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	updatePages = flag.Bool("update-pages", false, "write docs/commands")
	manDir      = flag.String("man", "", "the directory in which TestManPages writes the man pages")
)

// TestCommandPages compares docs/commands with the commands: a page for each command,
// with a section for each subcommand.
func TestCommandPages(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "commands")
	pages := commandPages()
	if *updatePages {
		must(t, os.MkdirAll(dir, 0o755))
	}
	for name, want := range pages {
		path := filepath.Join(dir, name)
		if *updatePages {
			must(t, os.WriteFile(path, []byte(want), 0o644))
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s differs from the command (-command +page); run go test ./cmd/caisson -run CommandPages -update-pages\n%s", name, diff)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.md"))
	must(t, err)
	for _, path := range found {
		if _, ok := pages[filepath.Base(path)]; !ok {
			t.Errorf("%s is the page of no command", path)
		}
	}
	if len(pages) < 10 {
		t.Errorf("%d pages", len(pages))
	}
}

// TestManPages checks the man pages, and writes them if -man is set (make man).
func TestManPages(t *testing.T) {
	root := documentedRoot()
	count := 0
	for _, cmd := range withSubcommands(root) {
		count++
		page := manPage(cmd)
		for n, line := range strings.Split(page, "\n") {
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !slices.Contains(manMacros, strings.Fields(line)[0]) {
				t.Errorf("%s, line %d: text in the place of a macro: %s", pageName(cmd), n+1, line)
			}
		}
		if !strings.Contains(page, "\n.SH NAME\n") || !strings.Contains(page, "\n.SH OPTIONS\n") {
			t.Errorf("%s lacks a section", pageName(cmd))
		}
		if *manDir == "" {
			continue
		}
		must(t, os.MkdirAll(*manDir, 0o755))
		must(t, os.WriteFile(filepath.Join(*manDir, pageName(cmd)+".1"), []byte(page), 0o644))
	}
	if count < 20 {
		t.Errorf("%d man pages", count)
	}
}

// documentedRoot returns the commands as documented: without cobra's own, and without a
// build's version.
func documentedRoot() *cobra.Command {
	a := newApp(nil, nil)
	root := newRoot(&a)
	root.Version = ""
	root.InitDefaultHelpFlag()
	return root
}

func subcommands(cmd *cobra.Command) []*cobra.Command {
	var out []*cobra.Command
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			sub.InitDefaultHelpFlag()
			out = append(out, sub)
		}
	}
	slices.SortFunc(out, func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) })
	return out
}

func withSubcommands(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, sub := range subcommands(cmd) {
		out = append(out, withSubcommands(sub)...)
	}
	return out
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

func commandPages() map[string]string {
	root := documentedRoot()
	var index strings.Builder
	index.WriteString("# Commands\n\nGenerated from the commands' own help by `go test ./cmd/caisson -run CommandPages -update-pages`. `make man` writes\nthe same as man pages.\n\n| command | |\n|---|---|\n")
	pages := map[string]string{}
	for _, cmd := range subcommands(root) {
		name := cmd.Name() + ".md"
		fmt.Fprintf(&index, "| [`caisson %s`](%s) | %s |\n", cmd.Name(), name, cmd.Short)
		var page strings.Builder
		for i, c := range withSubcommands(cmd) {
			if i > 0 {
				page.WriteString("\n")
			}
			writeCommand(&page, c, min(i+1, 2))
		}
		pages[name] = page.String()
	}
	pages["README.md"] = index.String()
	return pages
}

func writeCommand(b *strings.Builder, cmd *cobra.Command, level int) {
	fmt.Fprintf(b, "%s %s\n\n%s.\n\n```\n%s\n```\n", strings.Repeat("#", level), cmd.CommandPath(), cmd.Short, cmd.UseLine())
	for _, paragraph := range paragraphs(cmd.Long) {
		if paragraph.verbatim {
			fmt.Fprintf(b, "\n```\n%s\n```\n", paragraph.text)
		} else {
			fmt.Fprintf(b, "\n%s\n", escapeMarkdown(paragraph.text))
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", unindent(cmd.Example))
	}
	if flags := groupedFlags(cmd); cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(b, "\n```\n%s\n```\n", strings.TrimRight(flags, "\n"))
	}
}

// paragraph is a part of a help text: prose, or indented lines to keep.
type paragraph struct {
	text     string
	verbatim bool
}

func paragraphs(text string) []paragraph {
	var out []paragraph
	var lines []string
	verbatim := false
	flush := func() {
		if joined := strings.Join(lines, "\n"); strings.TrimSpace(joined) != "" {
			if verbatim {
				joined = unindent(joined)
			}
			out = append(out, paragraph{joined, verbatim})
		}
		lines = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		indented := strings.HasPrefix(line, "  ")
		if line == "" || indented != verbatim {
			flush()
			verbatim = indented
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	flush()
	return out
}

func unindent(text string) string {
	return strings.ReplaceAll(strings.TrimPrefix(text, "  "), "\n  ", "\n")
}

func escapeMarkdown(text string) string {
	return strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "<", "\\<", "`", "\\`", "[", "\\[").Replace(text)
}

var manMacros = []string{".TH", ".SH", ".PP", ".nf", ".fi", ".TP"}

func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" caisson \"Caisson Manual\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(pageName(cmd)), escapeRoff(pageName(cmd)), escapeRoff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n%s\n.SH DESCRIPTION\n", escapeRoff(cmd.UseLine()))
	for i, p := range paragraphs(cmd.Long) {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if p.verbatim {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", escapeRoff(p.text))
		} else {
			b.WriteString(escapeRoff(p.text) + "\n")
		}
	}
	if len(paragraphs(cmd.Long)) == 0 {
		b.WriteString(escapeRoff(cmd.Short) + ".\n")
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, ".TP\n%s\n%s\n", escapeRoff(name), escapeRoff(usage))
	})
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", escapeRoff(unindent(cmd.Example)))
	}
	var also []string
	if cmd.HasParent() {
		also = append(also, pageName(cmd.Parent())+"(1)")
	}
	for _, sub := range subcommands(cmd) {
		also = append(also, pageName(sub)+"(1)")
	}
	if len(also) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", escapeRoff(strings.Join(also, ", ")))
	}
	return b.String()
}

// escapeRoff escapes the characters that are special in roff.
func escapeRoff(text string) string {
	text = strings.NewReplacer("\\", "\\e", "-", "\\-").Replace(text)
	for _, control := range []string{".", "'"} {
		if strings.HasPrefix(text, control) {
			text = "\\&" + text
		}
		text = strings.ReplaceAll(text, "\n"+control, "\n\\&"+control)
	}
	var b strings.Builder
	for _, r := range text {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "\\[u%04X]", r)
		}
	}
	return b.String()
}
