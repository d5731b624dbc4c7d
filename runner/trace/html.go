package trace

import (
	"bufio"
	"cmp"
	_ "embed" // the page's template and style
	"errors"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxPage bounds what of the story is on a page, and maxPatch what of the
	// changes: browsers get slow, and people do not read more.
	maxPage  = 8 << 20
	maxPatch = 512 << 10
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

// page is the template; it is parsed once and only read then. Contextual
// escaping is html/template's; characters that would not be seen are made
// visible by show.
var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"show":    show,
		"line":    func(v any) string { return line(fmt.Sprint(v)) },
		"token":   func(v any) string { return token(fmt.Sprint(v)) },
		"clip":    oneLine,
		"count":   func(n any) string { return count(integer(n)) },
		"elapsed": elapsed,
		"ms":      func(n int64) string { return elapsed(milliseconds(n)) },
		"dollars": func(n *int64) string {
			if n == nil {
				return "cost unknown"
			}
			return dollars(micro(*n))
		},
		"diff":    diffLines,
		"clock":   func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"date":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") },
		"machine": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"style":   func() template.CSS { return template.CSS(pageStyle) }, //nolint:gosec // a file of ours
	}).Parse(pageText))
})

// show makes a text safe to read: escapes for what would not be seen.
func show(s string) string {
	safe, _ := tools.DisplayLines(strings.TrimRight(s, "\n"))
	return safe
}

// token is a text as the names of classes of the style: of other texts nothing
// is left, so that none is chosen from outside.
func token(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_ ") != "" {
		return ""
	}
	return s
}

func integer(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

func sizeText(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			return strings.Replace(fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name), ".0 ", " ", 1)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// diffLine is one line of a diff and its class.
type diffLine struct{ Class, Text string }

// maxDiffLines bounds the elements that a diff makes.
const maxDiffLines = 4000

func diffLines(text string) []diffLine {
	all := strings.Split(show(text), "\n")
	over := len(all) - maxDiffLines
	if over > 0 {
		all = all[:maxDiffLines]
	}
	out := make([]diffLine, 0, len(all)+1)
	for _, l := range all {
		class := ""
		switch {
		case strings.HasPrefix(l, "+++"), strings.HasPrefix(l, "---"), strings.HasPrefix(l, "diff "), strings.HasPrefix(l, "# "):
			class = "file"
		case strings.HasPrefix(l, "@@"):
			class = "hunk"
		case strings.HasPrefix(l, "+"):
			class = "add"
		case strings.HasPrefix(l, "-"):
			class = "del"
		}
		out = append(out, diffLine{class, l})
	}
	if over > 0 {
		out = append(out, diffLine{"hunk", fmt.Sprintf("… %d more lines", over)})
	}
	return out
}

// head is what the page's beginning is made from.
type head struct {
	Overview
	Title    string
	Timeline drawn
	Patch    string
	PatchCut bool
	Warnings []string
}

// HTML writes a session as one page that needs nothing else: no script, no
// request, and a policy in it that forbids both. It reads the records twice and
// holds an overview, the calls of one round and nothing more. Damage ends the
// story, and is told at its beginning.
func HTML(w io.Writer, s Session) (Overview, error) {
	line := newTimeline()
	var warnings []string
	over, err := walk(s, nil, func(step Step) {
		line.step(step)
		if step.Kind == StepWarning && len(warnings) < 50 {
			warnings = append(warnings, cut(step.Text, 2000))
		}
	}, nil)
	if err != nil {
		return over, err
	}
	line.end()
	h := head{Overview: over, Title: cmp.Or(oneLine(over.Task, 120), over.Session), Timeline: line.draw(), Warnings: warnings}
	h.Patch, h.PatchCut = patch(s)

	out := &counter{w: bufio.NewWriterSize(w, 64<<10)}
	p := story{out: out, begun: over.Begun}
	p.put("head", h)
	if _, err := walk(s, nil, p.step, nil); err != nil {
		return over, err
	}
	p.put("foot", struct {
		Overview
		Left int
	}{over, p.left})
	if err := errors.Join(p.err, out.w.Flush()); err != nil {
		return over, fmt.Errorf("write page: %w", err)
	}
	return over, nil
}

// patch reads what a session changed.
func patch(s Session) (text string, more bool) {
	f, err := openRegular(filepath.Join(s.Dir, "workspace.patch"))
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxPatch+1))
	if err != nil {
		return "", false
	}
	if len(raw) > maxPatch {
		return strings.ToValidUTF8(string(raw[:maxPatch]), ""), true
	}
	return string(raw), false
}

// story writes steps until the page is long enough.
type story struct {
	out   *counter
	begun time.Time
	left  int
	err   error
}

// stepView is a step and when it was, from the session's beginning.
type stepView struct {
	Step
	After time.Duration
}

func (p *story) step(s Step) {
	if p.out.n > maxPage && s.Kind != StepTurnEnd && s.Kind != StepEnd {
		p.left++
		return
	}
	p.put("step", stepView{s, max(s.Time.Sub(p.begun), 0)})
}

func (p *story) put(name string, v any) {
	if p.err == nil {
		p.err = page().ExecuteTemplate(p.out, name, v)
	}
}

// counter counts what is written.
type counter struct {
	w *bufio.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

// Methods of the overview that the page asks.

// Mood is the class of the outcome's colour.
func (o Overview) Mood() string {
	switch {
	case o.Damage != "":
		return "bad"
	case o.Ended != nil && o.Ended.ExitStatus == runner.ExitDone:
		return "good"
	case o.Ended != nil:
		return "bad"
	}
	return "warn"
}

// Protection is one line of the sandbox's attestation.
type Protection struct {
	Name, Value string
	Good        bool
}

// Protections are what the attestation says that a person asks first.
func (o Overview) Protections() []Protection {
	a := o.Sandbox
	if a == nil {
		return nil
	}
	caps := "none"
	if len(a.Capabilities) > 0 {
		caps = strings.Join(a.Capabilities, " ")
	}
	yes := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	return []Protection{
		{"Network", a.Network, a.Network == "none"},
		{"Read-only root", yes(a.RootReadOnly), a.RootReadOnly},
		{"No new privileges", yes(a.NoNewPrivileges), a.NoNewPrivileges},
		{"Capabilities", caps, len(a.Capabilities) == 0},
		{"Seccomp", a.Seccomp, a.Seccomp == "filter"},
		{"User", a.User, !strings.HasPrefix(a.User, "0:")},
		{"Memory", sizeText(a.Limits.MemoryBytes), a.Limits.MemoryBytes > 0},
		{"Processes", count(a.Limits.PIDs), a.Limits.PIDs > 0},
		{"Git", a.Git, true},
	}
}
