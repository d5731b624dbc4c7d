package report

import (
	"cmp"
	"slices"

	"github.com/caisson-run/caisson/runner/batch"
)

// The area of the plot of costs and rates in its picture, and the height of a label.
const (
	plotLeft, plotRight = 44.0, 620.0
	plotTop, plotBottom = 16.0, 220.0
	plotLine            = 13.0
)

// costPlot places agents by what a judged trial costs, and by pass@1.
type costPlot struct {
	Points    []plotPoint
	Half, Max string // costs at the middle and the end of the scale
	Left      int    // agents with a known cost that are not shown
	Unknown   int    // agents whose cost is not known, or that have no judged trial
}

type plotPoint struct {
	agentRow
	PerJudged               string
	Known                   int // judged trials with a known cost
	X, Y, Top, Height       float64
	LabelX, LabelY, dollars float64
	Anchor                  string
}

// newCostPlot returns the plot of agents by their results, or nil if no agent has a
// cost.
func newCostPlot(agents []agentRow, results []batch.Result) *costPlot {
	sums, known := map[string]int64{}, map[string]int{}
	for _, r := range results {
		if micro := r.Usage.CostMicroUSD; micro != nil && r.Outcome.Judged() {
			sums[r.Agent] += *micro
			known[r.Agent]++
		}
	}
	p, most := &costPlot{}, 0.0
	for _, a := range agents {
		if known[a.Agent] == 0 || a.Chart == nil {
			p.Unknown++
			continue
		}
		dollars := float64(sums[a.Agent]) / 1e6 / float64(known[a.Agent])
		most = max(most, dollars)
		p.Points = append(p.Points, plotPoint{agentRow: a, PerJudged: formatDollars(dollars), Known: known[a.Agent], dollars: dollars})
	}
	if most <= 0 {
		return nil
	}
	p.Half, p.Max = formatDollars(most/2), formatDollars(most)
	p.Points, p.Left = cut(p.Points, maxPoints)
	height := func(rate float64) float64 { return plotBottom - (plotBottom-plotTop)*rate }
	for i := range p.Points {
		d := &p.Points[i]
		rate := d.PassAt1
		d.X, d.Y, d.Top = plotLeft+(plotRight-plotLeft)*d.dollars/most, height(*rate.Value), height(*rate.High)
		d.Height = height(*rate.Low) - d.Top
		d.LabelX, d.Anchor = d.X+9, "start"
		if d.X > (plotLeft+plotRight)/2 {
			d.LabelX, d.Anchor = d.X-9, "end"
		}
	}
	p.placeLabels()
	return p
}

// placeLabels places labels beside their points, so that none covers another.
func (p *costPlot) placeLabels() {
	sorted := make([]*plotPoint, len(p.Points))
	for i := range p.Points {
		sorted[i] = &p.Points[i]
	}
	slices.SortStableFunc(sorted, func(a, b *plotPoint) int { return cmp.Compare(a.Y, b.Y) })
	least := 0.0
	for _, d := range sorted {
		d.LabelY = max(d.Y+4, least)
		least = d.LabelY + plotLine
	}
	most := plotBottom
	for _, d := range slices.Backward(sorted) {
		d.LabelY = min(d.LabelY, most)
		most = d.LabelY - plotLine
	}
}
