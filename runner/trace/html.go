package trace

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	_ "embed" // the page's template and style
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/prose"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxPage bounds the bytes of the steps on a page, and maxPatch the diff's.
	// Larger pages make browsers slow, and nobody reads longer diffs.
	maxPage  = 8 << 20
	maxPatch = 512 << 10
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

// Style returns the style sheet of the templates.
func Style() string { return pageStyle }

// Templates returns a copy of the page's templates and their functions. "step"
// writes what [StepView] returns.
func Templates() *template.Template { return template.Must(parsedTemplates().Clone()) }

var pageTemplate = sync.OnceValue(Templates)

// parsedTemplates are never executed: after that they can't be copied.
// html/template escapes by context; show makes invisible characters visible.
var parsedTemplates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"show":    displayLines,
		"line":    func(v any) string { return displayLine(fmt.Sprint(v)) },
		"token":   func(v any) string { return classToken(fmt.Sprint(v)) },
		"clip":    oneLine,
		"count":   func(n any) string { return formatCount(toInt64(n)) },
		"elapsed": formatDuration,
		"ms":      func(n int64) string { return formatDuration(fromMilliseconds(n)) },
		"dollars": func(n *int64) string { return formatDollars(record.CostUSD(n)) },
		"patch":   ParsePatch,
		"diff":    stepDiff,
		"groups":  changes.GroupHostExecuted,
		"prose": func(s string) template.HTML {
			return template.HTML(prose.HTML(prose.Parse(s), prose.Escapes{Text: html.EscapeString, Code: html.EscapeString})) //nolint:gosec // it is escaped
		},
		"clock": func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"date": func(t time.Time) string {
			if t.IsZero() {
				return "an unknown time"
			}
			return t.UTC().Format("2006-01-02 15:04:05 MST")
		},
		"machine": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"style":   func() template.CSS { return template.CSS(pageStyle) }, //nolint:gosec // our own file
		"styleHash": func() string {
			sum := sha256.Sum256([]byte(pageStyle))
			return base64.StdEncoding.EncodeToString(sum[:])
		},
	}).Parse(pageText))
})

// displayLines makes a text safe to display: it escapes control characters and
// invisible ones.
func displayLines(s string) string {
	safe, _ := tools.DisplayLines(strings.TrimRight(s, "\n"))
	return safe
}

// classToken returns s if it can be names of CSS classes, and "" otherwise, so
// that a trace can't insert anything else.
func classToken(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_ ") != "" {
		return ""
	}
	return s
}

func toInt64(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

type pageHead struct {
	Overview
	Title    string
	Timeline TimelineView
	Chart    TurnChart
	Films    bool
	Patch    string
	PatchCut bool
	Warnings []string
}

// HTML writes a session as one self-contained page. The page has no script and
// makes no request, and its content security policy forbids both. HTML reads
// the records twice and holds only an overview and the calls of one round.
// Damage ends the steps and is reported at the beginning of the page.
func HTML(w io.Writer, s Session) (Overview, error) {
	line, chart := newTimeline(), newTurnChart()
	var warnings []string
	films := false
	over, err := walkSession(s, nil, func(step Step) {
		line.addStep(step)
		chart.addStep(step)
		films = films || step.Recording != nil
		if step.Kind == StepWarning && len(warnings) < 50 {
			warnings = append(warnings, tools.Elide(step.Text, 2000))
		}
	}, nil)
	if err != nil {
		return over, err
	}
	h := pageHead{
		Overview: over, Title: cmp.Or(oneLine(over.Task, 120), over.Session), Warnings: warnings,
		Timeline: line.layOut(""), Chart: chart.layOut(), Films: films,
	}
	h.Patch, h.PatchCut = readPatch(s)

	out := &countingWriter{w: bufio.NewWriterSize(w, 64<<10)}
	p := pageWriter{out: out, session: s, begun: over.Begun}
	p.execute("head", h)
	if _, err := walkSession(s, nil, p.writeStep, nil); err != nil {
		return over, err
	}
	p.execute("foot", struct {
		Overview
		Left int
	}{over, p.left})
	if err := errors.Join(p.err, out.w.Flush()); err != nil {
		return over, fmt.Errorf("write page: %w", err)
	}
	return over, nil
}

// readPatch reads the patch of a session's changes. more reports that it was
// cut at maxPatch.
func readPatch(s Session) (text string, more bool) {
	f, err := record.OpenRegular(filepath.Join(s.Dir, record.PatchFile))
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

// pageWriter writes steps until the page has maxPage bytes.
type pageWriter struct {
	out     *countingWriter
	session Session
	begun   time.Time
	left    int
	// filming is how long it took to read recordings.
	filming time.Duration
	err     error
}

// stepView is a step, its time since the session began, and the film of its
// terminal.
type stepView struct {
	Step
	After time.Duration
	Film  *Film
	// FilmAt is where the film is shown instead, or "".
	FilmAt string
}

// StepView returns the data of the template "step" for the page of a session at
// base, which shows films at base/film/SEQ.
func StepView(s Step, begun time.Time, base string) any {
	v := newStepView(s, begun, nil)
	if s.Recording != nil {
		v.FilmAt = fmt.Sprintf("%s/film/%d", base, s.Seq)
	}
	return v
}

func newStepView(s Step, begun time.Time, film *Film) stepView {
	return stepView{Step: s, After: max(s.Time.Sub(begun), 0), Film: film}
}

func (p *pageWriter) writeStep(s Step) {
	if p.out.n > maxPage && s.Kind != StepTurnEnd && s.Kind != StepEnd {
		p.left++
		return
	}
	p.execute("step", newStepView(s, p.begun, p.readFilm(s)))
}

// readFilm returns the film of a step's terminal, or nil if it has none.
func (p *pageWriter) readFilm(s Step) *Film {
	if s.Recording == nil {
		return nil
	}
	if p.filming > filmsTime {
		return &Film{Problem: "the recordings before this one took too long to show"}
	}
	begun := time.Now()
	defer func() { p.filming += time.Since(begun) }()
	return ReadFilm(p.session, s)
}

func (p *pageWriter) execute(name string, v any) {
	if p.err == nil {
		p.err = pageTemplate().ExecuteTemplate(p.out, name, v)
	}
}

type countingWriter struct {
	w *bufio.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

// The template calls the following methods of Overview.

// Mood returns the CSS class of the outcome's colour.
func (o Overview) Mood() string {
	switch {
	case o.Damage != "":
		return "bad"
	case o.Ended != nil && o.Ended.ExitStatus == runner.OutcomeDone:
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

// Protections returns the attestation's most important protections.
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
		{"Network", o.Egress.Words(a.Network), a.Network == "none"},
		{"Isolation", string(cmp.Or(a.Isolation, sandbox.IsolationNamespaces)), a.Isolation != sandbox.IsolationProcess}, // older records name none
		{"Read-only root", yes(a.RootReadOnly), a.RootReadOnly},
		{"No new privileges", yes(a.NoNewPrivileges), a.NoNewPrivileges},
		{"Capabilities", caps, len(a.Capabilities) == 0},
		{"Seccomp", a.Seccomp, a.Seccomp == "filter"},
		{"User", a.User, !strings.HasPrefix(a.User, "0:")},
		{"Memory", limits.FormatSize(a.Limits.MemoryBytes), a.Limits.MemoryBytes > 0},
		{"Processes", formatCount(a.Limits.PIDs), a.Limits.PIDs > 0},
		{"Git", a.Git, true},
	}
}
