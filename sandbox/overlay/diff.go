package overlay

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Defaults of [DiffOptions].
const (
	DefaultDiffFileBytes  = 1 << 20
	DefaultDiffTotalBytes = 64 << 20
)

// DiffOptions bounds a diff. A zero field means its default.
type DiffOptions struct {
	// FileBytes bounds either side of one file, and TotalBytes the whole text.
	FileBytes, TotalBytes int64
}

// Stats describes the text of a diff, change by change.
type Stats struct {
	// Files has one element per change, in the same order.
	Files []FileStat
	// Omitted is the number of files whose diff exceeded TotalBytes.
	Omitted int
}

// FileStat counts the lines of one change.
type FileStat struct {
	Insertions, Deletions int
	// HasDiff reports whether the text contains the whole change. Otherwise Why
	// is the reason, such as "binary" or "too large".
	HasDiff bool
	Why     string
}

// side is one side of a file's diff.
type side struct {
	typ  workspace.Type // "" if there is nothing
	mode fs.FileMode
	text []byte
	why  string // the reason for which there is no text
}

// gitMode returns the mode as git writes it. Git distinguishes files, programs
// and symlinks only.
func (s side) gitMode() string {
	switch {
	case s.typ == workspace.TypeSymlink:
		return "120000"
	case s.mode&0o100 != 0:
		return "100755"
	}
	return "100644"
}

// isTracked reports whether git tracks entries of this type.
func (s side) isTracked() bool { return s.typ == workspace.TypeFile || s.typ == workspace.TypeSymlink }

// formatRemark returns a line that git apply and patch ignore.
func formatRemark(format string, args ...any) string {
	return "# " + fmt.Sprintf(format, args...) + "\n"
}

// formatBlocks returns a change's part of a diff, and its counts.
func formatBlocks(c *Change, old, now side) (string, FileStat) {
	var b strings.Builder
	if c.Conflict != "" {
		b.WriteString(formatRemark("conflict: %s: %s", quote(c.Path), c.Conflict))
	}
	if c.LeftOut != "" {
		b.WriteString(formatRemark("left out by an apply: %s: %s", quote(c.Path), c.LeftOut))
	}
	st := FileStat{HasDiff: true}
	if old.isTracked() && now.isTracked() && old.typ == now.typ {
		st = writeBlock(&b, c, old, now)
		return b.String(), st
	}
	// As in git, a change of type is a deletion and an addition.
	if old.isTracked() {
		st = writeBlock(&b, c, old, side{})
	}
	if now.isTracked() {
		more := writeBlock(&b, c, side{}, now)
		st.Insertions, st.HasDiff = more.Insertions, st.HasDiff && more.HasDiff
		st.Why = cmp.Or(st.Why, more.Why)
	}
	if !old.isTracked() && !now.isTracked() {
		st = FileStat{Why: "no file"}
	}
	for _, s := range []struct {
		side
		word string
	}{{old, "was there before"}, {now, "is there now"}} {
		if s.typ != "" && !s.isTracked() {
			b.WriteString(formatRemark("%s: a %s %s", quote(c.Path), s.typ, s.word))
		}
	}
	return b.String(), st
}

// writeBlock writes one "diff --git" block. The side old or now may be empty.
func writeBlock(b *strings.Builder, c *Change, old, now side) FileStat {
	if why := cmp.Or(old.why, now.why); why != "" {
		b.WriteString(formatRemark("%s: %s, %s: not shown here", quote(c.Path), c.Kind, why))
		if old.isTracked() && now.isTracked() && old.gitMode() != now.gitMode() {
			b.WriteString(formatHeader(c, old, now))
		}
		return FileStat{Why: why}
	}
	st := FileStat{HasDiff: true}
	text := ""
	if !bytes.Equal(old.text, now.text) {
		from, to := formatLabel("a/", c.Path), formatLabel("b/", c.Path)
		if !old.isTracked() {
			from = "/dev/null"
		}
		if !now.isTracked() {
			to = "/dev/null"
		}
		var err error
		text, err = udiff.ToUnified(from, to, string(old.text), udiff.Lines(string(old.text), string(now.text)), udiff.DefaultContextLines)
		if err != nil {
			b.WriteString(formatRemark("%s: %s: no diff could be made", quote(c.Path), c.Kind))
			return FileStat{Why: "no diff could be made"}
		}
		st.Insertions, st.Deletions = countLines(text)
	}
	if text != "" || !old.isTracked() || !now.isTracked() || old.gitMode() != now.gitMode() {
		b.WriteString(formatHeader(c, old, now))
		b.WriteString(text)
	}
	if old.isTracked() && now.isTracked() && now.typ == workspace.TypeFile && old.mode != now.mode && old.gitMode() == now.gitMode() {
		b.WriteString(formatRemark("%s: mode %s, was %s", quote(c.Path), formatMode(now.mode), formatMode(old.mode)))
	}
	return st
}

// formatHeader returns the header of a "diff --git" block.
func formatHeader(c *Change, old, now side) string {
	text := "diff --git " + quote("a/"+c.Path) + " " + quote("b/"+c.Path) + "\n"
	switch {
	case !old.isTracked():
		text += "new file mode " + now.gitMode() + "\n"
	case !now.isTracked():
		text += "deleted file mode " + old.gitMode() + "\n"
	case old.gitMode() != now.gitMode():
		text += "old mode " + old.gitMode() + "\nnew mode " + now.gitMode() + "\n"
	}
	return text
}

// countLines counts the lines of a unified diff without its two header lines.
func countLines(text string) (insertions, deletions int) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if n <= 2 {
			continue
		}
		switch line[0] {
		case '+':
			insertions++
		case '-':
			deletions++
		}
	}
	return insertions, deletions
}

// formatLabel returns the name for a ---/+++ line. A name with a space ends in
// a tab, so that patch does not take the rest for a date.
func formatLabel(prefix, path string) string {
	name := quote(prefix + path)
	if strings.ContainsRune(name, ' ') && name[0] != '"' {
		name += "\t"
	}
	return name
}

// quote returns a name as git writes it (core.quotePath). It is in quotes and
// escaped if it contains quotes, control characters, invalid UTF-8 or invisible
// characters.
func quote(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r == '"' || r == '\\' || isInvisible(r) }) {
		return name
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteByte(name[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case isInvisible(r) || r == utf8.RuneError && n == 1:
			for _, c := range []byte(name[i : i+n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		default:
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	b.WriteByte('"')
	return b.String()
}

// isInvisible reports whether a character is a control, formatting or private
// one, or separates lines or paragraphs.
func isInvisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}

// Quote returns a path for messages, in the form of the diff.
func Quote(path string) string { return quote(path) }

// isBinary reports whether git treats content as binary: there is a NUL among
// the first 8000 bytes.
func isBinary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0
}

// Diff writes the changes as one unified diff that git apply and patch -p1
// accept. Lines that begin with "# " name what such a diff can't contain:
// binary and large files, directories, special files and modes unknown to git.
// To get only the counts, pass [io.Discard].
func (l *Layers) Diff(ctx context.Context, original *os.File, c *Changes, w io.Writer, o DiffOptions) (*Stats, error) {
	if o.FileBytes <= 0 {
		o.FileBytes = DefaultDiffFileBytes
	}
	if o.TotalBytes <= 0 {
		o.TotalBytes = DefaultDiffTotalBytes
	}
	if err := checkKept(l, original); err != nil {
		return nil, err
	}
	upper, err := l.openStack()
	if err != nil {
		return nil, err
	}
	defer upper.close()
	d := differ{upper: upper, lower: tree{int(original.Fd())}, maxBytes: o.FileBytes}
	stats := &Stats{Files: make([]FileStat, len(c.List))}
	room := o.TotalBytes
	for i := range c.List {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("diff: %w", context.Cause(ctx))
		}
		text, st := d.formatChange(c.List, i)
		if int64(len(text)) > room {
			stats.Omitted++
			st.HasDiff = false
			st.Why = "too much in all"
			text = ""
		}
		room -= int64(len(text))
		stats.Files[i] = st
		if _, err := io.WriteString(w, text); err != nil {
			return nil, fmt.Errorf("diff: %w", err)
		}
	}
	return stats, d.writeSummary(w, c, stats)
}

// formatChange returns the text of one change. A change that Apply leaves out
// must not be applied by git apply or patch either, so each line of its diff
// starts with "# ".
func (d *differ) formatChange(list []Change, i int) (string, FileStat) {
	c := &list[i]
	repo, inside := findRepository(c.Path)
	switch {
	case c.LeftOut != "":
		return d.formatLeftOut(list, i)
	case inside && c.Path != repo:
		if d.repo == repo {
			return "", FileStat{Why: "in a repository"}
		}
		d.repo = repo
		return formatRemark("%s: the repository changed; git shows how, once it is applied", quote(repo)), FileStat{Why: "in a repository"}
	case c.File():
		return formatBlocks(c, d.readOld(c), d.readNew(c))
	}
	return formatDirectoryRemark(list, i), FileStat{Why: "directory"}
}

// formatLeftOut returns the text of a change that Apply leaves out.
func (d *differ) formatLeftOut(list []Change, i int) (string, FileStat) {
	c := &list[i]
	st := FileStat{Why: "left out"}
	if !c.File() || strings.HasSuffix(c.Path, ".sample") { // git init makes a dozen
		if i > 0 && list[i-1].LeftOut == c.LeftOut && parent(list[i-1].Path) == parent(c.Path) {
			return "", st
		}
		return formatRemark("%s: %s: left out by an apply: %s", quote(c.Path), c.Kind, c.LeftOut), st
	}
	text, _ := formatBlocks(c, d.readOld(c), d.readNew(c))
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "# ") {
			line = "# | " + line
		}
		b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String(), st
}

// writeSummary writes what the diff as a whole leaves out.
func (d *differ) writeSummary(w io.Writer, c *Changes, stats *Stats) error {
	var b strings.Builder
	if stats.Omitted > 0 {
		b.WriteString(formatRemark("%d more changes are left out: the diff would be too long", stats.Omitted))
	}
	if c.Truncated {
		b.WriteString(formatRemark("there are more than %d changes, or more than %d MiB of names and link targets; the rest was not compared", MaxEntries, MaxTextBytes>>20))
	}
	for _, dir := range c.Unread {
		b.WriteString(formatRemark("%s can't be read: what changed there is not known", quote(dir)))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("diff: %w", err)
	}
	return nil
}

// formatDirectoryRemark returns a remark on a directory that the diff would not
// show: an empty one, or one with a new mode.
func formatDirectoryRemark(list []Change, i int) string {
	c := &list[i]
	if c.Kind == Mode {
		return formatRemark("directory %s: mode %s, was %s", quote(c.Path), formatMode(c.Mode), formatMode(c.WasMode))
	}
	if i+1 < len(list) && strings.HasPrefix(list[i+1].Path, c.Path+"/") {
		return ""
	}
	return formatRemark("empty directory %s: %s", quote(c.Path), c.Kind)
}

// differ reads both sides of files.
type differ struct {
	upper    stack
	lower    tree
	maxBytes int64
	repo     string // the repository that was named last
}

func (d *differ) readOld(c *Change) side { return d.readSide(d.lower, c.Path, c.was) }

func (d *differ) readNew(c *Change) side {
	if c.now == nil {
		return side{}
	}
	return d.readSide(d.upper.layer(c.now.layer), c.Path, c.now)
}

// readSide reads one side of a change.
func (d *differ) readSide(t tree, path string, n *node) side {
	if n == nil {
		return side{}
	}
	s := side{typ: n.typ, mode: n.perm()}
	switch n.typ {
	case workspace.TypeSymlink:
		s.text = []byte(n.target)
	case workspace.TypeFile:
		s.text, s.why = d.readText(t, path, n.size)
	}
	return s
}

// readText reads a small text file, or returns the reason for which it did not.
func (d *differ) readText(t tree, path string, size int64) ([]byte, string) {
	if size > d.maxBytes {
		return nil, fmt.Sprintf("%d bytes", size)
	}
	f, n, err := t.openFile(path)
	if err != nil {
		return nil, "can't be read"
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, d.maxBytes+1))
	switch {
	case err != nil:
		return nil, "can't be read"
	case int64(len(text)) > d.maxBytes:
		return nil, fmt.Sprintf("%d bytes", n.size)
	case isBinary(text):
		return nil, fmt.Sprintf("binary, %d bytes", len(text))
	}
	return text, ""
}
