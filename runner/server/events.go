package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

const (
	// heartbeat is the time between two comments on a quiet stream: shorter
	// than the 60 s after which proxies commonly cut a silent connection.
	heartbeat = 15 * time.Second
	// writeTime is how long one event may wait for a reader. It is dropped
	// then, and can come back with Last-Event-ID.
	writeTime = 10 * time.Second
	// lookEvery is how often the trace of another process's session is looked at.
	lookEvery = time.Second
)

type eventsInput struct {
	SessionPath
	After       string `query:"after" doc:"send the records behind this number; without it, all"`
	LastEventID string `header:"Last-Event-ID" doc:"the same, as EventSource sends it when it comes back; it wins over after"`
}

// position is the number of the record that the client has seen last.
func (in *eventsInput) position() (int64, error) {
	text := in.After
	if in.LastEventID != "" {
		text = in.LastEventID
	}
	if text == "" {
		return 0, nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, problem(http.StatusBadRequest, "event_id", "the last event id is no record's number", "Send the id of an event that you got, or none")
	}
	return seq, nil
}

// stream is one client's way through the records of a session.
type stream struct {
	server *Server
	id     string
	dir    string // of the records
	// feed is that of a live session of ours, nil for others.
	feed  *feed
	sub   *subscription
	trace *tail
	after int64  // the last record that the client has
	next  *entry // read, and not sent yet
	last  bool   // session.ended has been sent
	w     http.ResponseWriter
	wire  *http.ResponseController
}

// events serves the stream of a session's records.
func (s *Server) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	after, err := in.position()
	if err != nil {
		return nil, err
	}
	dir, err := s.dirOf(in.ID)
	if err != nil {
		return nil, err
	}
	st := &stream{server: s, id: in.ID, dir: dir, after: after}
	if live := s.live(in.ID); live != nil {
		st.feed = live.feed
	}
	if st.trace, err = openTail(dir); err != nil {
		return nil, s.internal("open trace", err)
	}
	release, err := s.takeStream(clientOf(ctx).label)
	if err != nil {
		st.trace.close()
		return nil, err
	}
	done, err := st.skip()
	if err != nil || done {
		st.trace.close()
		release()
	}
	switch {
	case err != nil:
		return nil, err
	case done:
		// EventSource comes back after an end; 204 tells it to stay away.
		return &huma.StreamResponse{Body: func(c huma.Context) { c.SetStatus(http.StatusNoContent) }}, nil
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer release()
		defer st.trace.close()
		r, w := humago.Unwrap(c)
		if r.Method == http.MethodHead { // it would be written to nobody, for as long as the session lives
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			return
		}
		st.w, st.wire = w, http.NewResponseController(w)
		if err := st.run(r.Context()); err != nil {
			s.log.Debug("stream", zap.String("session", st.id), zap.Error(err))
		}
	}}, nil
}

// takeStream counts one more stream of a client.
func (s *Server) takeStream(client string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[client] >= s.opts.MaxStreams {
		p := problem(http.StatusTooManyRequests, "streams", fmt.Sprintf("this token has %d streams open, and may have no more", s.opts.MaxStreams), "Close one")
		p.retryAfter = "5"
		return nil, p
	}
	s.streams[client]++
	s.metrics.streams.Inc()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams[client]--; s.streams[client] == 0 {
			delete(s.streams, client)
		}
		s.metrics.streams.Dec()
	}, nil
}

// jump goes to the last checkpoint before the record that the client has.
func (st *stream) jump() error {
	c, ok := st.server.indexes.before(st.id, st.trace.file, st.after)
	if !ok {
		return nil
	}
	there, err := st.trace.seek(c)
	if err == nil && !there {
		st.server.indexes.drop(st.id)
	}
	return err
}

// skip passes over what the client has. done says that there is nothing more
// and will not be.
func (st *stream) skip() (done bool, err error) {
	if st.after == 0 {
		return false, nil
	}
	if err := st.jump(); err != nil {
		return false, st.server.internal("read trace", err)
	}
	for passed := 1; ; passed++ {
		if passed == 2*indexEvery {
			st.server.indexes.extend(st.id, st.dir, false)
		}
		e, ok, err := st.trace.next()
		switch {
		case err != nil:
			return false, st.server.internal("read trace", err)
		case !ok:
			// A client that has more than the trace comes from another time: it
			// would wait, and lose what is written meanwhile.
			return false, problem(http.StatusBadRequest, "event_id", "the session has no record of this number", "Begin without one")
		case e.Seq == st.after:
			return e.Kind == record.KindSessionEnded, nil
		case e.Seq > st.after:
			// Retention has removed the one that the client has: this one it lacks.
			st.next = &e
			return false, nil
		}
	}
}

// run sends records and live output until the session has ended, the client is
// gone, or it is too slow.
func (st *stream) run(ctx context.Context) error {
	st.w.Header().Set("Content-Type", "text/event-stream")
	st.w.Header().Set("X-Accel-Buffering", "no")
	var wake <-chan struct{}
	if st.feed != nil {
		sub, leave := st.feed.subscribe()
		defer leave()
		st.sub, wake = sub, sub.wake
	}
	st.w.WriteHeader(http.StatusOK)
	if err := st.send([]byte(": caisson\n\n")); err != nil {
		return err
	}
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	if st.feed != nil {
		look.Stop() // the feed wakes
	}
	for {
		end, err := st.catchUp()
		if err != nil {
			return err
		}
		if end != "" {
			return st.event("end", StreamEnd{State: end})
		}
		select {
		case <-wake:
		case <-look.C:
			continue // a quiet stream still beats
		case <-beat.C:
			if err := st.send([]byte(": still here\n\n")); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-st.server.stopped:
			// Its sessions have ended, and with them what there is to be sent.
			if end, err := st.catchUp(); err != nil || end != "" {
				return errors.Join(err, st.event("end", StreamEnd{State: end}))
			}
			return errStopping
		}
		beat.Reset(heartbeat)
	}
}

// errStopping is why streams end when the server does.
var errStopping = errors.New("the server stops")

// StreamEnd is the last event, "end": the session has ended, and there will be
// no more records.
type StreamEnd struct {
	State State `json:"state" enum:"ended,interrupted"`
}

// catchUp sends what there is. The state that it returns is "" as long as there
// may be more.
func (st *stream) catchUp() (end State, err error) {
	if st.feed == nil {
		lives := sessiondir.Lives(st.server.opts.StateDir, st.id)
		last, err := st.records(math.MaxInt64)
		switch {
		case err != nil:
			return "", err
		case last:
			return StateEnded, nil
		case !lives:
			return StateInterrupted, nil
		}
		return "", nil
	}
	deltas, seq, ended := st.feed.take(st.sub)
	for _, d := range deltas {
		// What came before the output is sent before it, and what came after,
		// after it.
		if _, err := st.records(d.after); err != nil {
			return "", err
		}
		if err := st.event("delta", d.Delta); err != nil {
			return "", err
		}
	}
	last, err := st.records(seq)
	switch {
	case err != nil || !ended:
		return "", err
	case last:
		return StateEnded, nil
	}
	return StateInterrupted, nil // its last record could not be written
}

// records sends the records up to a number, and says whether the session's last
// one has been sent.
func (st *stream) records(upTo int64) (last bool, err error) {
	var out []byte
	for {
		if st.next == nil {
			e, ok, err := st.trace.next()
			if err != nil {
				return false, err
			}
			if !ok {
				break
			}
			st.next = &e
		}
		if st.next.Seq > upTo {
			break
		}
		if st.next.Seq > st.after {
			out = fmt.Appendf(out, "id: %d\ndata: %s\n\n", st.next.Seq, st.next.line)
			st.last = st.next.Kind == record.KindSessionEnded
			st.after = st.next.Seq
		}
		st.next = nil
		if len(out) > 32<<10 {
			if err := st.send(out); err != nil {
				return false, err
			}
			out = out[:0]
		}
	}
	if len(out) > 0 {
		err = st.send(out)
	}
	return st.last, err
}

// event sends one event without an id.
func (st *stream) event(name string, v any) error {
	var buf bytes.Buffer
	fmt.Fprintf(&buf, "event: %s\ndata: ", name)
	if err := writeJSON(&buf, v); err != nil {
		return err
	}
	buf.WriteByte('\n')
	return st.send(buf.Bytes())
}

// send writes and flushes within writeTime.
func (st *stream) send(text []byte) error {
	if err := st.wire.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return fmt.Errorf("send event: %w", err)
	}
	_, err := st.w.Write(text)
	if err == nil {
		err = st.wire.Flush()
	}
	if err != nil {
		var timeout interface{ Timeout() bool }
		if errors.As(err, &timeout) && timeout.Timeout() {
			st.server.metrics.dropped.Inc()
		}
		return fmt.Errorf("send event: %w", err)
	}
	return nil
}
