package store

import (
	"sync"
	"time"

	"github.com/caisson-run/caisson/images"
)

// Phase is a step of a [Store]'s work.
type Phase string

// The phases, in the order of an image from a registry. A cached image has
// none.
const (
	PhaseResolve  Phase = "resolve"  // the reference is being resolved
	PhaseWait     Phase = "wait"     // another process is fetching the same image
	PhaseBuild    Phase = "build"    // a builder runs; Text is a line of its output
	PhaseSave     Phase = "save"     // the engine exports the image
	PhaseDownload Phase = "download" // of one layer
	PhaseUnpack   Phase = "unpack"   // of one layer
	PhaseDone     Phase = "done"     // the image is ready
)

// Progress is one report of a [Store]'s work.
type Progress struct {
	Reference images.Reference
	Phase     Phase
	// Digest is the layer's digest; empty in phases without a layer.
	Digest string
	// Done and Total are bytes of the layer's stored form. Total is 0 if
	// unknown. The last report of a layer's phase has Done == Total.
	Done, Total int64
	// Text is a line of a builder's output, unchecked: sanitise it before
	// display.
	Text string
}

// reporter passes reports on, one at a time. Except for the first and last it
// passes those of one layer at most every 100 ms.
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
