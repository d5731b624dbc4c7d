package store

import (
	"sync"
	"time"

	"github.com/caisson-run/caisson/images"
)

// Phase is what a [Store] is doing.
type Phase string

// The phases, in the order in which a registry's image passes them. An image
// that is cached passes none.
const (
	PhaseResolve  Phase = "resolve"  // asking what the reference names
	PhaseWait     Phase = "wait"     // another process is fetching the same
	PhaseBuild    Phase = "build"    // a builder works; Text is its line
	PhaseSave     Phase = "save"     // the engine hands out the image
	PhaseDownload Phase = "download" // of one layer
	PhaseUnpack   Phase = "unpack"   // of one layer
	PhaseDone     Phase = "done"     // the image is there
)

// Progress is one report of a [Store] at work.
type Progress struct {
	Reference images.Reference
	Phase     Phase
	// Digest is the layer's; empty in the phases that concern no layer.
	Digest string
	// Done and Total are bytes of the layer as it is stored; Total is 0 where
	// it isn't known. The last report of a layer's phase has Done == Total.
	Done, Total int64
	// Text is a line of a builder, unchecked: sanitise it before it is shown.
	Text string
}

// reporter hands reports on, one at a time, and those of one layer at most
// every 100 ms, but for its first and last.
type reporter struct {
	report func(Progress)
	mu     sync.Mutex
	last   map[string]time.Time
}

func (r *reporter) sendReport(p Progress) {
	if r == nil || r.report == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Digest != "" {
		key := string(p.Phase) + p.Digest
		now := time.Now()
		if p.Done > 0 && p.Done != p.Total && now.Sub(r.last[key]) < 100*time.Millisecond {
			return
		}
		if r.last == nil {
			r.last = map[string]time.Time{}
		}
		r.last[key] = now
		if p.Done == p.Total {
			delete(r.last, key)
		}
	}
	r.report(p)
}
