package mcpserver

import (
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/redact"
)

const (
	// progressEvery is the shortest time between two notifications of a call.
	progressEvery = 500 * time.Millisecond
	// silenceTime is the time after which a notification is sent even without
	// output: clients end calls that are silent for long.
	silenceTime = 10 * time.Second
	// maxProgressBytes bounds the output in one notification. Its end is kept.
	maxProgressBytes = 4 << 10
)

// progress sends a call's output as it comes, at a bounded rate. Its number is
// the time since the call began, in seconds.
type progress struct {
	begun time.Time
	send  func(elapsed float64, message string) error
	done  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	closed  bool
	streams map[string]*redact.Writer
	redact  *redact.Redactor
	pending []byte
	last    time.Time // of the last notification
}

// newProgress begins the progress of a call. The caller must call stopSending
// before it sends the call's result.
func newProgress(r *redact.Redactor, send func(elapsed float64, message string) error) *progress {
	p := &progress{begun: time.Now(), send: send, done: make(chan struct{}), ended: make(chan struct{}), redact: r, streams: map[string]*redact.Writer{}}
	p.last = p.begun
	go p.sendAll()
	return p
}

func (p *progress) addOutput(stream, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	w := p.streams[stream]
	if w == nil {
		w = p.redact.NewWriter(keeper{p})
		p.streams[stream] = w
	}
	_, _ = w.Write([]byte(text)) // keeper does not fail
}

// keeper is an io.Writer to progress.keepOutput.
type keeper struct{ p *progress }

func (k keeper) Write(b []byte) (int, error) {
	k.p.keepOutput(b)
	return len(b), nil
}

// keepOutput appends to pending, of which it keeps the end.
func (p *progress) keepOutput(b []byte) {
	p.pending = append(p.pending, b...)
	if over := len(p.pending) - maxProgressBytes; over > 0 {
		p.pending = append(p.pending[:0], p.pending[over:]...)
	}
}

// sendAll sends notifications until stopSending is called or one fails.
func (p *progress) sendAll() {
	defer close(p.ended)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-ticker.C:
			if !p.sendPending() {
				return
			}
		}
	}
}

// sendPending sends the pending output or, after a silence, only the elapsed
// time. It reports whether the client can still be reached.
func (p *progress) sendPending() bool {
	p.mu.Lock()
	for _, w := range p.streams {
		_ = w.Flush() // keeper does not fail
	}
	text := string(p.pending)
	p.pending = p.pending[:0]
	now := time.Now()
	if text == "" && now.Sub(p.last) < silenceTime {
		p.mu.Unlock()
		return true
	}
	p.last = now
	p.mu.Unlock()
	return p.send(now.Sub(p.begun).Seconds(), strings.ToValidUTF8(text, "\uFFFD")) == nil
}

// stopSending ends the notifications. None is sent after it returns.
func (p *progress) stopSending() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	close(p.done)
	<-p.ended
}
