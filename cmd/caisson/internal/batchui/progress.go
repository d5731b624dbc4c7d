// Package batchui shows batches to users: progress and tables of results.
package batchui

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/record"
)

// Progress shows the progress of a batch: one redrawn line on a terminal, a line a
// minute elsewhere. It is safe for concurrent use.
type Progress struct {
	o ProgressOptions

	mu            sync.Mutex
	done, running int
	began         time.Time
	ended         int // since the start, for the rate
	counts        map[batch.Outcome]int
	cost          int64
	drawn         bool
	lastLine      time.Time
	stop          chan struct{}
	wait          sync.WaitGroup
}

// ProgressOptions configures [NewProgress].
type ProgressOptions struct {
	Out io.Writer
	// Columns returns the terminal's width. nil means no terminal.
	Columns func() int
	// Total is the number of trials. Kept are the ends of those that had a result
	// before.
	Total int
	Kept  []batch.Ending
	// MaxCostMicroUSD is the batch's limit. 0 means none.
	MaxCostMicroUSD int64
}

const (
	drawTime = 500 * time.Millisecond
	lineTime = time.Minute
)

// NewProgress returns a progress that is shown until Close.
func NewProgress(o ProgressOptions) *Progress {
	p := &Progress{o: o, began: time.Now(), counts: map[batch.Outcome]int{}, stop: make(chan struct{})}
	for _, e := range o.Kept {
		p.countEnding(e)
	}
	p.lastLine = p.began
	p.wait.Go(p.drawLines)
	return p
}

func (p *Progress) drawLines() {
	tick := time.NewTicker(drawTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.mu.Lock()
			p.showLine(false)
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// showLine writes the line if it is due or the last. The caller holds mu.
func (p *Progress) showLine(last bool) {
	now := time.Now()
	if p.o.Columns != nil {
		line := []rune(p.formatLine(now))
		line = line[:min(len(line), max(1, p.o.Columns()-1))]
		fmt.Fprintf(p.o.Out, "\r\x1b[K%s", string(line))
		p.drawn = true
		if last {
			fmt.Fprintln(p.o.Out)
		}
		return
	}
	if last || now.Sub(p.lastLine) >= lineTime {
		p.lastLine = now
		fmt.Fprintln(p.o.Out, p.formatLine(now))
	}
}

// formatLine returns the counts, the rate of trials, the time that is left at this
// rate, and the cost.
func (p *Progress) formatLine(now time.Time) string {
	parts := []string{fmt.Sprintf("%d/%d done, %d running", p.done, p.o.Total, p.running), fmt.Sprintf("%d passed, %d failed, %d limit, %d infrastructure, %d suspect", p.counts[batch.Passed], p.counts[batch.Failed], p.counts[batch.Limit], p.counts[batch.Infrastructure], p.counts[batch.Suspect])}
	if minutes := now.Sub(p.began).Minutes(); p.ended > 0 && minutes > 0 {
		rate := float64(p.ended) / minutes
		left := time.Duration(float64(p.o.Total-p.done) / rate * float64(time.Minute))
		parts = append(parts, fmt.Sprintf("%.1f/min", rate))
		if p.done < p.o.Total {
			parts = append(parts, "ETA "+left.Round(time.Second).String())
		}
	}
	if p.o.MaxCostMicroUSD > 0 {
		parts = append(parts, formatMicroUSD(p.cost)+" of "+formatMicroUSD(p.o.MaxCostMicroUSD))
	} else if p.cost > 0 {
		parts = append(parts, formatMicroUSD(p.cost))
	}
	return strings.Join(parts, " · ")
}

func formatMicroUSD(micro int64) string { return "$" + ui.TrimCents(record.CostUSD(&micro)) }

// countEnding adds a trial. The caller holds mu or has the only reference.
func (p *Progress) countEnding(e batch.Ending) {
	p.done++
	p.counts[e.Outcome]++
	p.cost += e.CostMicroUSD
}

// Start counts a trial that starts.
func (p *Progress) Start(batch.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running++
}

// Result counts a trial that has ended.
func (p *Progress) Result(r batch.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.ended++
	p.countEnding(r.Ending())
}

// Print writes a line, which must be safe to show, above the progress.
func (p *Progress) Print(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.o.Out, "\r\x1b[K")
	}
	fmt.Fprintln(p.o.Out, line)
}

// Close writes the last line.
func (p *Progress) Close() {
	close(p.stop)
	p.wait.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.showLine(true)
}
