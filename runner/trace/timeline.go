package trace

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools/approval"
)

type span struct {
	Start, End time.Time
	Class      string // CSS class of the colour
	Label      string
	Seq        int64 // the step that it links to
	Count      int   // steps merged into it
	// Failed reports that at least one of them failed or was refused, and
	// Unsuccessful that one ran to its end without success.
	Failed, Unsuccessful bool
}

const (
	// maxSpans bounds the bars of a lane. Beyond it neighbours are merged, so
	// that the timeline shows the whole session, however long it was.
	maxSpans = 90
	// maxRows bounds the rows of concurrent calls.
	maxRows = 4
)

// timeline collects bars. Its size does not depend on the length of the
// session.
type timeline struct {
	begun, last time.Time
	lanes       map[string][]span // rows of bars
	idle        []span            // between turns
	turnEnd     time.Time
	sandboxAt   time.Time
	sandboxSeq  int64
}

var laneOrder = []string{"turns", "model", "calls", "calls 2", "calls 3", "calls 4", "background", "asked", "sandbox"}

func newTimeline() *timeline { return &timeline{lanes: map[string][]span{}} }

func (t *timeline) clone() *timeline {
	c := *t
	c.idle, c.lanes = slices.Clone(t.idle), make(map[string][]span, len(t.lanes))
	for name, spans := range t.lanes {
		c.lanes[name] = slices.Clone(spans)
	}
	return &c
}

func (t *timeline) addStep(s Step) {
	if t.begun.IsZero() || s.Start.Before(t.begun) {
		t.begun = s.Start
	}
	if s.Time.After(t.last) {
		t.last = s.Time
	}
	switch s.Kind {
	case StepTurn:
		if !t.turnEnd.IsZero() {
			t.addIdle(span{Start: t.turnEnd, End: s.Time})
		}
	case StepTurnEnd:
		t.turnEnd = s.Time
		t.addSpan("turns", span{Start: s.Start, End: s.Time, Class: "turn", Label: fmt.Sprintf("turn %d: %s", s.Turn, oneLine(s.Text, 60)), Seq: s.Seq})
	case StepModel:
		label := fmt.Sprintf("model, %s, %s", s.Model.Label(), formatDuration(fromMilliseconds(s.Model.LatencyMS)))
		if s.Failed {
			label = "model failed: " + oneLine(s.Model.Error, 80)
		}
		t.addSpan("model", span{Start: s.Start, End: s.Time, Class: "model", Label: label, Seq: s.Seq, Failed: s.Failed})
	case StepCall:
		t.addCall(s)
	case StepSandbox:
		t.addSandbox(s)
	case StepCommand:
		t.addSpan("sandbox", span{Start: s.Start, End: s.Time, Class: "command", Label: "a user's command: " + oneLine(s.Text, 80), Seq: s.Seq, Unsuccessful: s.Failed})
	case StepBackground:
		t.addSpan("background", span{Start: s.Start, End: s.Time, Class: "call execute", Label: oneLine(s.Text, 120), Seq: s.Seq, Failed: s.Failed})
	case StepEnd:
		t.endSandbox(s.Time)
	}
}

// addCall adds a bar for each wait for an answer, and one for the run of the
// call.
func (t *timeline) addCall(s Step) {
	c := s.Call
	for _, q := range c.Asked {
		if q.Answered.IsZero() || !q.Answered.After(q.At) {
			continue
		}
		t.addSpan("asked", span{
			Start: q.At, End: q.Answered, Class: "asked", Label: string(c.Name) + ": " + q.Words(), Seq: s.Seq, Failed: q.Decision != approval.DecisionAllow,
		})
	}
	start, end := c.Started, c.Ended
	if start.IsZero() {
		if end.IsZero() {
			return
		}
		start = end // it never ran
	}
	if end.IsZero() {
		end = s.Time
	}
	b := span{
		Start: start, End: end, Class: "call " + string(c.Class), Label: string(c.Name) + " " + oneLine(c.What(), 80) + " · " + c.Facts(), Seq: s.Seq,
		Failed: c.failed() && c.Status != CallUnsuccess, Unsuccessful: c.Status == CallUnsuccess,
	}
	for row := range maxRows {
		name := "calls"
		if row > 0 {
			name = fmt.Sprintf("calls %d", row+1)
		}
		if row == maxRows-1 || !overlapsAny(t.lanes[name], b) {
			t.addSpan(name, b)
			return
		}
	}
}

func overlapsAny(spans []span, b span) bool {
	return slices.ContainsFunc(spans, func(o span) bool { return b.Start.Before(o.End) && o.Start.Before(b.End) })
}

func (t *timeline) addSandbox(s Step) {
	t.endSandbox(s.Start)
	if s.Start.Equal(s.Time) && s.Failed { // it was lost
		t.addSpan("sandbox", span{Start: s.Time, End: s.Time, Class: "sandbox", Label: "sandbox " + oneLine(s.Text, 80), Seq: s.Seq, Failed: true})
		return
	}
	t.addSpan("sandbox", span{Start: s.Start, End: s.Time, Class: "sandbox starting", Label: "sandbox starts: " + formatDuration(s.Time.Sub(s.Start)), Seq: s.Seq})
	t.sandboxAt, t.sandboxSeq = s.Time, s.Seq
}

func (t *timeline) endSandbox(at time.Time) {
	if b, ok := t.sandboxUntil(at); ok {
		t.addSpan("sandbox", b)
	}
	t.sandboxAt = time.Time{}
}

// sandboxUntil returns the bar of the sandbox that runs, if there is one.
func (t *timeline) sandboxUntil(at time.Time) (span, bool) {
	b := span{Start: t.sandboxAt, End: at, Class: "sandbox", Label: "sandbox runs: " + formatDuration(at.Sub(t.sandboxAt)), Seq: t.sandboxSeq}
	return b, !t.sandboxAt.IsZero() && at.After(t.sandboxAt)
}

// addIdle adds a time between turns. Of more than maxSpans, the shortest is
// dropped.
func (t *timeline) addIdle(gap span) {
	t.idle = append(t.idle, gap)
	if len(t.idle) > maxSpans {
		shortest := 0
		for i, g := range t.idle {
			if g.End.Sub(g.Start) < t.idle[shortest].End.Sub(t.idle[shortest].Start) {
				shortest = i
			}
		}
		t.idle = slices.Delete(t.idle, shortest, shortest+1)
	}
}

func (t *timeline) addSpan(name string, b span) {
	b.Count = 1
	t.lanes[name] = mergeSpans(append(t.lanes[name], b))
}

// mergeSpans merges pairs of neighbours if there are more than maxSpans.
func mergeSpans(spans []span) []span {
	if len(spans) <= maxSpans {
		return spans
	}
	slices.SortStableFunc(spans, func(a, b span) int { return a.Start.Compare(b.Start) })
	var out []span
	for i := 0; i < len(spans); i += 2 {
		m := spans[i]
		if i+1 < len(spans) {
			n := spans[i+1]
			m.Count += n.Count
			if n.End.After(m.End) {
				m.End = n.End
			}
			if n.Class != m.Class {
				m.Class = "mixed"
			}
			m.Failed, m.Unsuccessful = m.Failed || n.Failed, m.Unsuccessful || n.Unsuccessful
			m.Label = fmt.Sprintf("%d together, from here", m.Count)
			switch {
			case m.Failed:
				m.Label += "; some failed or were refused"
			case m.Unsuccessful:
				m.Label += "; some ran without success"
			}
		}
		out = append(out, m)
	}
	return out
}

// The measures of the picture, in pixels. Places from left to right are in
// percent, so that it is as wide as its page.
const (
	rowHeight  = 24
	lineHeight = 18 // of a text under the rows
	// textShare is the share of the width that the text of a gap may need.
	textShare = 0.36
)

// TimelineView is the data of template "timeline".
type TimelineView struct {
	Rows  []row
	Ticks []tick
	Gaps  []bar
	// Foot is where the rows end, and Height where the picture does.
	Foot, Height int
	base         string
}

type row struct {
	// Name is "" if the row continues the one before. Label is never "".
	Name, Label string
	Middle      int
	Bars        []bar
}

// bar is a span with its place.
type bar struct {
	span
	Left, Middle, Width string
	Top, Height         int
	// Text stands under a gap. Anchor says on which side of Middle.
	Text, Anchor string
	place        float64
}

// tick is a mark of the axis.
type tick struct{ Left, Text, Anchor string }

// Href returns the link to a bar's step.
func (v TimelineView) Href(b bar) string {
	if v.base == "" {
		return fmt.Sprintf("#s%d", b.Seq)
	}
	return fmt.Sprintf("%s?at=%d#s%d", v.base, b.Seq, b.Seq)
}

// layOut returns the picture so far. Long gaps between turns are drawn short, so
// that the rest stays visible. Links lead to base, "" for the same page.
func (t *timeline) layOut(base string) TimelineView {
	a := newAxis(t.begun, t.last, t.idle)
	v := TimelineView{base: base}
	for _, name := range laneOrder {
		spans := t.lanes[name]
		if running, ok := t.sandboxUntil(t.last); ok && name == "sandbox" {
			spans = append(slices.Clone(spans), running)
		}
		if len(spans) == 0 || name == "turns" && len(spans) < 2 {
			continue
		}
		r := row{Name: name, Label: name, Middle: v.Foot + rowHeight/2}
		if strings.HasPrefix(name, "calls ") {
			r.Name = ""
		}
		for _, s := range spans {
			b := a.barOf(s)
			b.Height = rowHeight - 10
			if s.Class == "sandbox" { // it is behind everything else that happens
				b.Height /= 2
			}
			b.Top = r.Middle - b.Height/2
			r.Bars = append(r.Bars, b)
		}
		v.Rows = append(v.Rows, r)
		v.Foot += rowHeight
	}
	v.Height = v.Foot + lineHeight
	for _, gap := range a.gaps {
		b := a.barOf(gap)
		b.Label = "nothing for " + formatDuration(gap.End.Sub(gap.Start))
		v.Gaps = append(v.Gaps, b)
	}
	if nameGaps(v.Gaps) {
		v.Height += lineHeight
	}
	const ticks = 4
	for i := range ticks + 1 {
		at := float64(i) / ticks
		next := tick{Left: formatPercent(at), Text: formatDuration(a.timeAt(at).Sub(t.begun)), Anchor: map[int]string{0: "first", ticks: "last"}[i]}
		if t.last.Sub(t.begun) >= time.Hour {
			next.Text = formatLong(a.timeAt(at).Sub(t.begun))
		}
		if len(v.Ticks) == 0 || v.Ticks[len(v.Ticks)-1].Text != next.Text {
			v.Ticks = append(v.Ticks, next)
		}
	}
	return v
}

// nameGaps gives the longest gaps a text, where there is room for it. It reports
// whether one has.
func nameGaps(gaps []bar) bool {
	order := make([]*bar, len(gaps))
	for i := range gaps {
		order[i] = &gaps[i]
	}
	slices.SortStableFunc(order, func(a, b *bar) int { return cmp.Compare(b.End.Sub(b.Start), a.End.Sub(a.Start)) })
	var taken []float64 // where texts begin
	for _, b := range order {
		left, anchor := b.place-textShare/2, ""
		switch {
		case left < 0:
			left, anchor = b.place, "first"
		case left+textShare > 1:
			left, anchor = b.place-textShare, "last"
		}
		if !slices.ContainsFunc(taken, func(other float64) bool { return math.Abs(other-left) < textShare }) {
			taken = append(taken, left)
			b.Text, b.Anchor = "⋯ "+formatLong(b.End.Sub(b.Start))+" ⋯", anchor
		}
	}
	return len(taken) > 0
}

// formatLong formats a long time in few characters, like 47 min or 5.3 h.
func formatLong(d time.Duration) string {
	switch {
	case d < time.Minute:
		return formatDuration(d)
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}

// axis maps times to positions from 0 to 1.
type axis struct {
	begun, last time.Time
	gaps        []span
	short       time.Duration // the drawn length of a gap
	length      time.Duration
}

// gapShare is the drawn length of a shortened gap, as a share of the active
// time. Gaps of more than twice that length are shortened.
const gapShare = 0.05

func newAxis(begun, last time.Time, idle []span) axis {
	a := axis{begun: begun, last: last}
	active := last.Sub(begun)
	for _, gap := range idle {
		active -= gap.End.Sub(gap.Start)
	}
	a.short = time.Duration(float64(active) * gapShare)
	a.length = last.Sub(begun)
	for _, gap := range idle {
		if d := gap.End.Sub(gap.Start); d > 2*a.short && d > time.Second {
			a.gaps = append(a.gaps, gap)
			a.length -= d - a.short
		}
	}
	a.length = max(a.length, time.Millisecond)
	return a
}

func (a axis) placeOf(at time.Time) float64 {
	d := at.Sub(a.begun)
	for _, gap := range a.gaps {
		switch whole := gap.End.Sub(gap.Start); {
		case !at.Before(gap.End):
			d -= whole - a.short
		case at.After(gap.Start):
			in := at.Sub(gap.Start)
			d -= in - time.Duration(float64(in)/float64(whole)*float64(a.short))
		}
	}
	return min(max(float64(d)/float64(a.length), 0), 1)
}

func (a axis) timeAt(place float64) time.Time {
	low, high := a.begun, a.last
	for range 60 {
		middle := low.Add(high.Sub(low) / 2)
		if a.placeOf(middle) < place {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

func (a axis) barOf(s span) bar {
	left, right := a.placeOf(s.Start), a.placeOf(s.End)
	width := max(right-left, 0.0001) // no browser draws a bar without a width
	place := (left + right) / 2
	return bar{span: s, Left: formatPercent(left), Middle: formatPercent(place), Width: formatPercent(width), place: place}
}

func formatPercent(f float64) string { return fmt.Sprintf("%.3f%%", f*100) }
