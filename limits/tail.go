package limits

import "sync"

// Tail is a writer that keeps the last Size bytes. Write never fails. It is safe for
// concurrent use.
type Tail struct {
	Size int

	mu    sync.Mutex
	kept  []byte
	total int64
}

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total += int64(len(p))
	n := len(p)
	p = p[max(0, n-t.Size):]
	if len(t.kept)+len(p) > 2*t.Size { // don't move bytes at each write
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-t.Size:]...)
	}
	t.kept = append(t.kept, p...)
	return n, nil
}

// String returns the kept bytes.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept[max(0, len(t.kept)-t.Size):])
}

// Total returns the number of bytes written.
func (t *Tail) Total() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Head is a writer that keeps the first Size bytes. Write never fails.
type Head struct {
	Size int
	kept []byte
}

func (h *Head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), h.Size-len(h.kept))]...)
	return len(p), nil
}

// Bytes returns the kept bytes.
func (h *Head) Bytes() []byte { return h.kept }

func (h *Head) String() string { return string(h.kept) }
