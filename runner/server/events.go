package server

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
	"github.com/caisson-run/caisson/runner/record"
)

// pollEvery is how often the trace of another process's session is polled.
const pollEvery = time.Second

type eventsInput struct {
	SessionPath
	After       string `query:"after" doc:"send the records after this number; without it, all of them"`
	LastEventID string `header:"Last-Event-ID" doc:"the same, as EventSource sends it when it reconnects; it overrides after"`
}

// lastSeen returns the number of the last record that the client has, or 0.
func (in *eventsInput) lastSeen() (int64, error) {
	text := in.After
	if in.LastEventID != "" {
		text = in.LastEventID
	}
	if text == "" {
		return 0, nil
	}
	seq, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seq < 0 {
		return 0, newProblem(http.StatusBadRequest, "event_id", "the last event id is not the number of a record", "Send the id of an event that you got, or none")
	}
	return seq, nil
}

type streamsAPI struct {
	sessions *registry
	most     int // per client
	open     *httpserver.Quota
}

func (a *streamsAPI) addOperations(o operations) {
	op := o.newOperation(http.MethodGet, "/sessions/{id}/events", "followSession", "Follow a session's records",
		`Server-sent events. A record is an event without a name. Its id is the record's seq, its data one line of JSON in the Record schema, as in trace.jsonl.
Events named "delta" (the Delta schema) are live output; they have no id, and are never sent again. The event "end" (StreamEnd) is the last: the session has ended. Comments keep the connection alive.
A client that reconnects with Last-Event-ID, or ?after=, gets exactly the records after that one. A client that is too slow is disconnected, and can reconnect. 204: there are no more records, and there will be none.`,
		http.StatusOK, 400, 404, 429)
	schemas := o.api.OpenAPI().Components.Schemas
	op.Responses["200"] = &huma.Response{Description: "The stream", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}}}
	op.Responses["204"] = &huma.Response{Description: "The session has ended, and the client has all of its records"}
	for name, t := range map[string]reflect.Type{"Record": reflect.TypeFor[record.Record](), "Delta": reflect.TypeFor[Delta](), "StreamEnd": reflect.TypeFor[StreamEnd]()} {
		schemas.Schema(t, true, name)
	}
	huma.Register(o.api, op, a.streamEvents)
}

// stream sends a session's records to one client.
type stream struct {
	sessions *registry
	id       string
	// feed is nil for sessions that are not live here.
	feed  *feed
	sub   *subscription
	trace *tail
	after int64  // the last record that the client has
	next  *entry // read but not yet sent
	last  bool   // session.ended has been sent
	*httpserver.EventWriter
}

func (a *streamsAPI) streamEvents(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	after, err := in.lastSeen()
	if err != nil {
		return nil, err
	}
	dir, err := a.sessions.findDir(in.ID)
	if err != nil {
		return nil, err
	}
	st := &stream{sessions: a.sessions, id: in.ID, after: after}
	if live := a.sessions.liveSession(in.ID); live != nil {
		st.feed = live.feed
	}
	if st.trace, err = openTail(dir); err != nil {
		return nil, a.sessions.internalProblem("open trace", err)
	}
	release, err := a.takeStream(clientOf(ctx).label)
	if err != nil {
		st.trace.close()
		return nil, err
	}
	done, err := st.skipSeen()
	if err != nil || done {
		st.trace.close()
		release()
	}
	switch {
	case err != nil:
		return nil, err
	case done:
		// EventSource reconnects after an end; 204 tells it not to.
		return &huma.StreamResponse{Body: func(c huma.Context) { c.SetStatus(http.StatusNoContent) }}, nil
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		defer release()
		defer st.trace.close()
		r, w := humago.Unwrap(c)
		if r.Method == http.MethodHead { // its stream would last as long as the session, unread
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			return
		}
		st.EventWriter = httpserver.NewEventWriter(w, a.sessions.metrics.dropped.Inc)
		if err := st.sendAll(r.Context()); err != nil {
			a.sessions.log.Debug("stream", zap.String("session", st.id), zap.Error(err))
		}
	}}, nil
}

// takeStream counts a client's stream until release is called.
func (a *streamsAPI) takeStream(client string) (release func(), err error) {
	released, ok := a.open.Take(client)
	if !ok {
		p := newProblem(http.StatusTooManyRequests, "streams", fmt.Sprintf("this token has %d streams open, the maximum", a.most), "Close one")
		p.retryAfter = "5"
		return nil, p
	}
	a.sessions.metrics.streams.Inc()
	return func() {
		released()
		a.sessions.metrics.streams.Dec()
	}, nil
}

// skipSeen skips the records that the client has. done reports that the client
// has all records, and that there will be no more.
func (st *stream) skipSeen() (done bool, err error) {
	if st.after == 0 {
		return false, nil
	}
	if err := st.trace.seekBefore(st.after); err != nil {
		return false, st.sessions.internalProblem("read trace", err)
	}
	for {
		e, ok, err := st.trace.nextEntry()
		switch {
		case err != nil:
			return false, st.sessions.internalProblem("read trace", err)
		case !ok:
			// A client that claims more records than the trace has would wait,
			// and miss the ones written meanwhile.
			return false, newProblem(http.StatusBadRequest, "event_id", "the session has no record with this number", "Begin without one")
		case e.Seq == st.after && e.Kind == record.KindSessionEnded:
			return st.isOver()
		case e.Seq == st.after:
			return false, nil
		case e.Seq > st.after:
			// Retention has removed the client's last record. It lacks this
			// one.
			st.next = &e
			return false, nil
		}
	}
}

// isOver reports, after session.ended, that there are no more records and will
// be none: another process may have resumed the session.
func (st *stream) isOver() (bool, error) {
	lives := st.feed == nil && st.sessions.archive.isLive(st.id)
	e, ok, err := st.trace.nextEntry()
	if err != nil {
		return false, st.sessions.internalProblem("read trace", err)
	}
	if ok {
		st.next = &e
	}
	return !ok && !lives, nil
}

// sendAll sends records and live output until the session has ended, or the
// client is gone or too slow.
func (st *stream) sendAll(ctx context.Context) error {
	var wake <-chan struct{}
	if st.feed != nil {
		sub, leave := st.feed.subscribe()
		defer leave()
		st.sub, wake = sub, sub.wake
	}
	if err := st.Begin(); err != nil {
		return err
	}
	beat := time.NewTimer(httpserver.Heartbeat)
	defer beat.Stop()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	if st.feed != nil {
		poll.Stop() // the feed wakes it
	}
	for {
		end, err := st.catchUp()
		if err != nil {
			return err
		}
		if end != "" {
			return sendEvent(st.EventWriter, "", "end", StreamEnd{State: end})
		}
		select {
		case <-wake:
		case <-poll.C:
			continue // don't put off the heartbeat
		case <-beat.C:
			if err := st.Beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-st.sessions.stopped:
			// The sessions have ended: send the rest.
			end, err := st.catchUp()
			switch {
			case err != nil:
				return err
			case end != "":
				return sendEvent(st.EventWriter, "", "end", StreamEnd{State: end})
			}
			return errStopping
		}
		beat.Reset(httpserver.Heartbeat)
	}
}

// StreamEnd is the last event, "end". The session has ended, and there will be
// no more records.
type StreamEnd struct {
	State State `json:"state" enum:"ended,interrupted"`
}

// catchUp sends all available records and output. It returns the session's
// final state, or "" if there may be more.
func (st *stream) catchUp() (end State, err error) {
	if st.feed == nil {
		lives := st.sessions.archive.isLive(st.id)
		last, err := st.sendRecords(math.MaxInt64)
		switch {
		case err != nil:
			return "", err
		case lives:
			return "", nil // another process may continue after session.ended
		case last:
			return StateEnded, nil
		}
		return StateInterrupted, nil
	}
	deltas, seq, ended := st.feed.takeDeltas(st.sub)
	for _, d := range deltas {
		// Send the records that precede the output first.
		if _, err := st.sendRecords(d.after); err != nil {
			return "", err
		}
		if err := sendEvent(st.EventWriter, "", "delta", d.Delta); err != nil {
			return "", err
		}
	}
	last, err := st.sendRecords(seq)
	switch {
	case err != nil || !ended:
		return "", err
	case last:
		return StateEnded, nil
	}
	return StateInterrupted, nil // session.ended could not be written
}

// sendRecords sends the records up to a number. It reports whether the last one
// sent is session.ended.
func (st *stream) sendRecords(upTo int64) (last bool, err error) {
	var out []byte
	for {
		if st.next == nil {
			e, ok, err := st.trace.nextEntry()
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
			if err := st.Send(out); err != nil {
				return false, err
			}
			out = out[:0]
		}
	}
	if len(out) > 0 {
		err = st.Send(out)
	}
	return st.last, err
}

// sendEvent sends one event as JSON, without an ID if id is "".
func sendEvent(to *httpserver.EventWriter, id, name string, v any) error {
	text, err := record.MarshalSafe(v)
	if err != nil {
		return err
	}
	return to.Event(id, name, string(text))
}
