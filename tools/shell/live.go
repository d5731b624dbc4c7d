package shell

import (
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds of live output, which is only for display. Ten pieces per second and
// stream look fluent. Faster output is dropped and marked.
const (
	liveInterval = 100 * time.Millisecond
	liveBytes    = 4 << 10
)

// liveWriter sends one stream of a command as deltas at a limited rate. Write never
// fails, and blocks only for a delta.
type liveWriter struct {
	stream string
	delta  func(stream, text string)

	mu      sync.Mutex
	buf     []byte
	dropped bool
	last    time.Time
	timer   *time.Timer
	closed  bool
}

func newLiveWriter(stream string, delta func(stream, text string)) *liveWriter {
	return &liveWriter{stream: stream, delta: delta}
}

func (l *liveWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(p), nil
	}
	l.appendBytes(p)
	wait := liveInterval - time.Since(l.last)
	switch {
	case wait <= 0:
		l.flush(false)
	case l.timer == nil:
		l.timer = time.AfterFunc(wait, l.flushOnTimer)
	}
	return len(p), nil
}

// appendBytes appends to the buffer and drops its oldest bytes above the limit.
func (l *liveWriter) appendBytes(p []byte) {
	if len(p) > liveBytes {
		p = p[len(p)-liveBytes:]
		l.buf = l.buf[:0]
		l.dropped = true
	}
	if over := len(l.buf) + len(p) - liveBytes; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
		l.dropped = true
	}
	l.buf = append(l.buf, p...)
}

func (l *liveWriter) flushOnTimer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = nil
	if !l.closed {
		l.flush(false)
	}
}

// flush sends the buffer. Unless the stream has ended, it keeps an incomplete rune.
func (l *liveWriter) flush(end bool) {
	n := len(l.buf)
	if !end {
		n -= partialRuneLen(l.buf)
	}
	if n == 0 {
		return
	}
	text := string(l.buf[:n])
	if l.dropped {
		start := 0
		for start < len(text) && start < utf8.UTFMax && !utf8.RuneStart(text[start]) {
			start++
		}
		text = "…" + text[start:]
		l.dropped = false
	}
	l.buf = append(l.buf[:0], l.buf[n:]...)
	l.last = time.Now()
	l.delta(l.stream, text)
}

func (l *liveWriter) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.flush(true)
	l.closed = true
}

// partialRuneLen returns the length of an incomplete rune at the end of b.
func partialRuneLen(b []byte) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return i
			}
			return 0
		}
	}
	return 0
}
