package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// ErrorLine returns a line about a failure.
func ErrorLine(text string, colour bool) string {
	return style{colour}.red("! " + safeLine(text))
}

// Dim returns a less important line. It must be safe.
func Dim(text string, colour bool) string { return style{colour}.dim(text) }

// MessageLines returns the user's message as it is shown above its turn.
func MessageLines(text string, colour bool) []string {
	s, out := style{colour}, []string{""}
	mark := "› "
	for l := range strings.SplitSeq(text, "\n") {
		out = append(out, s.bold(mark+safeLine(replaceTabs(l))))
		mark = "  "
	}
	return out
}

// RecapLines returns the beginnings of a resumed chat's last message and answer. If
// they are shortened, the last line says how to see them.
func RecapLines(message, answer, session string, columns int, colour bool) []string {
	const mostMessage, mostAnswer = 5, 20
	var out []string
	cut := false
	if message != "" {
		lines := MessageLines(message, colour)
		cut = len(lines) > mostMessage
		out = lines[:min(len(lines), mostMessage)]
	}
	lines := answerLines(answer, columns, func(text string) string { return text }, colour)
	cut = cut || len(lines) > mostAnswer
	out = append(out, lines[:min(len(lines), mostAnswer)]...)
	if cut {
		out = append(out, Dim("… shortened; caisson trace show "+safeLine(session)+" has all of it", colour))
	}
	return out
}

// CommandLines returns the user's command as it is shown above its output.
func CommandLines(text string, colour bool) []string {
	return []string{"", Dim("› "+safeLine(text), colour)}
}

// EndLines returns the last lines of a chat.
func EndLines(r runner.Report, colour bool) []string {
	lines := Summary(r, colour)
	if r.ChangedCount.Files == 0 && !r.Incomplete {
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == " "+r.ChangedCount.String() })
	}
	return lines
}

// TurnLines returns remarks about the end of a turn, if any.
func TurnLines(r runner.TurnReport, colour bool) []string {
	s := style{colour}
	switch {
	case r.Reason == loop.StopAnswered && r.Truncated:
		return []string{s.yellow("! the answer was cut short")}
	case r.Reason == loop.StopAnswered, r.Reason == loop.StopProviderFailed, r.Reason == loop.StopAuth:
		return nil // the failure was shown
	case r.Reason == loop.StopCancelled:
		return []string{s.yellow("! stopped")}
	case r.Limit != nil:
		return []string{s.yellow("! the turn reached its limit of " + safeLine(string(r.Limit.Kind)) + "; a message goes on")}
	case r.Err != nil:
		return []string{s.red("! the turn ended without an answer: " + safeLine(r.Err.Error()))}
	}
	return []string{s.yellow("! the turn ended without an answer: " + safeLine(string(r.Reason)))}
}

// AppliedLines describes the applied changes, or why none were.
func AppliedLines(r *overlay.Result, colour bool) []string {
	s := style{colour}
	if r.State == overlay.Empty {
		return []string{"nothing has changed"}
	}
	if !r.Refused {
		var out []string // the record was shown
		for _, f := range r.Failed {
			out = append(out, s.red("! failed: "+safeLine(f.Error())))
		}
		return out
	}
	conflicts, _ := changes.Notes(r.Conflicts, overlay.ApplyOptions{})
	_, left := changes.Notes(r.LeftOut, overlay.ApplyOptions{})
	out := append(Conflicts(conflicts, colour), LeftOut(left, colour)...)
	for _, dir := range r.Unread {
		out = append(out, s.red("! can't be read: "+overlay.Quote(dir)))
	}
	return append(out, s.red("! nothing was applied; after the end of the session caisson apply --skip-conflicts applies the rest"))
}

// describeActivity describes the current activity.
func (v *view) describeActivity(now time.Time) string {
	what, since := "working", v.since
	switch {
	case len(v.running) > 0:
		what, since = ansi.Strip(v.running[0].what), v.running[0].since
	case v.asking:
		what = "waiting for the model"
	}
	if more := len(v.running) - 1; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	return what + ", " + formatElapsed(now.Sub(since))
}
