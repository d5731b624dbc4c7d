package trace

import (
	"fmt"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
)

// maxColumns bounds the columns of a chart. Beyond it each column takes twice as
// many turns.
const maxColumns = 120

// turnChart sums cost and tokens by turn, and by model call for sessions that
// have one turn. Its size does not depend on the length of the session.
type turnChart struct {
	turns, calls columns
}

func newTurnChart() *turnChart {
	return &turnChart{turns: columns{per: 1}, calls: columns{per: 1}}
}

func (c *turnChart) addStep(s Step) {
	switch s.Kind {
	case StepTurn:
		c.turns.begin(s.Turn)
	case StepModel:
		if len(c.turns.list) == 0 {
			c.turns.begin(s.Turn)
		}
		c.calls.begin(c.calls.begun + 1)
		c.turns.add(s.Model)
		c.calls.add(s.Model)
	}
}

// columns are columns of per turns or calls each; the last may have fewer.
type columns struct {
	list       []column
	per, begun int
}

// column sums some turns or calls.
type column struct {
	First, Last int
	Calls       int
	// done counts the calls that succeeded or have a cost. unknown counts how
	// many of these have no cost.
	done, unknown         int
	cost, In, Cached, Out int64
}

func (c *columns) begin(number int) {
	c.begun++
	if last := len(c.list) - 1; last >= 0 && (c.begun-1)%c.per > 0 {
		c.list[last].Last = number
		return
	}
	c.list = append(c.list, column{First: number, Last: number})
	if len(c.list) <= maxColumns {
		return
	}
	c.per *= 2
	for i := 0; i < len(c.list); i += 2 {
		merged := c.list[i]
		if i+1 < len(c.list) {
			merged = merged.plus(c.list[i+1])
		}
		c.list[i/2] = merged
	}
	c.list = c.list[:(len(c.list)+1)/2]
}

func (c *columns) add(m *ModelCall) {
	last := &c.list[len(c.list)-1]
	u := m.Usage
	one := column{Calls: 1, In: addCounts(addCounts(addCounts(0, u.InputTokens), u.CachedInputTokens), u.CacheWriteTokens), Cached: addCounts(0, u.CachedInputTokens), Out: addCounts(0, u.OutputTokens)}
	if m.Error == "" || u.CostMicroUSD != nil {
		one.done = 1
	}
	if u.CostMicroUSD != nil {
		one.cost = addCounts(0, *u.CostMicroUSD)
	} else {
		one.unknown = one.done
	}
	one.First, one.Last = last.First, last.Last
	*last = last.plus(one)
}

func (c column) plus(o column) column {
	return column{
		First: c.First, Last: o.Last, Calls: c.Calls + o.Calls, done: c.done + o.done, unknown: c.unknown + o.unknown,
		cost: addCounts(c.cost, o.cost), In: addCounts(c.In, o.In), Cached: addCounts(c.Cached, o.Cached), Out: addCounts(c.Out, o.Out),
	}
}

// addCounts adds counts of a trace, which may be anything.
func addCounts(a, b int64) int64 {
	const most = 1 << 60
	return min(a+min(max(b, 0), most), most)
}

// Cost returns the cost for display.
func (c column) Cost() string {
	known := formatDollars(record.CostUSD(&c.cost))
	switch {
	case c.done == 0:
		return "–"
	case c.unknown == c.done:
		return "unknown"
	case c.unknown > 0:
		return "at least " + known
	}
	return known
}

// Name returns the numbers of the column's turns or calls.
func (c column) Name() string {
	if c.First == c.Last {
		return fmt.Sprint(c.First)
	}
	return fmt.Sprintf("%d–%d", c.First, c.Last)
}

func (c column) label(noun string) string {
	return fmt.Sprintf("%s %s: cost %s, %s tokens in, %s of them cached, %s out", noun, c.Name(), c.Cost(), formatCount(c.In), formatCount(c.Cached), formatCount(c.Out))
}

// TurnChart is the data of template "turnchart". It has no columns if there is
// nothing to compare.
type TurnChart struct {
	// Title says what a column is, Noun what it counts.
	Title, Noun string
	Columns     []column
	Rows        []chartRow
	Ticks       []tick
	Height      int
}

type chartRow struct {
	Name      string
	Top, Foot int
	Bars      []chartBar
}

type chartBar struct {
	Left, Width string
	Label       string
	Parts       []chartPart // from the foot upwards
}

type chartPart struct{ Class, Top, Height string }

// The measures of a chart, in pixels.
const (
	barsHeight  = 48
	stubHeight  = 8 // of what is unknown
	chartHeight = barsHeight + 2*lineHeight
)

// layOut returns the chart so far.
func (c *turnChart) layOut() TurnChart {
	from, noun := c.turns, "turn"
	if len(from.list) < 2 {
		from, noun = c.calls, "model call"
	}
	if len(from.list) < 2 {
		return TurnChart{}
	}
	v := TurnChart{Title: "Cost and tokens per " + noun, Noun: noun, Columns: slices.Clone(from.list)}
	if from.per > 1 {
		v.Title = "Cost and tokens per " + limits.FormatCount(from.per, noun)
	}
	v.addRow("cost", func(n int64) string { return formatDollars(record.CostUSD(&n)) }, func(c column) ([]amount, bool) {
		return []amount{{"cost", c.cost}}, c.unknown > 0
	})
	v.addRow("tokens in", formatCount, func(c column) ([]amount, bool) {
		return []amount{{"cached", min(c.Cached, c.In)}, {"in", c.In - min(c.Cached, c.In)}}, false
	})
	v.addRow("tokens out", formatCount, func(c column) ([]amount, bool) { return []amount{{"out", c.Out}}, false })
	for i, every := 0, (len(v.Columns)+6)/7; i < len(v.Columns); i += every {
		v.Ticks = append(v.Ticks, tick{Left: formatPercent((float64(i) + 0.5) / float64(len(v.Columns))), Text: fmt.Sprint(v.Columns[i].First)})
	}
	v.Height = len(v.Rows)*chartHeight + lineHeight
	return v
}

// amount is a part of a bar: its class and how much it is.
type amount struct {
	class string
	n     int64
}

// addRow adds a row of bars, each as high as its amounts together. A bar whose
// amount is not fully known ends in a stub.
func (v *TurnChart) addRow(name string, format func(int64) string, of func(column) (amounts []amount, unknown bool)) {
	r := chartRow{Top: len(v.Rows)*chartHeight + lineHeight, Foot: len(v.Rows)*chartHeight + lineHeight + barsHeight}
	most, unknown := int64(0), true
	for _, c := range v.Columns {
		parts, open := of(c)
		most = max(most, sumAmounts(parts))
		unknown = unknown && (open || c.done == 0)
	}
	r.Name = name + ", up to " + format(most)
	if unknown && most == 0 {
		r.Name = name + " unknown"
	}
	slot := 1 / float64(len(v.Columns))
	width := min(slot*0.8, 0.06)
	for i, c := range v.Columns {
		parts, open := of(c)
		b := chartBar{Left: formatPercent((float64(i)+0.5)*slot - width/2), Width: formatPercent(width), Label: c.label(v.Noun)}
		foot := float64(r.Foot)
		for _, p := range parts {
			if p.n > 0 {
				b.add(p.class, &foot, max(float64(p.n)/float64(most)*barsHeight, 1))
			}
		}
		if open {
			b.add("unknown", &foot, stubHeight)
		}
		r.Bars = append(r.Bars, b)
	}
	v.Rows = append(v.Rows, r)
}

func sumAmounts(list []amount) (n int64) {
	for _, a := range list {
		n = addCounts(n, a.n)
	}
	return n
}

// add puts a part on top of the ones before, which end at foot.
func (b *chartBar) add(class string, foot *float64, height float64) {
	*foot -= height
	b.Parts = append(b.Parts, chartPart{class, fmt.Sprintf("%.1f", *foot), fmt.Sprintf("%.1f", height)})
}
