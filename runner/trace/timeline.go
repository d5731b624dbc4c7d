package trace

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

type span struct {
	Start, End time.Time
	Class      string // CSS class of the colour
	Label      string
	Seq        int64 // the step that it links to
	Count      int   // steps merged into it
}

const (
	// maxSpans bounds the bars of a lane. Beyond it neighbours are merged, so
	// that the timeline shows the whole session, however long it was.
	maxSpans = 240
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
			t.idle = mergeSpans(append(t.idle, span{Start: t.turnEnd, End: s.Time}))
		}
	case StepTurnEnd:
		t.turnEnd = s.Time
		t.addSpan("turns", span{Start: s.Start, End: s.Time, Class: "turn", Label: fmt.Sprintf("turn %d: %s", s.Turn, oneLine(s.Text, 60)), Seq: s.Seq})
	case StepModel:
		class, label := "model", fmt.Sprintf("model, %s, %s", s.Model.Label(), formatDuration(fromMilliseconds(s.Model.LatencyMS)))
		if s.Failed {
			class, label = "model bad", "model failed: "+oneLine(s.Model.Error, 80)
		}
		t.addSpan("model", span{Start: s.Start, End: s.Time, Class: class, Label: label, Seq: s.Seq})
	case StepCall:
		t.addCall(s)
	case StepSandbox:
		t.addSandbox(s)
	case StepCommand:
		t.addSpan("sandbox", span{Start: s.Start, End: s.Time, Class: "command", Label: "a user's command: " + oneLine(s.Text, 80), Seq: s.Seq})
	case StepBackground:
		t.addSpan("background", span{Start: s.Start, End: s.Time, Class: "call execute", Label: oneLine(s.Text, 120), Seq: s.Seq})
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
		class := "asked"
		if q.Decision != "allow" {
			class = "asked bad"
		}
		t.addSpan("asked", span{Start: q.At, End: q.Answered, Class: class, Label: string(c.Name) + ": " + q.Words(), Seq: s.Seq})
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
	class := "call " + string(c.Class)
	switch {
	case c.Status == CallUnsuccess:
		class += " unsuccessful"
	case c.failed():
		class += " bad"
	}
	b := span{Start: start, End: end, Class: class, Label: string(c.Name) + " " + oneLine(c.What(), 80) + " · " + c.Facts(), Seq: s.Seq}
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
		t.addSpan("sandbox", span{Start: s.Time, End: s.Time, Class: "sandbox bad", Label: "sandbox " + oneLine(s.Text, 80), Seq: s.Seq})
		return
	}
	t.addSpan("sandbox", span{Start: s.Start, End: s.Time, Class: "sandbox starting", Label: "sandbox starts: " + formatDuration(s.Time.Sub(s.Start)), Seq: s.Seq})
	t.sandboxAt, t.sandboxSeq = s.Time, s.Seq
}

func (t *timeline) endSandbox(at time.Time) {
	if !t.sandboxAt.IsZero() && at.After(t.sandboxAt) {
		t.addSpan("sandbox", span{Start: t.sandboxAt, End: at, Class: "sandbox", Label: "sandbox runs: " + formatDuration(at.Sub(t.sandboxAt)), Seq: t.sandboxSeq})
	}
	t.sandboxAt = time.Time{}
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
			m.Label = fmt.Sprintf("%d together, from here", m.Count)
		}
		out = append(out, m)
	}
	return out
}

func (t *timeline) close() { t.endSandbox(t.last) }

// bar is a span with its position, in percent of the width.
type bar struct {
	span
	Left, Width string
}

type row struct {
	Name string
	Bars []bar
}

// tick is a mark of the axis.
type tick struct{ Left, Text, Class string }

type timelineView struct {
	Rows  []row
	Ticks []tick
	Idle  []bar
}

// layOut returns the positions of the bars. Long gaps between turns are drawn
// short, so that the rest stays visible.
func (t *timeline) layOut() timelineView {
	a := newAxis(t.begun, t.last, t.idle)
	var d timelineView
	for _, name := range laneOrder {
		spans := t.lanes[name]
		if len(spans) == 0 || name == "turns" && len(spans) < 2 {
			continue
		}
		r := row{Name: name}
		if strings.HasPrefix(name, "calls ") {
			r.Name = ""
		}
		for _, s := range spans {
			r.Bars = append(r.Bars, a.barOf(s))
		}
		d.Rows = append(d.Rows, r)
	}
	for _, gap := range a.gaps {
		b := a.barOf(gap)
		b.Label = "nothing for " + formatDuration(gap.End.Sub(gap.Start))
		d.Idle = append(d.Idle, b)
	}
	const ticks = 4
	for i := range ticks + 1 {
		at := float64(i) / ticks
		next := tick{Left: formatPercent(at), Text: formatDuration(a.timeAt(at).Sub(t.begun)), Class: map[int]string{0: "first", ticks: "last"}[i]}
		if len(d.Ticks) == 0 || d.Ticks[len(d.Ticks)-1].Text != next.Text {
			d.Ticks = append(d.Ticks, next)
		}
	}
	return d
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
	return bar{span: s, Left: formatPercent(left), Width: formatPercent(right - left)}
}

func formatPercent(f float64) string { return fmt.Sprintf("%.3f%%", f*100) }
