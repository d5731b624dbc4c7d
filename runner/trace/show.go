package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

// ShowOptions are the options of [Show].
type ShowOptions struct {
	// Kinds are the kinds of records to show, one line each. If it is empty,
	// Show writes the timeline instead.
	Kinds []record.Kind
	// JSON writes the lines of the records unchanged.
	JSON bool
	// Full shows texts in full length. FullHint says how to get that, in the
	// note that replaces lines; it may be "".
	Full     bool
	FullHint string
	// Colour adds ANSI colours for a terminal.
	Colour bool
	// Wrap breaks a line of the timeline into rows of a terminal; rows after
	// the first begin with indent. Nil keeps lines whole. Records are never
	// broken.
	Wrap func(line, indent string) []string
	// Again is called at the end of the records of a live session, and reports
	// whether to continue with records added since. If it is nil, Show ends
	// there.
	Again func() bool
}

// Show writes the timeline of a session, or some of its records. Its output is
// safe for a terminal. It returns the same results as [Read]. Damage ends the
// timeline and is reported at its end.
func Show(w io.Writer, s Session, o ShowOptions) (Overview, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	p := printer{out: out, o: o, session: s}
	write := p.writeTimeline
	if o.JSON || len(o.Kinds) > 0 {
		p.o.Wrap = nil
		write = p.writeRecords
	}
	over, err := write()
	if ferr := out.Flush(); err == nil && ferr != nil {
		err = fmt.Errorf("write session: %w", ferr)
	}
	return over, err
}

type printer struct {
	out     *bufio.Writer
	o       ShowOptions
	session Session
}

func (p *printer) writeRecords() (Overview, error) {
	return walkSession(p.session, func(r record.Record) {
		if len(p.o.Kinds) > 0 && !slices.Contains(p.o.Kinds, r.Kind) {
			return
		}
		if p.o.JSON {
			if text, err := record.Encode(r); err == nil {
				_, _ = p.out.Write(append(text, '\n'))
			}
			return
		}
		payload := displayLine(string(r.Payload))
		if !p.o.Full {
			payload = oneLine(payload, 160)
		}
		p.printf("%s %s %s %s\n", p.dim(r.Time.Local().Format("15:04:05.000")), p.dim(fmt.Sprintf("%5d", r.Seq)), p.bold(fmt.Sprintf("%-27s", r.Kind)), payload)
	}, nil, p.waitForMore())
}

// waitForMore returns ShowOptions.Again, preceded by a flush of the output.
func (p *printer) waitForMore() func() bool {
	if p.o.Again == nil {
		return nil
	}
	return func() bool { return p.out.Flush() == nil && p.o.Again() }
}

func (p *printer) writeTimeline() (Overview, error) {
	over, err := Read(p.session, nil)
	if err != nil {
		return over, err
	}
	p.writeHead(over)
	if over, err = walkSession(p.session, nil, p.writeStep, p.waitForMore()); err != nil {
		return over, err
	}
	p.writeFoot(over)
	return over, nil
}

func (p *printer) writeHead(o Overview) {
	status := p.paint("33", displayLine(o.Outcome()))
	if o.Outcome() == "answered" {
		status = p.paint("32", o.Outcome())
	}
	p.printf("%s  %s · %s · %s · %s · %s\n", p.bold(displayLine(o.Session)), status, formatDuration(o.Wall()), o.Cost(), limits.FormatCount(o.ModelCalls, "model call"), limits.FormatCount(o.ToolCalls, "tool call"))
	fact := func(name, text string) {
		if text != "" {
			p.printf("  %s %s\n", p.dim(fmt.Sprintf("%-11s", name)), displayLine(text))
		}
	}
	if !o.Begun.IsZero() {
		fact("begun", o.Begun.Local().Format("2006-01-02 15:04:05"))
	}
	if c := o.Created; c != nil {
		fact("task", oneLine(o.Task, 200))
		if c.Workspace != "" {
			fact("workspace", fmt.Sprintf("%s (%s, git %s)", c.Workspace, c.WorkspaceMode, c.Git))
		}
		fact("model", c.Model.String())
		fact("policy", fmt.Sprintf("%s, without an answer %s", c.Policy, c.OnPrompt))
		fact("caisson", c.Version)
	}
	if a := o.Sandbox; a != nil {
		fact("sandbox", a.Backend+", image "+a.Image+", "+formatProtections(*a, o.Egress))
	}
	p.printf("\n")
}

func (p *printer) writeStep(s Step) {
	at := p.dim(s.Time.Local().Format("15:04:05.000"))
	write := func(label, text string) { p.printf("%s  %s %s\n", at, p.bold(fmt.Sprintf("%-9s", label)), text) }
	switch s.Kind {
	case StepTurn:
		p.printf("%s  %s\n", at, p.bold(fmt.Sprintf("── turn %d ──", s.Turn)))
	case StepSystem:
		if p.o.Full {
			write("system", "")
			p.writeText(s.Text, "")
		} else {
			write("system", p.dim(fmt.Sprintf("%s bytes of instructions", formatCount(int64(len(s.Text))))))
		}
	case StepUser, StepAssistant, StepThinking:
		write(string(s.Kind), "")
		p.writeText(s.Text, "")
	case StepModel:
		p.writeModelCall(at, s)
	case StepCall:
		p.writeCall(at, s)
	case StepSandbox, StepCommand, StepBackground, StepWorker, StepNetwork, StepServer, StepWarning, StepAttempt, StepContext:
		text := displayLine(s.Text)
		if s.Failed || s.Kind == StepWarning {
			text = p.paint("33", text)
		}
		write(string(s.Kind), text)
		p.writeText(s.Detail, "")
	case StepOmitted:
		write("", p.dim(fmt.Sprintf("%d records are gone (keep_sessions)", s.Count)))
	case StepUnknown:
		write("?", p.dim("a record of kind "+displayLine(s.Text)+" that this program can't read"))
	case StepTurnEnd, StepEnd:
		code := "32"
		if s.Failed {
			code = "31"
		}
		write(string(s.Kind), p.paint(code, displayLine(s.Text)))
	}
}

func (p *printer) writeModelCall(at string, s Step) {
	m := s.Model
	if m.Error != "" {
		p.printf("%s  %s %s\n", at, p.bold("model    "), p.paint("31", displayLine(m.Error)))
		return
	}
	text := fmt.Sprintf("%s, %s", m.Label(), formatDuration(fromMilliseconds(m.LatencyMS)))
	if in := m.Usage.InputTokens + m.Usage.CachedInputTokens + m.Usage.CacheWriteTokens; in+m.Usage.OutputTokens > 0 {
		text += fmt.Sprintf(", %s tokens in, %s out", formatCount(in), formatCount(m.Usage.OutputTokens))
	}
	if m.Usage.CostMicroUSD != nil {
		text += ", " + formatDollars(record.CostUSD(m.Usage.CostMicroUSD))
	}
	p.printf("%s  %s %s\n", at, p.dim("model    "), p.dim(text))
}

func (p *printer) writeCall(at string, s Step) {
	c := s.Call
	mark, code := "✓", "32"
	if c.failed() {
		mark, code = "✗", "31"
	} else if c.Status == CallOpen {
		mark, code = "…", "33"
	}
	p.printf("%s  %s %s %s\n", at, p.paint(code, mark), p.bold(displayLine(string(c.Name))), displayLine(c.What()))
	p.printf("              %s\n", p.dim(displayLine(c.Facts())))
	for _, q := range c.Asked {
		p.printf("              %s\n", p.paint("36", displayLine(q.Words())))
	}
	for _, d := range c.Denied {
		p.printf("              %s\n", p.paint("33", displayLine(d.String())))
	}
	for _, r := range c.Reached {
		p.printf("              %s\n", p.dim(displayLine(r.Words())))
	}
	switch {
	case c.Error != "":
		p.writeText(c.Error, "31")
	case c.failed() || p.o.Full:
		p.writeText(c.Output, "")
		p.writeText(c.Diff, "")
	}
}

// What returns the call in one line.
func (c *Call) What() string {
	if c.Summary != "" {
		return c.Summary
	}
	return oneLine(c.Input, 160)
}

// Facts returns the outcome of the call in one line.
func (c *Call) Facts() string {
	var parts []string
	if c.Class != "" {
		parts = append(parts, string(c.Class))
	}
	if c.Rule != "" {
		parts = append(parts, "rule: "+c.Rule)
	}
	switch c.Status {
	case CallOpen:
		parts = append(parts, "no end was recorded")
	case CallFailed, CallDenied, CallInvalid:
		text := c.ErrorClass
		if c.Reason != "" {
			text += " (" + c.Reason + ")"
		}
		parts = append(parts, text)
	}
	if c.Ending != "" {
		parts = append(parts, c.Ending)
	}
	if !c.Started.IsZero() && !c.Ended.IsZero() {
		parts = append(parts, formatDuration(fromMilliseconds(c.LatencyMS)))
	}
	if c.OutputBytes > 0 {
		parts = append(parts, formatCount(int64(c.OutputBytes))+" bytes")
	}
	if len(c.Modified) > 0 {
		parts = append(parts, "changed "+oneLine(strings.Join(c.Modified, ", "), 120))
	}
	return strings.Join(parts, " · ")
}

// Words returns the question and its answer in one line.
func (q Question) Words() string {
	if q.Answered.IsZero() {
		return "asked, and not answered"
	}
	text := string(q.Decision) + " by " + q.By
	if q.Client != "" {
		text += " at " + q.Client
	}
	if q.Scope != "" {
		text += ", scope " + string(q.Scope)
	}
	if waited := q.Answered.Sub(q.At); waited > 0 {
		text += ", after " + formatDuration(waited)
	}
	if q.Reason != "" {
		text += ": " + q.Reason
	}
	return text
}

// shownLines is the number of lines at each end of a text that are shown
// without Full.
const shownLines = 12

func (p *printer) writeText(s, code string) {
	safe := displayLines(s)
	if safe == "" {
		return
	}
	lines := strings.Split(safe, "\n")
	if over := len(lines) - 2*shownLines; over > 0 && !p.o.Full {
		note := fmt.Sprintf("[… %d lines …]", over)
		if p.o.FullHint != "" {
			note = fmt.Sprintf("[… %d lines, %s …]", over, p.o.FullHint)
		}
		lines = slices.Concat(lines[:shownLines], []string{note}, lines[len(lines)-shownLines:])
	}
	for _, l := range lines {
		if !p.o.Full {
			l = clipText(l, 400)
		}
		p.printf("              %s\n", p.paint(code, l))
	}
}

func (p *printer) writeFoot(o Overview) {
	switch {
	case o.Damage != "":
		p.printf("\n%s\n", p.paint("31", "! the records were changed: "+displayLine(o.Damage)))
	case o.Torn:
		p.printf("\n%s\n", p.paint("33", "! the last line was cut short, as by a crash"))
	case o.Ended == nil && !o.Live:
		p.printf("\n%s\n", p.paint("33", "! the records end before the session did: it was killed, or records were removed"))
	}
}

func displayLine(s string) string {
	safe, _ := tools.Display(s)
	return safe
}

// stepIndent is as wide as the time before a step's text.
var stepIndent = strings.Repeat(" ", len("15:04:05.000  "))

// printf writes whole lines. Flush returns the error of a failed write.
func (p *printer) printf(format string, args ...any) {
	if p.o.Wrap == nil {
		_, _ = fmt.Fprintf(p.out, format, args...)
		return
	}
	for l := range strings.Lines(fmt.Sprintf(format, args...)) {
		_, _ = fmt.Fprintln(p.out, strings.Join(p.o.Wrap(strings.TrimSuffix(l, "\n"), stepIndent), "\n"))
	}
}

func (p *printer) paint(code, text string) string {
	if !p.o.Colour || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p *printer) bold(t string) string { return p.paint("1", t) }
func (p *printer) dim(t string) string  { return p.paint("2", t) }

// All returns every session that has records, newest first.
func All(stateDir string) ([]Session, error) {
	names, err := listSessions(stateDir)
	if err != nil {
		return nil, err
	}
	var all []Session
	for _, name := range slices.Backward(names) {
		if s, err := sessionInDir(sessiondir.Path(stateDir, name)); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Lines writes a session's records unchanged, one per line, up to the first
// damaged one.
func Lines(w io.Writer, s Session) (Overview, error) { return writeLines(w, s, "", "", "") }

// JSON writes the records as one array.
func JSON(w io.Writer, s Session) (Overview, error) { return writeLines(w, s, "[\n", ",\n", "]\n") }

// writeLines writes the records between begin and end, separated by between, or
// each followed by a newline if between is "".
func writeLines(w io.Writer, s Session, begin, between, end string) (Overview, error) {
	over := newOverview(s)
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString(begin) // Flush returns the error of a failed write
	err := over.scanRecords(s, nil, func(in *record.Reader, _ record.Record) {
		if over.Records > 1 {
			_, _ = out.WriteString(between)
		}
		_, _ = out.Write(in.Line())
		if between == "" {
			_ = out.WriteByte('\n')
		}
	})
	if err != nil {
		return over, err
	}
	if between != "" && over.Records > 0 {
		_ = out.WriteByte('\n')
	}
	_, _ = out.WriteString(end)
	if err := out.Flush(); err != nil {
		return over, fmt.Errorf("write records: %w", err)
	}
	return over, nil
}
