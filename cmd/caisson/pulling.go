package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/tools"
)

// pulling tells people how the fetching of images goes on: with a bar on a
// terminal, else with a line now and then. It is safe for concurrent use.
type pulling struct {
	// say writes one line.
	say func(text string)
	// bar is a terminal that can go back to the start of a line; nil is none.
	bar   io.Writer
	width func() int
	now   func() time.Time
	// pause is the time between two lines about one image.
	pause time.Duration

	mu     sync.Mutex
	states map[string]*pullState
	drawn  bool
}

// pullState is how far one image is.
type pullState struct {
	layers map[string]store.Progress // the last report of each layer's download
	unpack map[string]store.Progress
	last   time.Time
	begun  bool
	text   string // of the builder
}

// linePause is the time between two lines about one image where there is no
// bar: a person sees that it goes on, and a log stays short.
const linePause = 5 * time.Second

// report takes a report of the store.
func (p *pulling) report(r store.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := r.Reference.String()
	if p.states == nil {
		p.states = map[string]*pullState{}
	}
	s, ok := p.states[name]
	if !ok {
		s = &pullState{layers: map[string]store.Progress{}, unpack: map[string]store.Progress{}}
		p.states[name] = s
	}
	switch r.Phase {
	case store.PhaseDownload:
		s.layers[r.Digest] = r
	case store.PhaseUnpack:
		s.unpack[r.Digest] = r
	case store.PhaseBuild:
		s.text = strings.TrimSpace(r.Text)
	case store.PhaseDone:
		delete(p.states, name)
		p.erase()
		if s.begun {
			p.say(fmt.Sprintf("image %s is there%s", name, s.total()))
		}
		return
	}
	if r.Phase != store.PhaseResolve {
		p.show(name, r.Phase, s)
	}
}

// show tells where an image is.
func (p *pulling) show(name string, phase store.Phase, s *pullState) {
	text := "image " + name + ": " + s.describe(phase)
	now := p.now()
	switch {
	case p.bar != nil:
		p.draw(text, s)
	case !s.begun || now.Sub(s.last) >= p.pause:
		p.say(text)
		s.last = now
	}
	s.begun = true
}

// describe says what is done now.
func (s *pullState) describe(phase store.Phase) string {
	switch phase {
	case store.PhaseWait:
		return "another caisson is fetching it"
	case store.PhaseBuild:
		if s.text != "" {
			return "building: " + s.text
		}
		return "building"
	case store.PhaseSave:
		return "taking it from the engine"
	case store.PhaseUnpack:
		done, _ := sum(s.unpack)
		return "unpacking, " + size(done)
	}
	done, total := sum(s.layers)
	if done == 0 {
		return "fetching"
	}
	if total > done {
		return fmt.Sprintf("downloading, %s of %s", size(done), size(total))
	}
	return "downloading, " + size(done)
}

// total says how much was downloaded.
func (s *pullState) total() string {
	if done, _ := sum(s.layers); done > 0 {
		return ", " + size(done) + " downloaded"
	}
	return ""
}

// draw writes the line with its bar over the one before.
func (p *pulling) draw(text string, s *pullState) {
	safe, _ := tools.Display(text)
	if done, total := sum(s.layers); total > 0 && len(s.unpack) == 0 {
		safe = bar(done, total, 20) + " " + safe
	}
	fmt.Fprintf(p.bar, "\r\x1b[K%s", ansi.Truncate(safe, max(p.width()-1, 10), "…"))
	p.drawn = true
}

// erase takes the bar away.
func (p *pulling) erase() {
	if p.drawn {
		fmt.Fprint(p.bar, "\r\x1b[K")
		p.drawn = false
	}
}

// close takes away what a fetching that failed left.
func (p *pulling) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func sum(layers map[string]store.Progress) (done, total int64) {
	for _, l := range layers {
		done += l.Done
		total += l.Total
	}
	return done, total
}

// bar is a bar of so many cells.
func bar(done, total int64, cells int) string {
	full := int(min(max(done, 0), total) * int64(cells) / total)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}

// size writes a number of bytes as people do.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
