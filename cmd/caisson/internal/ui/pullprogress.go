package ui

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// PullProgress shows the progress of fetching images: a bar on a terminal, occasional
// lines elsewhere. It is safe for concurrent use.
type PullProgress struct {
	Say func(text string)
	// Bar is a terminal that can return to the start of a line, or nil.
	Bar   io.Writer
	Width func() int

	mu     sync.Mutex
	states map[string]*pullState
	drawn  bool
}

type pullState struct {
	layers map[string]store.Progress // the last report of each layer's download
	unpack map[string]store.Progress
	last   time.Time
	begun  bool
	text   string // the builder's
}

// linePause is the time between two lines about one image: users see progress, and logs
// stay short.
const linePause = 5 * time.Second

// Report shows a report of the store.
func (p *PullProgress) Report(r store.Progress) {
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
		p.eraseBar()
		if s.begun {
			p.Say(fmt.Sprintf("image %s is there%s", name, s.downloadedText()))
		}
		return
	}
	if r.Phase != store.PhaseResolve {
		p.showState(name, r.Phase, s)
	}
}

func (p *PullProgress) showState(name string, phase store.Phase, s *pullState) {
	text := "image " + name + ": " + s.describePhase(phase)
	switch {
	case p.Bar != nil:
		p.drawBar(text, s)
	case !s.begun || time.Since(s.last) >= linePause:
		p.Say(text)
		s.last = time.Now()
	}
	s.begun = true
}

func (s *pullState) describePhase(phase store.Phase) string {
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
		done, _ := sumProgress(s.unpack)
		return "unpacking, " + limits.FormatSize(done)
	}
	done, total := sumProgress(s.layers)
	if done == 0 {
		return "fetching"
	}
	if total > done {
		return fmt.Sprintf("downloading, %s of %s", limits.FormatSize(done), limits.FormatSize(total))
	}
	return "downloading, " + limits.FormatSize(done)
}

func (s *pullState) downloadedText() string {
	if done, _ := sumProgress(s.layers); done > 0 {
		return ", " + limits.FormatSize(done) + " downloaded"
	}
	return ""
}

// drawBar replaces the line.
func (p *PullProgress) drawBar(text string, s *pullState) {
	safe, _ := tools.Display(text)
	if done, total := sumProgress(s.layers); total > 0 && len(s.unpack) == 0 {
		safe = progressBar(done, total, 20) + " " + safe
	}
	fmt.Fprintf(p.Bar, "\r\x1b[K%s", ansi.Truncate(safe, max(p.Width()-1, 10), "…"))
	p.drawn = true
}

func (p *PullProgress) eraseBar() {
	if p.drawn {
		fmt.Fprint(p.Bar, "\r\x1b[K")
		p.drawn = false
	}
}

// Close removes the bar of a failed fetch.
func (p *PullProgress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseBar()
}

func sumProgress(layers map[string]store.Progress) (done, total int64) {
	for _, l := range layers {
		done += l.Done
		total += l.Total
	}
	return done, total
}

func progressBar(done, total int64, cells int) string {
	full := int(min(max(done, 0), total) * int64(cells) / total)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full)
}
