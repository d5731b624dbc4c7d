package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// Heartbeat is the time between two comments on a quiet stream. Proxies
	// commonly cut a connection that is silent for 60 s.
	Heartbeat = 15 * time.Second
	// WriteTime is how long a write may wait for a reader. A slower reader is
	// disconnected.
	WriteTime = 10 * time.Second
)

// EventWriter writes server-sent events. It is not safe for concurrent use.
type EventWriter struct {
	w    http.ResponseWriter
	wire *http.ResponseController
	slow func()
}

// NewEventWriter returns a writer of the answer w. It calls slow for a reader
// that takes longer than [WriteTime].
func NewEventWriter(w http.ResponseWriter, slow func()) *EventWriter {
	return &EventWriter{w, http.NewResponseController(w), slow}
}

// Begin writes the headers and a first comment.
func (e *EventWriter) Begin() error {
	e.w.Header().Set("Content-Type", "text/event-stream")
	e.w.Header().Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	return e.Send([]byte(": caisson\n\n"))
}

// Beat writes a comment, which keeps the connection.
func (e *EventWriter) Beat() error { return e.Send([]byte(": still here\n\n")) }

// Event writes one event, without an ID if id is "". A browser gets the lines of
// data joined.
func (e *EventWriter) Event(id, name, data string) error {
	var out bytes.Buffer
	if id != "" {
		fmt.Fprintf(&out, "id: %s\n", id)
	}
	fmt.Fprintf(&out, "event: %s\n", name)
	for line := range strings.SplitSeq(strings.TrimRight(data, "\r\n"), "\n") {
		fmt.Fprintf(&out, "data: %s\n", strings.TrimRight(line, "\r"))
	}
	out.WriteByte('\n')
	return e.Send(out.Bytes())
}

// Send writes whole events or comments as they are, and flushes.
func (e *EventWriter) Send(text []byte) error {
	if err := e.wire.SetWriteDeadline(time.Now().Add(WriteTime)); err != nil {
		return fmt.Errorf("send event: %w", err)
	}
	_, err := e.w.Write(text)
	if err == nil {
		err = e.wire.Flush()
	}
	if err != nil {
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			e.slow()
		}
		return fmt.Errorf("send event: %w", err)
	}
	return nil
}
