package trace

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// ShowOptions say how [Show] writes.
type ShowOptions struct {
	// Kinds are the kinds of records to show, one line each; none is the whole
	// story instead.
	Kinds []record.Kind
	// JSON writes the records' own lines.
	JSON bool
	// Full leaves no text out that the records have.
	Full bool
	// Colour paints for a terminal.
	Colour bool
	// Wrap breaks a line into rows of a terminal; those after the first begin with
	// indent. Nil leaves the lines of the timeline whole. Records are never broken.
	Wrap func(line, indent string) []string
	// Again is called at the end of the records of a session that lives, and
	// reports whether to go on with those that are added; nil ends there.
	Again func() bool
}

// Show writes a session for people, or some of its records. What it writes is
// safe for a terminal. It returns what [Read] does; damage ends the story, and
// is told at its end.
func Show(w io.Writer, s Session, o ShowOptions) (Overview, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	p := printer{out: out, o: o, session: s}
	var over Overview
	var err error
	switch {
	case o.JSON || len(o.Kinds) > 0:
		p.o.Wrap = nil
		over, err = p.records()
	default:
		over, err = p.story()
	}
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

// records writes records, each in one line.
func (p *printer) records() (Overview, error) {
	return walk(p.session, func(r record.Record) {
		if len(p.o.Kinds) > 0 && !slices.Contains(p.o.Kinds, r.Kind) {
			return
		}
		if p.o.JSON {
			if text, err := record.Encode(r); err == nil {
				_, _ = p.out.Write(append(text, '\n'))
			}
			return
		}
		payload := line(string(r.Payload))
		if !p.o.Full {
			payload = oneLine(payload, 160)
		}
		p.printf("%s %s %s %s\n", p.dim(r.Time.Local().Format("15:04:05.000")), p.dim(fmt.Sprintf("%5d", r.Seq)), p.bold(fmt.Sprintf("%-27s", r.Kind)), payload)
	}, nil, p.again())
}

// again is ShowOptions.Again, behind what was written so far.
func (p *printer) again() func() bool {
	if p.o.Again == nil {
		return nil
	}
	return func() bool { return p.out.Flush() == nil && p.o.Again() }
}

// story writes what happened, in order, below what the session is.
func (p *printer) story() (Overview, error) {
	over, err := Read(p.session, nil)
	if err != nil {
		return over, err
	}
	p.head(over)
	if over, err = walk(p.session, nil, p.step, p.again()); err != nil {
		return over, err
	}
	p.foot(over)
	return over, nil
}

func (p *printer) head(o Overview) {
	status := p.paint("33", line(o.Outcome()))
	if o.Outcome() == "answered" {
		status = p.paint("32", o.Outcome())
	}
	p.printf("%s  %s · %s · %s · %s · %s\n", p.bold(line(o.Session)), status, elapsed(o.Wall()), o.Cost(), plural(o.ModelCalls, "model call"), plural(o.ToolCalls, "tool call"))
	fact := func(name, text string) {
		if text != "" {
			p.printf("  %s %s\n", p.dim(fmt.Sprintf("%-11s", name)), line(text))
		}
	}
	fact("begun", o.Begun.Local().Format("2006-01-02 15:04:05"))
	if c := o.Created; c != nil {
		fact("task", oneLine(o.Task, 200))
		fact("workspace", fmt.Sprintf("%s (%s, git %s)", c.Workspace, c.WorkspaceMode, c.Git))
		fact("model", c.Model.Provider+"/"+c.Model.Model)
		fact("policy", fmt.Sprintf("%s, without an answer %s", c.Policy, c.OnPrompt))
		fact("caisson", c.Version)
	}
	if a := o.Sandbox; a != nil {
		fact("sandbox", a.Backend+", image "+a.Image+", "+protections(*a))
	}
	p.printf("\n")
}

// step writes one step.
func (p *printer) step(s Step) {
	at := p.dim(s.Time.Local().Format("15:04:05.000"))
	say := func(label, text string) { p.printf("%s  %s %s\n", at, p.bold(fmt.Sprintf("%-9s", label)), text) }
	switch s.Kind {
	case StepTurn:
		p.printf("%s  %s\n", at, p.bold(fmt.Sprintf("── turn %d ──", s.Turn)))
	case StepSystem:
		if p.o.Full {
			say("system", "")
			p.text(s.Text, "")
		} else {
			say("system", p.dim(fmt.Sprintf("%s bytes of instructions", count(int64(len(s.Text))))))
		}
	case StepUser, StepAssistant, StepThinking:
		say(string(s.Kind), "")
		p.text(s.Text, "")
	case StepModel:
		p.model(at, s)
	case StepCall:
		p.call(at, s)
	case StepSandbox, StepCommand, StepBackground, StepWarning, StepAttempt:
		text := line(s.Text)
		if s.Failed || s.Kind == StepWarning {
			text = p.paint("33", text)
		}
		say(string(s.Kind), text)
	case StepOmitted:
		say("", p.dim(fmt.Sprintf("%d records are gone (keep_sessions)", s.Count)))
	case StepUnknown:
		say("?", p.dim("a record of kind "+line(s.Text)+" that this program can't read"))
	case StepTurnEnd, StepEnd:
		code := "32"
		if s.Failed {
			code = "31"
		}
		say(string(s.Kind), p.paint(code, line(s.Text)))
	}
}

func (p *printer) model(at string, s Step) {
	m := s.Model
	if m.Error != "" {
		p.printf("%s  %s %s\n", at, p.bold("model    "), p.paint("31", line(m.Error)))
		return
	}
	text := fmt.Sprintf("round %d, %s", m.Round, elapsed(milliseconds(m.LatencyMS)))
	if in := m.Usage.InputTokens + m.Usage.CachedInputTokens + m.Usage.CacheWriteTokens; in+m.Usage.OutputTokens > 0 {
		text += fmt.Sprintf(", %s tokens in, %s out", count(in), count(m.Usage.OutputTokens))
	}
	if m.Usage.CostMicroUSD != nil {
		text += ", " + dollars(micro(*m.Usage.CostMicroUSD))
	}
	p.printf("%s  %s %s\n", at, p.dim("model    "), p.dim(text))
}

func (p *printer) call(at string, s Step) {
	c := s.Call
	mark, code := "✓", "32"
	if c.bad() {
		mark, code = "✗", "31"
	} else if c.Status == CallOpen {
		mark, code = "…", "33"
	}
	p.printf("%s  %s %s %s\n", at, p.paint(code, mark), p.bold(line(string(c.Name))), line(c.What()))
	p.printf("              %s\n", p.dim(line(c.Facts())))
	for _, q := range c.Asked {
		p.printf("              %s\n", p.paint("36", line(q.Words())))
	}
	for _, d := range c.Denied {
		p.printf("              %s\n", p.paint("33", line("refused to connect to "+d.URL+": "+d.Reason)))
	}
	switch {
	case c.Error != "":
		p.text(c.Error, "31")
	case c.bad() || p.o.Full:
		p.text(c.Output, "")
	}
}

// What is the call in one line.
func (c *Call) What() string {
	if c.Summary != "" {
		return c.Summary
	}
	return oneLine(c.Input, 160)
}

// Facts are how a call went, in one line.
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
		parts = append(parts, elapsed(milliseconds(c.LatencyMS)))
	}
	if c.OutputBytes > 0 {
		parts = append(parts, count(int64(c.OutputBytes))+" bytes")
	}
	if len(c.Modified) > 0 {
		parts = append(parts, "changed "+oneLine(strings.Join(c.Modified, ", "), 120))
	}
	return strings.Join(parts, " · ")
}

// Words are a question and its answer, in one line.
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
		text += ", after " + elapsed(waited)
	}
	return text
}

// shownLines is what is shown of a text's beginning and end without Full.
const shownLines = 12

// text writes a text of several lines, indented.
func (p *printer) text(s, code string) {
	safe, _ := tools.DisplayLines(strings.TrimRight(s, "\n"))
	if safe == "" {
		return
	}
	lines := strings.Split(safe, "\n")
	if over := len(lines) - 2*shownLines; over > 0 && !p.o.Full {
		note := fmt.Sprintf("[… %d lines, --full shows them …]", over)
		lines = slices.Concat(lines[:shownLines], []string{note}, lines[len(lines)-shownLines:])
	}
	for _, l := range lines {
		if !p.o.Full {
			l = clip(l, 400)
		}
		p.printf("              %s\n", p.paint(code, l))
	}
}

// foot says what of the records is wrong.
func (p *printer) foot(o Overview) {
	switch {
	case o.Damage != "":
		p.printf("\n%s\n", p.paint("31", "! the records were changed: "+line(o.Damage)))
	case o.Torn:
		p.printf("\n%s\n", p.paint("33", "! the last line was cut short, as by a crash"))
	case o.Ended == nil && !o.Live:
		p.printf("\n%s\n", p.paint("33", "! the records end before the session did: it was killed, or records were removed"))
	}
}

func line(s string) string {
	safe, _ := tools.Display(s)
	return safe
}

// stepIndent is as wide as what stands before the text of a step.
var stepIndent = strings.Repeat(" ", len("15:04:05.000  "))

// printf writes whole lines. The last Flush returns the error of a failed write.
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
