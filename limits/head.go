package limits

// Head is a writer that keeps the first Size bytes. Its Write never fails.
type Head struct {
	Size int
	kept []byte
}

// Write keeps p, as far as there is room.
func (h *Head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), h.Size-len(h.kept))]...)
	return len(p), nil
}

// Bytes returns the first bytes.
func (h *Head) Bytes() []byte { return h.kept }

// String returns the first bytes.
func (h *Head) String() string { return string(h.kept) }
