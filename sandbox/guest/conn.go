package guest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// Conn is a connection to a guest. The caller of Dial must close it. It is safe
// for concurrent use.
type Conn struct {
	o      Options
	hello  wire.Hello
	writer *wire.Writer
	hangUp func() error  // closes Options.Conn, once
	done   chan struct{} // closed when the connection has ended
	read   chan struct{} // closed when the reading goroutine has returned

	beating sync.WaitGroup // the goroutine of beat

	egress  egress
	life    context.Context // the context of handlers; ends with the connection
	endLife context.CancelCauseFunc

	reads   chan struct{} // one element for each open read
	opening sync.Mutex    // held while a stream is opened: ids go out in order

	mu      sync.Mutex
	calls   map[uint32]call
	nextID  uint32
	pings   map[uint64]chan<- struct{} // that a Ping waits for
	unasked int                        // unanswered pings without a waiting caller
	nextNo  uint64
	closing bool
	ended   bool
	err     error
}

// call is an open stream. The reading goroutine calls its methods, which must
// not wait.
type call interface {
	// takeFrame processes a frame of the stream. An error is a violation of the
	// protocol; last reports whether the stream has ended.
	takeFrame(f wire.Frame) (last bool, err error)
	// connectionLost is called if the connection ends before the stream.
	connectionLost(err error)
}

// Dial sends the configuration, waits for the guest's hello and returns the
// connection. It returns sandbox.ErrUnavailable if the guest ends, does not
// answer, can't serve or speaks another version, and an error wrapping
// context.Cause(ctx) if ctx ends first. After an error, Options.Conn is closed.
// The connection does not depend on ctx.
func Dial(ctx context.Context, o Options) (*Conn, error) {
	o = o.withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, o.AnswerTime,
		fmt.Errorf("%w: no answer within %v", sandbox.ErrUnavailable, o.AnswerTime))
	defer cancel()
	if err := o.Config.Validate(); err != nil {
		return nil, errors.Join(fmt.Errorf("dial guest: %w: %w", sandbox.ErrInvalid, err), o.Conn.Close())
	}
	c := &Conn{
		o: o, writer: wire.NewWriter(o.Conn), hangUp: sync.OnceValue(o.Conn.Close),
		done: make(chan struct{}), read: make(chan struct{}),
		reads: make(chan struct{}, maxReads), calls: map[uint32]call{}, nextID: 1, pings: map[uint64]chan<- struct{}{},
	}
	c.egress.relays, c.egress.commands = map[*relay]struct{}{}, map[int]*process{}
	c.life, c.endLife = context.WithCancelCause(context.Background())
	stop := context.AfterFunc(ctx, func() { _ = c.hangUp() })
	frames := wire.NewReader(bufio.NewReaderSize(o.Conn, wire.MaxData))
	hello, err := c.exchangeHello(frames)
	if !stop() { // ctx has ended and the stream is closed
		return nil, fmt.Errorf("dial guest: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial guest: %w: %w", sandbox.ErrUnavailable, err), c.hangUp())
	}
	c.hello = hello
	go c.receiveFrames(frames)
	if silence := time.Duration(o.Config.SilenceMS) * time.Millisecond; silence > 0 {
		c.beating.Go(func() { c.sendBeats(silence / 3) })
	}
	return c, nil
}

func (c *Conn) exchangeHello(frames *wire.Reader) (wire.Hello, error) {
	var h wire.Hello
	if err := c.writer.SendJSON(0, wire.TypeConfig, c.o.Config); err != nil {
		return h, err
	}
	f, err := frames.Next()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it ended before it said hello")
		}
		return h, err
	}
	if f.Type != wire.TypeHello {
		return h, fmt.Errorf("%w: frame type %d instead of a hello", wire.ErrProtocol, f.Type)
	}
	if err := wire.Decode(f.Payload, &h); err != nil {
		return h, err
	}
	if h.Protocol != wire.Version {
		return h, fmt.Errorf("it speaks protocol %d, this build %d: they must be of one build", h.Protocol, wire.Version)
	}
	if h.Error != "" {
		return h, fmt.Errorf("it can't serve: %s", cleanText(h.Error))
	}
	return h, nil
}

// Hello returns the guest's report about itself and the container.
func (c *Conn) Hello() wire.Hello { return c.hello }

// Done returns a channel that is closed when the connection has ended. Err then
// returns nil after Close, or an error that wraps sandbox.ErrLost. A backend
// then kills the container.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil until Done is closed.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection, which makes the guest kill everything and exit.
// Running commands end with sandbox.ErrLost. Close waits for the reading
// goroutine, but not for a Command's reader or writer that is stuck. It is
// idempotent.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	err := c.hangUp()
	<-c.read
	c.beating.Wait()
	return err
}

// Ping makes a round trip to the guest. A guest that does not answer within
// Options.AnswerTime is lost.
func (c *Conn) Ping(ctx context.Context) error {
	answered := make(chan struct{}, 1)
	defer c.giveUp(c.sendPing(answered))
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ping guest: %w", context.Cause(ctx))
	case <-c.done:
		return fmt.Errorf("ping guest: %w", c.lostError())
	case <-time.After(c.o.AnswerTime):
		c.lose(fmt.Errorf("no answer to a ping within %v", c.o.AnswerTime))
		return fmt.Errorf("ping guest: %w", c.lostError())
	}
}

// sendPing sends a ping and returns its number. answered, if not nil, must be
// buffered; it receives an element with the answer. A failure loses the
// connection.
func (c *Conn) sendPing(answered chan<- struct{}) (number uint64) {
	c.mu.Lock()
	c.nextNo++
	number = c.nextNo
	if answered != nil {
		c.pings[number] = answered
	} else {
		c.unasked++
	}
	c.mu.Unlock()
	c.send(wire.Frame{Type: wire.TypePing, Payload: binary.BigEndian.AppendUint64(nil, number)})
	return number
}

// giveUp stops waiting for a ping's answer, which may still come.
func (c *Conn) giveUp(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.pings[number]; ok {
		delete(c.pings, number)
		c.unasked++
	}
}

// sendBeats tells the guest that its host is alive, until the connection ends.
// It waits for no answer, because a paused container may continue later.
func (c *Conn) sendBeats(every time.Duration) {
	tick := time.Tick(every)
	for {
		select {
		case <-c.done:
			return
		case <-tick:
			c.sendPing(nil)
		}
	}
}

// receiveFrames is the reading goroutine.
func (c *Conn) receiveFrames(frames *wire.Reader) {
	defer close(c.read)
	for {
		f, err := frames.Next()
		if errors.Is(err, io.EOF) {
			err = errors.New("the guest ended")
		}
		if err == nil {
			err = c.takeFrame(f)
		}
		if err != nil {
			c.lose(err)
			return
		}
	}
}

func (c *Conn) takeFrame(f wire.Frame) error {
	switch f.Type {
	case wire.TypePong:
		return c.takePong(binary.BigEndian.Uint64(f.Payload))
	case wire.TypePing, wire.TypeConfig, wire.TypeHello:
		return fmt.Errorf("%w: frame type %d from a guest", wire.ErrProtocol, f.Type)
	case wire.TypeOpen:
		return c.takeOpen(f)
	}
	c.mu.Lock()
	stream, ok := c.calls[f.Stream]
	c.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: frame type %d of stream %d, which is not open", wire.ErrProtocol, f.Type, f.Stream)
	}
	last, err := stream.takeFrame(f)
	if err != nil {
		return fmt.Errorf("frame type %d of stream %d: %w", f.Type, f.Stream, err)
	}
	if last {
		c.mu.Lock()
		delete(c.calls, f.Stream)
		c.mu.Unlock()
	}
	return nil
}

func (c *Conn) takePong(number uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	answered, ok := c.pings[number]
	switch {
	case ok:
		delete(c.pings, number)
		answered <- struct{}{}
	case c.unasked > 0 && number > 0 && number <= c.nextNo:
		// Only their number is known.
		c.unasked--
	default:
		return fmt.Errorf("%w: answer to a ping that was not sent", wire.ErrProtocol)
	}
	return nil
}

// openStream assigns a stream its id and sends its first frame. If that fails,
// it calls the stream's connectionLost.
func (c *Conn) openStream(request wire.Open, make func(id uint32) call) error {
	c.opening.Lock()
	defer c.opening.Unlock()
	c.mu.Lock()
	if c.ended || c.closing {
		c.mu.Unlock()
		return c.lostError()
	}
	id := c.nextID
	c.nextID += 2
	stream := make(id)
	c.calls[id] = stream
	c.mu.Unlock()
	if err := c.writer.SendJSON(id, wire.TypeOpen, request); err != nil {
		if errors.Is(err, wire.ErrProtocol) { // too large; nothing was written
			c.mu.Lock()
			delete(c.calls, id)
			c.mu.Unlock()
			err = fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
			stream.connectionLost(err)
			return err
		}
		c.lose(err)
		return c.lostError()
	}
	return nil
}

// send writes a frame. A failure loses the connection, which closes every
// stream's credit.
func (c *Conn) send(f wire.Frame) {
	if err := c.writer.Send(f); err != nil {
		c.lose(err)
	}
}

func (c *Conn) grantCredit(id uint32, channel uint8, n uint32) {
	if n == 0 {
		return
	}
	if err := c.writer.SendCredit(id, channel, n); err != nil {
		c.lose(err)
	}
}

// lose ends the connection, once, and notifies every open stream.
func (c *Conn) lose(cause error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended = true
	if !c.closing {
		c.err = fmt.Errorf("%w: %w", sandbox.ErrLost, cause)
	}
	calls := c.calls
	c.calls = map[uint32]call{}
	closing := c.closing
	c.mu.Unlock()
	if !closing {
		c.o.Logger.Warn("guest lost", zap.Error(cause))
	}
	_ = c.hangUp()
	c.endLife(c.lostError())
	for _, stream := range calls {
		stream.connectionLost(c.lostError())
	}
	close(c.done)
}

// lostError returns the error of calls on a connection that has ended.
func (c *Conn) lostError() error {
	if err := c.Err(); err != nil {
		return err
	}
	return fmt.Errorf("%w: the connection was closed", sandbox.ErrLost)
}

// maxText bounds a guest's message in an error, in bytes.
const maxText = 500

// cleanText makes a guest's message fit for an error and a terminal: bounded,
// on one line, without control or invisible characters.
func cleanText(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
