package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/apply"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

type (
	launcher func(spawn.Request) (launch.Process, error)
	applier  func(context.Context, workspace.Op) (workspace.Change, error)
)

func (f launcher) Launch(r spawn.Request) (launch.Process, error) { return f(r) }

func (f applier) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	return f(ctx, op)
}

// host is the other side of a running session.
type host struct {
	t      *testing.T
	frames *wire.Reader
	writer *wire.Writer
	ended  chan error
}

// serveHost runs a session in which commands leave nothing. change may change
// its options.
func serveHost(t *testing.T, change func(*Options)) *host {
	t.Helper()
	near, far := net.Pipe()
	loop := reap.New()
	o := Options{
		Frames: wire.NewReader(near), Writer: wire.NewWriter(near),
		Config:   wire.Config{GIDBase: fuzzGroups, GIDCount: 1000},
		Launcher: noProcess{}, Appliers: noChange{}, Reaper: loop,
		Killer: kill.NewAt(t.TempDir(), kill.MethodGroup, loop, nil),
	}
	if change != nil {
		change(&o)
	}
	h := &host{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), ended: make(chan error, 1)}
	s := New(o)
	go func() { h.ended <- s.Run() }()
	t.Cleanup(func() {
		_ = far.Close()
		s.mu.Lock()
		for _, st := range s.streams {
			go st.cancel(wire.Cancel{})
		}
		s.mu.Unlock()
		s.idle.Stop()
	})
	return h
}

func (h *host) send(frames ...wire.Frame) {
	h.t.Helper()
	if err := h.writer.Send(frames...); err != nil {
		h.t.Fatal(err)
	}
}

// next returns the guest's next frame except credit.
func (h *host) next() wire.Frame {
	h.t.Helper()
	for {
		f, err := h.frames.Next()
		if err != nil {
			h.t.Fatal(err)
		}
		if f.Type != wire.TypeCredit {
			return f
		}
	}
}

// until reads up to a frame of a type, and decodes it.
func (h *host) until(typ wire.Type, into any) {
	h.t.Helper()
	f := h.next()
	for f.Type != typ {
		if f.Type == wire.TypeRefused {
			h.t.Fatalf("refused: %s", f.Payload)
		}
		f = h.next()
	}
	if err := wire.Decode(f.Payload, into); err != nil {
		h.t.Fatal(err)
	}
}

func openFrame(id uint32, text string) wire.Frame {
	return wire.Frame{Stream: id, Type: wire.TypeOpen, Payload: []byte(text)}
}

func on(id uint32, typ wire.Type, channel uint8, payload string) wire.Frame {
	return wire.Frame{Stream: id, Type: typ, Channel: channel, Payload: []byte(payload)}
}

// TestSessionEnds checks that frames that break the protocol end the session.
func TestSessionEnds(t *testing.T) {
	const change = `{"apply":{"size":50}}`
	for name, frames := range map[string][]wire.Frame{
		"hello":                 {{Type: wire.TypeHello, Payload: []byte("{}")}},
		"a guest's frame":       {openFrame(1, change), on(1, wire.TypeStarted, 0, "{}")},
		"even stream":           {openFrame(2, change)},
		"stream opened twice":   {openFrame(1, change), openFrame(1, change)},
		"lower stream":          {openFrame(5, change), openFrame(3, change)},
		"no JSON":               {openFrame(1, "{")},
		"stream above":          {openFrame(1, change), on(3, wire.TypeEOF, 0, "")},
		"even stream's data":    {openFrame(3, change), on(2, wire.TypeData, 0, "x")},
		"cancel that is none":   {openFrame(1, change), on(1, wire.TypeCancel, 0, "{")},
		"data on stdout":        {openFrame(1, change), on(1, wire.TypeData, 1, "x")},
		"end of stdout":         {openFrame(1, change), on(1, wire.TypeEOF, 1, "")},
		"resize of no terminal": {openFrame(1, change), on(1, wire.TypeResize, 0, "\x00\x01\x00\x01")},
		"credit on stdin":       {openFrame(1, change), on(1, wire.TypeCredit, 0, "\x00\x00\x00\x01")},
		"credit on stderr":      {openFrame(1, change), on(1, wire.TypeCredit, 2, "\x00\x00\x00\x01")},
		"more credit than ever": {openFrame(1, change), on(1, wire.TypeCredit, 1, "\x7f\x00\x00\x00")},
	} {
		t.Run(name, func(t *testing.T) {
			h := serveHost(t, nil)
			go func() {
				for {
					if _, err := h.frames.Next(); err != nil {
						return
					}
				}
			}()
			_ = h.writer.Send(frames...)
			if err := <-h.ended; !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("it ends with %v, want ErrProtocol", err)
			}
		})
	}
}

// TestSessionRefuses checks that bad requests are refused, and the session
// continues.
func TestSessionRefuses(t *testing.T) {
	exec := func(change func(*wire.Exec)) string {
		x := wire.Exec{Argv: [][]byte{[]byte("x")}, Live: 1, Tail: 1, Timeout: time.Hour}
		change(&x)
		text, err := json.Marshal(wire.Open{Exec: &x})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, tt := range map[string]struct {
		open string
		want wire.RefusalCode // empty if it is served
	}{
		"no program":        {exec(func(x *wire.Exec) { x.Argv = [][]byte{} }), wire.RefusedInvalid},
		"no timeout":        {exec(func(x *wire.Exec) { x.Timeout = 0 }), wire.RefusedInvalid},
		"shortest timeout":  {exec(func(x *wire.Exec) { x.Timeout = 1 }), ""},
		"negative grace":    {exec(func(x *wire.Exec) { x.Grace = -1 }), wire.RefusedInvalid},
		"negative live":     {exec(func(x *wire.Exec) { x.Live = -1 }), wire.RefusedInvalid},
		"negative tail":     {exec(func(x *wire.Exec) { x.Tail = -1 }), wire.RefusedInvalid},
		"no output":         {exec(func(x *wire.Exec) { x.Live, x.Tail = 0, 0 }), ""},
		"longest tail":      {exec(func(x *wire.Exec) { x.Tail = wire.MaxTail }), ""},
		"longer tail":       {exec(func(x *wire.Exec) { x.Tail = wire.MaxTail + 1 }), wire.RefusedInvalid},
		"directory":         {exec(func(x *wire.Exec) { x.Dir = []byte("gone") }), wire.RefusedInvalid},
		"fault":             {exec(func(x *wire.Exec) { x.Dir = []byte("fault") }), wire.RefusedInternal},
		"empty operation":   {`{"apply":{"size":0}}`, wire.RefusedInvalid},
		"large operation":   {`{"apply":{"size":50331649}}`, wire.RefusedInvalid},
		"largest operation": {`{"apply":{"size":50331648}}`, ""},
		"read":              {`{"read":{"kind":"info","path":""}}`, wire.RefusedUnsupported},
		"connection":        {`{"accept":{"local":"127.0.0.1:80"}}`, wire.RefusedUnsupported},
		"nothing":           {`{}`, wire.RefusedUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			h := serveHost(t, func(o *Options) {
				o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
					if r.Dir == "fault" {
						return launch.Process{}, errors.New("fault")
					}
					return noProcess{}.Launch(r)
				})
			})
			h.send(openFrame(7, tt.open))
			if tt.want != "" {
				var r wire.Refused
				f := h.next()
				if f.Type != wire.TypeRefused || f.Stream != 7 || wire.Decode(f.Payload, &r) != nil || r.Code != tt.want {
					t.Errorf("answer is type %d: %s, want refused as %s", f.Type, f.Payload, tt.want)
				}
			}
			// The stream has ended, or is being ended: its frames are ignored.
			h.send(on(7, wire.TypeCancel, 0, "{}"), wire.Frame{Type: wire.TypePing, Payload: []byte("12345678")})
			for f := h.next(); f.Type != wire.TypePong; f = h.next() {
				if f.Type == wire.TypeRefused {
					t.Errorf("refused: %s", f.Payload)
				}
			}
		})
	}
}

// TestStreamsAreBounded checks that one more stream than the bound is refused,
// until one ends.
func TestStreamsAreBounded(t *testing.T) {
	h := serveHost(t, nil)
	id := uint32(1)
	for range 128 {
		h.send(openFrame(id, `{"apply":{"size":1}}`))
		id += 2
	}
	h.send(openFrame(id, `{"apply":{"size":1}}`))
	var r wire.Refused
	if f := h.next(); f.Type != wire.TypeRefused || f.Stream != id || wire.Decode(f.Payload, &r) != nil || r.Code != wire.RefusedBusy {
		t.Errorf("129 streams: type %d of stream %d, %s", f.Type, f.Stream, f.Payload)
	}
	h.send(on(9, wire.TypeCancel, 0, "{}"))
	var a wire.Applied
	if h.until(wire.TypeEnd, &a); !a.Cancelled {
		t.Errorf("cancelled: %+v", a)
	}
	h.send(openFrame(id+2, `{"apply":{"size":1}}`), wire.Frame{Type: wire.TypePing, Payload: []byte("12345678")})
	if f := h.next(); f.Type != wire.TypePong {
		t.Errorf("another: type %d, %s", f.Type, f.Payload)
	}
}

// TestChange checks that an operation of exactly the announced size is made and
// its outcome reported.
func TestChange(t *testing.T) {
	const body = `{"kind":"mkdir","path":"d"}`
	done := workspace.Change{Kind: workspace.OpMkdir, Path: "d"}
	failure := func(kind, path string) wire.Applied {
		return wire.Applied{Error: &wire.OpError{Kind: kind, Path: path}}
	}
	for name, tt := range map[string]struct {
		body   string
		size   int // of body if 0
		err    error
		cancel bool // before the end of the body
		want   wire.Applied
		text   string // in the detail of the error
	}{
		"made":                {body: body},
		"failed":              {body: body, err: &workspace.Error{Kind: workspace.KindExists, Path: "p", Detail: "det"}, want: failure("exists", "p"), text: "det"},
		"failed otherwise":    {body: body, err: errors.New("strange"), want: failure("io", "d"), text: "strange"},
		"cancelled meanwhile": {body: body, err: errCancelled, want: wire.Applied{Cancelled: true}},
		"cancelled before":    {body: body, cancel: true, want: wire.Applied{Cancelled: true}},
		"longer":              {body: body, size: len(body) - 1, want: failure("invalid", ""), text: "longer"},
		"shorter":             {body: body, size: len(body) + 1, want: failure("invalid", ""), text: "shorter"},
		"no operation":        {body: "{", want: failure("invalid", ""), text: "decode"},
	} {
		t.Run(name, func(t *testing.T) {
			h := serveHost(t, func(o *Options) {
				o.Appliers = applier(func(_ context.Context, op workspace.Op) (workspace.Change, error) {
					if op.Kind != workspace.OpMkdir || op.Path != "d" {
						t.Errorf("the operation is %+v", op)
					}
					return done, tt.err
				})
			})
			if tt.size == 0 {
				tt.size = len(tt.body)
			}
			h.send(openFrame(1, `{"apply":{"size":`+itoa(tt.size)+`}}`), on(1, wire.TypeData, 0, tt.body))
			if tt.cancel {
				h.send(on(1, wire.TypeCancel, 0, "{}"))
			} else {
				h.send(on(1, wire.TypeEOF, 0, ""))
			}
			var got wire.Applied
			var change []byte
			f := h.next()
			for ; f.Type == wire.TypeData; f = h.next() {
				change = append(change, f.Payload...)
			}
			if f.Type != wire.TypeEOF || f.Channel != wire.Stdout {
				t.Errorf("then frame type %d on channel %d comes", f.Type, f.Channel)
			}
			h.until(wire.TypeEnd, &got)
			if got.Error != nil {
				if tt.text == "" || !strings.Contains(got.Error.Detail, tt.text) {
					t.Errorf("detail is %q", got.Error.Detail)
				}
				got.Error.Detail = ""
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			asked := tt.want.Error == nil || tt.want.Error.Kind != "invalid"
			if told := len(change) > 0; told != (asked && !tt.cancel) {
				t.Errorf("the change is told as %q", change)
			}
		})
	}
}

func itoa(n int) string { text, _ := json.Marshal(n); return string(text) }

// TestCancelReachesTheChange checks that a change in progress sees its
// cancellation.
func TestCancelReachesTheChange(t *testing.T) {
	begun := make(chan struct{})
	h := serveHost(t, func(o *Options) {
		o.Appliers = applier(func(ctx context.Context, _ workspace.Op) (workspace.Change, error) {
			close(begun)
			<-ctx.Done()
			return workspace.Change{}, context.Cause(ctx)
		})
	})
	h.send(openFrame(1, `{"apply":{"size":2}}`), on(1, wire.TypeData, 0, "{}"), on(1, wire.TypeEOF, 0, ""))
	<-begun
	h.send(on(1, wire.TypeCancel, 0, "{}"), on(1, wire.TypeCancel, 0, "{}"))
	var got wire.Applied
	if h.until(wire.TypeEnd, &got); !got.Cancelled || got.Error != nil {
		t.Errorf("outcome is %+v", got)
	}
}

var errBroken = errors.New("broken connection")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestSessionFails checks that a failed connection ends the session with its
// error.
func TestSessionFails(t *testing.T) {
	var most []wire.Frame
	for i := range uint32(maxStreams + 1) {
		most = append(most, openFrame(2*i+1, `{"apply":{"size":1}}`))
	}
	for name, tt := range map[string]struct {
		in   []byte
		want error
	}{
		"end inside a frame":   {[]byte{0, 0}, io.ErrUnexpectedEOF},
		"answer to a ping":     {frames(wire.Frame{Type: wire.TypePing, Payload: []byte("12345678")}), errBroken},
		"refusal of a command": {frames(openFrame(1, `{"exec":{"argv":[]}}`)), errBroken},
		"refusal of a change":  {frames(openFrame(1, `{"apply":{"size":0}}`)), errBroken},
		"refusal of nothing":   {frames(openFrame(1, `{}`)), errBroken},
		"refusal of one more":  {frames(most...), errBroken},
	} {
		s := New(Options{Frames: wire.NewReader(bytes.NewReader(tt.in)), Writer: wire.NewWriter(brokenWriter{})})
		if err := s.Run(); !errors.Is(err, tt.want) {
			t.Errorf("%s: it ends with %v, want %v", name, err, tt.want)
		}
		s.mu.Lock()
		for _, st := range s.streams {
			st.cancel(wire.Cancel{})
		}
		s.mu.Unlock()
		s.idle.Stop()
	}
}

// TestReadIsServed checks that a session with Readers serves reads, and refuses
// others.
func TestReadIsServed(t *testing.T) {
	readers, err := apply.NewReaders(apply.Options{Workspace: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h := serveHost(t, func(o *Options) { o.Readers = readers })
	h.send(openFrame(1, `{"read":{"kind":"info","path":"Lg=="}}`))
	var got wire.ReadResult
	if h.until(wire.TypeEnd, &got); got.Info == nil || got.Error != nil {
		t.Errorf("answer is %+v, error %+v", got, got.Error)
	}
	h.send(openFrame(3, `{}`))
	if f := h.next(); f.Type != wire.TypeRefused || f.Stream != 3 {
		t.Errorf("type %d of stream %d comes: %s", f.Type, f.Stream, f.Payload)
	}
	// While all threads are busy the stream is open, and its frames are
	// checked.
	release := make(chan struct{})
	var busy sync.WaitGroup
	for range apply.Threads {
		taken := make(chan struct{})
		busy.Go(func() {
			readers.Do(func(*workspace.Reader) {
				close(taken)
				<-release
			})
		})
		<-taken
	}
	h.send(openFrame(5, `{"read":{"kind":"info","path":"Lg=="}}`), on(5, wire.TypeEOF, wire.Stdin, ""))
	select {
	case err := <-h.ended:
		if !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("it ends with %v, want ErrProtocol", err)
		}
	case <-time.After(4 * time.Second):
		t.Error("input of a read is accepted")
	}
	close(release)
	busy.Wait()
}

// TestIdle checks that the time until a session is idle begins when its last
// stream has ended.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var idle atomic.Int32
		s := &Session{streams: map[uint32]stream{}, idle: time.AfterFunc(idleTime, func() { idle.Add(1) })}
		expect := func(name string, wait time.Duration, want int32) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if n := idle.Load(); n != want {
				t.Errorf("%s: idle %d times, want %d", name, n, want)
			}
		}
		s.addStream(1, nil)
		s.addStream(3, nil)
		expect("two streams", 2*idleTime, 0)
		s.removeStream(1)
		expect("one stream", 2*idleTime, 0)
		s.removeStream(3)
		expect("no stream", idleTime-1, 0)
		expect("no stream for long", 2*idleTime, 1)
	})
}
