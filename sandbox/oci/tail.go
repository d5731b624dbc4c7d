package oci

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"
)

// tail keeps the last bytes of a pipe, which tell the cause of a failure.
type tail struct {
	file *os.File
	done chan struct{} // closed when the reading has ended
	mu   sync.Mutex
	kept []byte
}

const (
	// maxTail is enough for gVisor's log of a start and for all goroutines of a Go panic.
	maxTail = 256 << 10
	// maxHead is enough for the message and the first goroutine of a Go panic.
	maxHead = 8 << 10
)

// readTail begins to read.
func readTail(f *os.File) *tail {
	t := &tail{file: f, done: make(chan struct{})}
	go t.readAll()
	return t
}

func (t *tail) readAll() {
	defer close(t.done)
	buf := make([]byte, 4<<10)
	for {
		n, err := t.file.Read(buf)
		t.mu.Lock()
		t.kept = append(t.kept, buf[:n]...)
		if over := len(t.kept) - maxTail; over > 0 { // with the rest of the line that this cuts
			t.kept = t.kept[over:]
			t.kept = t.kept[bytes.IndexByte(t.kept, '\n')+1:]
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// waitEnd waits until everything that was written is read, for at most the given time.
func (t *tail) waitEnd(most time.Duration) {
	select {
	case <-t.done:
	case <-time.After(most):
	}
}

// split returns the lines of gVisor's own log, and the first bytes of the others.
func (t *tail) split() (log, others []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(t.kept) {
		if bytes.HasPrefix(line, []byte(`{"msg":`)) {
			log = append(log, line...)
		} else {
			others = append(others, line...)
		}
	}
	return log, others[:min(len(others), maxHead)]
}

// close stops the reading and waits for it.
func (t *tail) close() {
	_ = t.file.Close() // it was only read
	<-t.done
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
