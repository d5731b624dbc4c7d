package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"sync"
)

// head keeps the first bytes of a pipe, which contain the cause of a failure,
// and drains the rest.
type head struct {
	file *os.File
	done chan struct{} // closed when the reading has ended
	mu   sync.Mutex
	kept []byte
}

// maxHead is enough for the message and the first goroutine of a Go panic.
const maxHead = 8 << 10

// readHead begins to read.
func readHead(f *os.File) *head {
	h := &head{file: f, done: make(chan struct{})}
	go h.readAll()
	return h
}

func (h *head) readAll() {
	defer close(h.done)
	buf := make([]byte, 4<<10)
	for {
		n, err := h.file.Read(buf)
		h.mu.Lock()
		h.kept = append(h.kept, buf[:min(n, maxHead-len(h.kept))]...)
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Clone(h.kept)
}

// close stops the reading and waits for it.
func (h *head) close() {
	_ = h.file.Close() // it was only read
	<-h.done
}

// logMessages returns the errors in a runtime's log, which has one JSON object
// per line.
func logMessages(data []byte) string {
	var found []string
	for line := range bytes.Lines(data) {
		var m struct{ Level, Msg string }
		if json.Unmarshal(line, &m) == nil && (m.Level == "error" || m.Level == "fatal") {
			found = append(found, m.Msg)
		}
	}
	return strings.Join(found, "; ")
}
