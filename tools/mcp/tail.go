package mcp

import "sync"

// tailBytes is how much is kept of what a server writes to its standard error.
const tailBytes = 64 << 10

// tail keeps the end of the text written to it. It never blocks.
type tail struct {
	mu    sync.Mutex
	kept  []byte
	total int64
}

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += int64(len(p))
	n := len(p)
	p = p[max(0, len(p)-tailBytes):]
	if over := len(t.kept) + len(p) - 2*tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-tailBytes:]...)
	}
	t.kept = append(t.kept, p...)
	return n, nil
}

// lastBytes returns the last bytes, and the number of all.
func (t *tail) lastBytes() (string, int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept[max(0, len(t.kept)-tailBytes):]), t.total
}
