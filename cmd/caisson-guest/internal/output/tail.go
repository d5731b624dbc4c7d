package output

// Tail keeps the last bytes that were written to it. It allocates when it is
// first written to.
type Tail struct {
	size int
	ring []byte
	at   int // where the next byte goes, once the ring is full
}

// NewTail returns a Tail of size bytes.
func NewTail(size int) *Tail { return &Tail{size: size} }

// Write adds p.
func (t *Tail) Write(p []byte) {
	if len(p) > t.size {
		p = p[len(p)-t.size:]
	}
	if room := t.size - len(t.ring); room > 0 {
		n := min(room, len(p))
		t.ring = append(t.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.at:], p)
		t.at = (t.at + n) % t.size
		p = p[n:]
	}
}

// Bytes returns what is kept, in order.
func (t *Tail) Bytes() []byte {
	if len(t.ring) == 0 {
		return nil
	}
	out := make([]byte, 0, len(t.ring))
	return append(append(out, t.ring[t.at:]...), t.ring[:t.at]...)
}
