package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/apply"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/output"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/relay"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// maxStreams bounds the open streams. The dispatcher runs four calls a session;
// the rest is room for long-lived ones.
const maxStreams = 128

// movingStreams bounds the streams of commands whose bytes move at the same
// moment: two processors move them (see package boot).
const movingStreams = 4

// idleTime is how long nothing must be open before memory is given back.
const idleTime = 2 * time.Second

// Options configures a session.
type Options struct {
	Frames     *wire.Reader
	Writer     *wire.Writer
	Config     wire.Config
	Launcher   Launcher
	Identities int
	Killer     *kill.Killer
	Appliers   Applier
	Readers    *apply.Readers // nil unless Config.View
	// Executable is the path of the guest's own binary. Transfers are the
	// threads that run commands of package transfer.
	Executable string
	Transfers  *identity.Pool
	OOM        *observe.Counter
	PIDs       *observe.Counter
	Volumes    observe.Volumes
	Reaper     *reap.Loop
	Listeners  *relay.Listeners // nil unless Config.Egress
}

// Launcher starts a command's process. It returns errors as spawn.Spawner does.
type Launcher interface {
	Launch(spawn.Request) (launch.Process, error)
}

// Applier changes the workspace. It returns errors as apply.Appliers does.
type Applier interface {
	Apply(ctx context.Context, op workspace.Op) (workspace.Change, error)
}

// Session serves one host.
type Session struct {
	o     Options
	gids  *gids
	slots output.Slots
	// waiting is how many transfers wait for a thread.
	waiting atomic.Int32
	relays  *relay.Server // nil without listeners

	budgets budgets

	mu      sync.Mutex
	streams map[uint32]stream
	last    uint32 // the highest id that was opened
	idle    *time.Timer
}

// stream is an open stream. The goroutine that reads frames calls its methods,
// which must not wait, except run.
type stream interface {
	// run is the stream's goroutine. It sends the last frame.
	run()
	takeData(channel uint8, p []byte) error
	takeEOF(channel uint8) error
	addCredit(channel uint8, n uint32) error
	stopReading(channel uint8)
	cancel(request wire.Cancel)
}

// New returns a session.
func New(o Options) *Session {
	s := &Session{
		o: o, budgets: budgets{killer: o.Killer}, streams: map[uint32]stream{}, slots: output.NewSlots(movingStreams),
		gids: newGIDs(o.Config.GIDBase, o.Config.GIDCount),
	}
	if o.Listeners != nil {
		s.relays = relay.New(o.Listeners, o.Writer, s.slots)
	}
	s.idle = time.AfterFunc(idleTime, debug.FreeOSMemory)
	return s
}

// Run serves until the host closes its end, and then returns nil. The caller
// exits, and the kernel kills everything in the container.
func (s *Session) Run() error {
	if s.relays != nil {
		s.relays.Start()
	}
	for {
		f, err := s.o.Frames.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.takeFrame(f); err != nil {
			return fmt.Errorf("frame type %d of stream %d: %w", f.Type, f.Stream, err)
		}
	}
}

func (s *Session) takeFrame(f wire.Frame) error {
	if s.relays != nil && f.Stream > 0 && f.Stream%2 == 0 {
		return s.relays.TakeFrame(f)
	}
	switch f.Type {
	case wire.TypePing:
		return s.o.Writer.Send(wire.Frame{Type: wire.TypePong, Payload: f.Payload})
	case wire.TypeOpen:
		return s.openStream(f)
	case wire.TypeData, wire.TypeEOF, wire.TypeCredit, wire.TypeStop, wire.TypeCancel, wire.TypeResize:
		st, err := s.findStream(f.Stream)
		if st == nil {
			return err
		}
		return deliverFrame(st, f)
	}
	return fmt.Errorf("%w: a host doesn't send this", wire.ErrProtocol)
}

func deliverFrame(st stream, f wire.Frame) error {
	switch f.Type {
	case wire.TypeData:
		return st.takeData(f.Channel, f.Payload)
	case wire.TypeEOF:
		return st.takeEOF(f.Channel)
	case wire.TypeCredit:
		return st.addCredit(f.Channel, wire.CreditOf(f))
	case wire.TypeStop:
		st.stopReading(f.Channel)
	case wire.TypeResize:
		c, ok := st.(*command)
		if !ok || c.request.Terminal == nil {
			return fmt.Errorf("%w: the stream has no terminal", wire.ErrProtocol)
		}
		c.resize(wire.TerminalSizeOf(f))
	case wire.TypeCancel:
		var request wire.Cancel
		if err := wire.Decode(f.Payload, &request); err != nil {
			return err
		}
		st.cancel(request)
	}
	return nil
}

// findStream returns an open stream, or nil if it has ended: the host may not
// have seen its end yet.
func (s *Session) findStream(id uint32) (stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id%2 == 0 || id > s.last {
		return nil, fmt.Errorf("%w: no such stream", wire.ErrProtocol)
	}
	return s.streams[id], nil
}

func (s *Session) openStream(f wire.Frame) error {
	var open wire.Open
	if err := wire.Decode(f.Payload, &open); err != nil {
		return err
	}
	s.mu.Lock()
	if f.Stream%2 == 0 || f.Stream <= s.last {
		s.mu.Unlock()
		return fmt.Errorf("%w: bad stream id", wire.ErrProtocol)
	}
	s.last = f.Stream
	busy := len(s.streams) >= maxStreams
	s.mu.Unlock()
	if s.relays != nil {
		s.relays.Pause()
	}
	var st stream
	switch {
	case busy:
		return s.refuseStream(f.Stream, wire.RefusedBusy, fmt.Sprintf("%d streams are open", maxStreams))
	case open.Exec != nil:
		c, err := newCommand(s, f.Stream, *open.Exec)
		if err != nil {
			return s.refuseStream(f.Stream, wire.RefusedInvalid, err.Error())
		}
		st = c
	case open.Apply != nil:
		if open.Apply.Size <= 0 || open.Apply.Size > wire.MaxOp {
			return s.refuseStream(f.Stream, wire.RefusedInvalid, "the operation is empty or too large")
		}
		st = newChange(s, f.Stream, open.Apply.Size)
	case open.Read != nil && s.o.Readers != nil:
		st = newRead(s, f.Stream, *open.Read)
	default:
		return s.refuseStream(f.Stream, wire.RefusedUnsupported, "this guest serves no such stream")
	}
	s.addStream(f.Stream, st)
	go st.run()
	return nil
}

func (s *Session) refuseStream(id uint32, code wire.RefusalCode, text string) error {
	return s.o.Writer.SendJSON(id, wire.TypeRefused, wire.Refused{Code: code, Text: text})
}

// endStream sends a stream's last frames, after the ends of its channels. The
// goroutine that reads will see a failure to send.
func (s *Session) endStream(id uint32, answer any, channels ...uint8) {
	var frames []wire.Frame
	for _, channel := range channels {
		frames = append(frames, wire.Frame{Stream: id, Type: wire.TypeEOF, Channel: channel})
	}
	last, err := wire.JSON(id, wire.TypeEnd, answer)
	if err != nil {
		panic("caisson-guest: " + err.Error()) // plain values always encode
	}
	_ = s.o.Writer.Send(append(frames, last)...)
}

func (s *Session) addStream(id uint32, st stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[id] = st
	s.idle.Stop()
}

// removeStream forgets a stream, before its last frame is sent.
func (s *Session) removeStream(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, id)
	if len(s.streams) == 0 {
		s.idle.Reset(idleTime)
	}
}

// badChannel returns the error for a frame on a channel that a stream doesn't
// have.
func badChannel(channel uint8) error {
	return fmt.Errorf("%w: channel %d of this stream", wire.ErrProtocol, channel)
}
