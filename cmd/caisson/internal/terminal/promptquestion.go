package terminal

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
)

const (
	// maxDiffLines bounds the diff that a question shows, maxDiffLine one line
	// of it in characters: a line of a minified file would push the rest of
	// the question off the screen.
	maxDiffLines = 200
	maxDiffLine  = 400
	// longQuestion is the number of lines from which the head is said again
	// before the choices.
	longQuestion = 16
)

// question is how a confirmation stands on the terminal. Everything of it that
// isn't ours goes through line, although the dispatcher made it safe.
type question struct {
	tools.Confirmation
	place place
	style style
}

// lines shows the exact bytes that would run, the class, the place, what would
// change, what hides, and what a lasting answer would mean.
func (q question) lines(now time.Time) []string {
	head := q.head()
	lines := []string{q.style.yellow(head)}
	if q.Workspace != "" {
		lines = append(lines, "  in "+line(q.Workspace))
	}
	lines = append(lines, q.arguments()...)
	if q.Hidden {
		lines = append(lines, q.style.red("  it holds characters that terminals don't show; they are written as escapes"))
	}
	if q.Dangerous != "" {
		lines = append(lines, q.style.red("  the policy calls this dangerous: "+line(q.Dangerous)))
	}
	if len(q.Projected) > 0 {
		lines = append(lines, "  would change: "+line(strings.Join(q.Projected, ", ")))
	}
	lines = append(lines, q.diff()...)
	if len(lines) > longQuestion {
		lines = append(lines, q.style.yellow(head))
	}
	if offers(q.Confirmation, tools.ScopeAlways) {
		lines = append(lines, q.style.dim("  A and d are kept for "+q.lasting()))
	}
	if !q.Expires.IsZero() {
		left := max(q.Expires.Sub(now), 0).Round(time.Second)
		lines = append(lines, q.style.dim(fmt.Sprintf("  no answer within %s, by %s, is no", left, q.Expires.Format(time.TimeOnly))))
	}
	return lines
}

func (q question) head() string {
	head := fmt.Sprintf("? %s wants to run, class %s", line(string(q.Name)), line(string(q.Class)))
	switch q.Runs {
	case tools.PlaceSandbox:
		head += ", in the sandbox"
	case tools.PlaceHost:
		head += ", on the host"
	}
	if q.Changed {
		head += " (again: the file has changed since)"
	}
	if q.place.of > 1 {
		head += fmt.Sprintf(" [%d of %d]", q.place.nth, q.place.of)
	}
	return head
}

// lasting says what an answer for good would be bound to.
func (q question) lasting() string {
	what := "every call of " + line(string(q.Name))
	if q.Phrase != "" {
		what = "exactly `" + line(q.Phrase) + "`"
	}
	if q.Workspace != "" {
		what += " in this folder"
	}
	return what
}

func (q question) diff() []string {
	var lines []string
	n := 0
	for l := range strings.Lines(q.Diff) {
		if n++; n > maxDiffLines {
			continue
		}
		l = line(strings.TrimRight(l, "\n"))
		lines = append(lines, "  "+paintDiff(q.style, short(l, maxDiffLine)))
	}
	if n > maxDiffLines {
		lines = append(lines, q.style.yellow(fmt.Sprintf("  … %d more lines of the diff", n-maxDiffLines)))
	}
	return lines
}

// short cuts a line to n characters and says how many are missing.
func short(l string, n int) string {
	all := utf8.RuneCountInString(l)
	if all <= n {
		return l
	}
	end := 0
	for range n {
		_, size := utf8.DecodeRuneInString(l[end:])
		end += size
	}
	return fmt.Sprintf("%s… (%d characters more)", l[:end], all-n)
}

func paintDiff(s style, l string) string {
	switch {
	case strings.HasPrefix(l, "+"):
		return s.green(l)
	case strings.HasPrefix(l, "-"):
		return s.red(l)
	}
	return l
}

func offers(c tools.Confirmation, s tools.Scope) bool { return slices.Contains(c.Scopes, s) }

// keys says what each key means.
func keys(c tools.Confirmation) []string {
	name := line(string(c.Name))
	lines := []string{"  y  allow this call, and nothing else"}
	if offers(c, tools.ScopeSession) {
		lines = append(lines, "  a  allow "+name+" until the end of this session")
	}
	if offers(c, tools.ScopeAlways) {
		q := question{Confirmation: c}
		lines = append(lines, "  A  allow for good: "+q.lasting(), "  d  refuse for good: the same; caisson approvals takes both back")
	}
	return append(lines, "  n  refuse this call; so do Enter alone and every other key")
}

// choices names the keys that mean something, and what the others mean.
func choices(c tools.Confirmation) string {
	keys := []string{"y once"}
	if offers(c, tools.ScopeSession) {
		keys = append(keys, "a this session")
	}
	if offers(c, tools.ScopeAlways) {
		keys = append(keys, "A always", "n no", "d never")
	} else {
		keys = append(keys, "n no")
	}
	keys = append(keys, "? help")
	return "  " + strings.Join(keys, ", ") + " > "
}
