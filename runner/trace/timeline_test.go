package trace

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// at returns a time of a session.
func at(seconds int) time.Time {
	return time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

// draw returns what a template writes.
func draw(t *testing.T, name string, data any) (*html.Node, string) {
	t.Helper()
	var out bytes.Buffer
	if err := pageTemplate().ExecuteTemplate(&out, name, data); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	doc, err := html.Parse(&out)
	if err != nil {
		t.Fatal(err)
	}
	return doc, text
}

func textOf(n *html.Node) string {
	var out strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			out.WriteString(c.Data)
		}
	}
	return out.String()
}

func newCallStep(seq int64, status CallStatus, start, end int, asked ...Question) Step {
	return Step{Kind: StepCall, Seq: seq, Start: at(start), Time: at(end), Call: &Call{
		Name: "shell", Class: tools.ClassExecute, Status: status, Started: at(start), Ended: at(end), Asked: asked,
	}}
}

// timelineSteps are two turns, with 41 minutes between them.
func timelineSteps() []Step {
	model := func(seq int64, start, end int, failure string) Step {
		return Step{Kind: StepModel, Seq: seq, Start: at(start), Time: at(end), Failed: failure != "", Model: &ModelCall{Round: 1, LatencyMS: 1000, Error: failure}}
	}
	return []Step{
		{Kind: StepTurn, Seq: 1, Turn: 1, Start: at(0), Time: at(0)},
		model(2, 0, 2, ""),
		{Kind: StepSandbox, Seq: 3, Start: at(2), Time: at(3)},
		newCallStep(4, CallUnsuccess, 3, 6),
		newCallStep(5, CallDone, 4, 5),
		newCallStep(6, CallDenied, 9, 9, Question{At: at(7), Answered: at(9), Decision: approval.DecisionDeny}),
		{Kind: StepTurnEnd, Seq: 7, Turn: 1, Start: at(0), Time: at(10), Text: "answered"},
		{Kind: StepTurn, Seq: 8, Turn: 2, Start: at(10 + 41*60), Time: at(10 + 41*60)},
		model(9, 10+41*60, 12+41*60, "server: <b>down"),
		{Kind: StepTurnEnd, Seq: 10, Turn: 2, Start: at(10 + 41*60), Time: at(20 + 41*60), Text: "answered"},
	}
}

func TestTimeline(t *testing.T) {
	line := newTimeline()
	for _, s := range timelineSteps() {
		line.addStep(s)
	}
	doc, text := draw(t, "timeline", line.layOut("/s/ses_1"))
	var rows, links []string
	marks := map[string]int{}
	for n := range doc.Descendants() {
		switch {
		case n.Data == "g" && attribute(n, "role") == "group":
			rows = append(rows, attribute(n, "aria-label"))
		case attribute(n, "class") == "mark":
			marks[rows[len(rows)-1]]++
		case n.Data == "a":
			half := ""
			for c := range n.ChildNodes() {
				half += map[string]string{"half": " half"}[attribute(c, "class")]
			}
			links = append(links, fmt.Sprintf("%s | %s | %s%s", attribute(n, "href"), attribute(n, "class"), textOf(n.FirstChild), half))
		case attribute(n, "style") != "":
			t.Errorf("<%s> has a style, which the page's policy forbids", n.Data)
		}
	}
	if diff := cmp.Diff([]string{"turns", "model", "calls", "calls 2", "asked", "sandbox"}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"model": 1, "calls": 1, "asked": 1}, marks); diff != "" {
		t.Errorf("marks of failures (-want +got):\n%s", diff)
	}
	link := func(seq int, rest string) string { return fmt.Sprintf("/s/ses_1?at=%d#s%d | bar %s", seq, seq, rest) }
	if diff := cmp.Diff([]string{
		link(7, "turn | turn 1: answered"), link(10, "turn | turn 2: answered"),
		link(2, "model | model, round 1, 1.0 s"), link(9, "model bad | model failed: server: <b>down"),
		link(4, "call execute | shell  · execute · 0 ms half"), link(6, "call execute bad | shell  · execute ·  · 0 ms"), link(5, "call execute | shell  · execute · 0 ms"),
		link(6, "asked bad | shell: deny by , after 2.0 s"),
		link(3, "sandbox starting | sandbox starts: 1.0 s"), link(3, "sandbox | sandbox runs: 41m17s"),
	}, links); diff != "" {
		t.Errorf("bars (-want +got):\n%s", diff)
	}
	for _, want := range []string{"⋯ 41 min ⋯", "<title>nothing for 41m0s</title>", `<pattern id="hatch"`, `<rect fill="url(#hatch)" x=`} {
		if strings.Count(text, want) != 1 {
			t.Errorf("there is not one %s:\n%s", want, text)
		}
	}
	if _, text := draw(t, "timeline", line.layOut("")); !strings.Contains(text, `href="#s4"`) {
		t.Errorf("no link within the page:\n%s", text)
	}
	// The picture of a session that goes on changes nothing.
	line.addStep(Step{Kind: StepEnd, Seq: 11, Start: at(21 + 41*60), Time: at(21 + 41*60)})
	view := line.layOut("")
	if last := view.Rows[len(view.Rows)-1]; len(last.Bars) != 2 || last.Bars[1].Label != "sandbox runs: 41m18s" {
		t.Errorf("the sandbox's bars are %+v", last.Bars)
	}
	if _, text := draw(t, "timeline", newTimeline().layOut("")); text != "" {
		t.Errorf("an empty session has %s", text)
	}
}

// A timeline of a long session has a bounded number of elements, its longest
// gaps, and still says that something failed.
func TestTimelineIsBounded(t *testing.T) {
	line := newTimeline()
	now := 0
	for i := range 20_000 {
		status := CallDone
		if i == 7 {
			status = CallFailed
		}
		line.addStep(Step{Kind: StepTurn, Start: at(now), Time: at(now)})
		line.addStep(newCallStep(int64(i), status, now, now+1))
		line.addStep(Step{Kind: StepTurnEnd, Start: at(now), Time: at(now + 1)})
		now += 5
		if i == 10_000 {
			now += 24 * 3600
		}
	}
	view := line.layOut("")
	doc, text := draw(t, "timeline", view)
	elements := 0
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode {
			elements++
		}
	}
	if elements > 3000 || elements < 400 {
		t.Errorf("%d elements", elements)
	}
	if !strings.Contains(text, "⋯ 24.0 h ⋯") {
		t.Error("the longest gap is missing")
	}
	if failed := view.Rows[1].Bars[0]; !failed.Failed || !strings.HasSuffix(failed.Label, "together, from here; some failed or were refused") {
		t.Errorf("the failed call is in %+v", failed)
	}
}

func newModelStep(cost *int64, in, cached, out int64) Step {
	return Step{Kind: StepModel, Model: &ModelCall{Usage: limits.Usage{InputTokens: in, CachedInputTokens: cached, OutputTokens: out, CostMicroUSD: cost}}}
}

// tableOf returns the table of a chart.
func tableOf(t *testing.T, steps ...Step) (rows []string, title string) {
	t.Helper()
	chart := newTurnChart()
	for _, s := range steps {
		chart.addStep(s)
	}
	view := chart.layOut()
	doc, text := draw(t, "turnchart", view)
	for n := range doc.Descendants() {
		if n.Data == "tr" && n.Parent.Data == "tbody" {
			var cells []string
			for c := range n.ChildNodes() {
				cells = append(cells, textOf(c))
			}
			rows = append(rows, strings.Join(cells, " | "))
		}
		if attribute(n, "style") != "" {
			t.Errorf("<%s> has a style", n.Data)
		}
	}
	if len(rows) == 0 && text != "" {
		t.Errorf("a chart without columns:\n%s", text)
	}
	return rows, view.Title
}

func TestTurnChart(t *testing.T) {
	turn := func(n int) Step { return Step{Kind: StepTurn, Turn: n} }
	known, unknown := newModelStep(new(int64(2_000_000)), 900, 100, 50), newModelStep(nil, 10, 0, 1)
	failed := Step{Kind: StepModel, Failed: true, Model: &ModelCall{Error: "server: down"}}
	for name, test := range map[string]struct {
		steps []Step
		title string
		want  []string
	}{
		"turns": {
			[]Step{turn(1), known, known, turn(2), unknown, turn(3), known, unknown, turn(4), failed, turn(5)},
			"Cost and tokens per turn",
			[]string{
				"1 | $4.00 | 2,000 | 200 | 100 | 2", "2 | unknown | 10 | 0 | 1 | 1", "3 | at least $2.00 | 1,010 | 100 | 51 | 2",
				"4 | – | 0 | 0 | 0 | 1", "5 | – | 0 | 0 | 0 | 0",
			},
		},
		"one turn":        {[]Step{turn(1), known, unknown}, "Cost and tokens per model call", []string{"1 | $2.00 | 1,000 | 100 | 50 | 1", "2 | unknown | 10 | 0 | 1 | 1"}},
		"no turn":         {[]Step{known, known}, "Cost and tokens per model call", []string{"1 | $2.00 | 1,000 | 100 | 50 | 1", "2 | $2.00 | 1,000 | 100 | 50 | 1"}},
		"one call":        {[]Step{turn(1), known}, "", nil},
		"nothing":         {nil, "", nil},
		"absurd, foreign": {[]Step{turn(1), newModelStep(new(int64(-5)), 1<<62, 1<<62, -7), turn(2), known}, "Cost and tokens per turn", []string{"1 | $0 | 1,152,921,504,606,846,976 | 1,152,921,504,606,846,976 | 0 | 1", "2 | $2.00 | 1,000 | 100 | 50 | 1"}},
	} {
		rows, title := tableOf(t, test.steps...)
		if diff := cmp.Diff(test.want, rows); diff != "" || title != test.title {
			t.Errorf("%s: %q (-want +got):\n%s", name, title, diff)
		}
	}
}

// Each column of a long session has as many turns as the others, except for the
// last, and nothing is lost.
func TestTurnChartIsBounded(t *testing.T) {
	var steps []Step
	for i := range 1001 {
		steps = append(steps, Step{Kind: StepTurn, Turn: i + 1}, newModelStep(new(int64(1_000_000)), 1, 0, 0))
	}
	rows, title := tableOf(t, steps...)
	if len(rows) != 63 || title != "Cost and tokens per 16 turns" || rows[0] != "1–16 | $16.00 | 16 | 0 | 0 | 16" || rows[62] != "993–1001 | $9.00 | 9 | 0 | 0 | 9" {
		t.Errorf("%d columns, %q, %q", len(rows), title, rows)
	}
}

// The height of bars is in proportion, and what is unknown is not drawn as zero.
func TestTurnChartBars(t *testing.T) {
	chart := newTurnChart()
	for _, s := range []Step{newModelStep(new(int64(1000)), 300, 100, 0), newModelStep(new(int64(500)), 100, 0, 0), newModelStep(nil, 0, 0, 0)} {
		chart.addStep(s)
	}
	var got []string
	for _, r := range chart.layOut().Rows {
		line := r.Name + ":"
		for _, b := range r.Bars {
			for _, p := range b.Parts {
				line += fmt.Sprintf(" %s %s", p.Class, p.Height)
			}
			line += ";"
		}
		got = append(got, line)
	}
	want := []string{"cost, up to $0.0010: cost 48.0; cost 24.0; unknown 8.0;", "tokens in, up to 400: cached 12.0 in 36.0; in 12.0;;", "tokens out, up to 0:;;;"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
