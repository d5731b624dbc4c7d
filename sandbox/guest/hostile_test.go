package guest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// liar is a guest that the test plays.
type liar struct {
	t      testing.TB
	frames *wire.Reader
	writer *wire.Writer
	raw    net.Conn
}

// play connects to a guest that says hello and then does as the test says.
func play(t testing.TB) (*guest.Conn, *liar) {
	t.Helper()
	host, far := net.Pipe()
	return playOver(t, host, far)
}

// playOver is play over a connection with these two ends.
func playOver(t testing.TB, host, far net.Conn, change ...func(*guest.Options)) (*guest.Conn, *liar) {
	t.Helper()
	l := &liar{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), raw: far}
	go func() {
		_, _ = l.frames.Next()
		_ = l.writer.SendJSON(0, wire.TypeHello, wire.Hello{Protocol: wire.Version, Tmpfs: []wire.Mount{{Path: "/tmp"}, {Path: "/run"}}})
	}()
	o := guest.Options{Conn: host, Config: guest.NewConfig(sandbox.Spec{})}
	for _, f := range change {
		f(&o)
	}
	c, err := guest.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = far.Close()
	})
	return c, l
}

// next reads a frame of the host's that tests care about.
func (l *liar) next() wire.Frame {
	for {
		f, err := l.frames.Next()
		if err != nil {
			return wire.Frame{}
		}
		if f.Type != wire.TypeCredit {
			f.Payload = bytes.Clone(f.Payload)
			return f
		}
	}
}

// drain reads the host's frames until it hangs up.
func (l *liar) drain() {
	for {
		if _, err := l.frames.Next(); err != nil {
			return
		}
	}
}

func (l *liar) json(stream uint32, typ wire.Type, v any) { _ = l.writer.SendJSON(stream, typ, v) }

func (l *liar) frame(stream uint32, typ wire.Type, channel uint8, payload string) {
	_ = l.writer.Send(wire.Frame{Stream: stream, Type: typ, Channel: channel, Payload: []byte(payload)})
}

const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// goodExit is a possible exit of a command that wrote nothing.
func goodExit() wire.Exit {
	none := wire.Output{SHA256: emptySum}
	return wire.Exit{Stdout: none, Stderr: none}
}

// end ends both channels and the stream.
func (l *liar) end(change func(*wire.Exit)) {
	l.frame(1, wire.TypeEOF, wire.Stdout, "")
	l.frame(1, wire.TypeEOF, wire.Stderr, "")
	x := goodExit()
	change(&x)
	l.json(1, wire.TypeEnd, x)
}

func TestLies(t *testing.T) {
	started := func(l *liar) { l.json(1, wire.TypeStarted, wire.Started{PID: 7}) }
	ending := func(change func(*wire.Exit)) func(*liar) {
		return func(l *liar) {
			started(l)
			l.end(change)
		}
	}
	for name, lie := range map[string]func(*liar){
		"not a frame":        func(l *liar) { _, _ = l.raw.Write([]byte("\xff\xff\xff\xffHTTP/1.1 200")) },
		"cut frame":          func(l *liar) { _, _ = l.raw.Write([]byte{0, 0, 0, 9, 0, 0}); _ = l.raw.Close() },
		"end of stream":      func(l *liar) { _ = l.raw.Close() },
		"another stream":     func(l *liar) { l.json(3, wire.TypeStarted, wire.Started{}) },
		"never opened":       func(l *liar) { l.frame(5, wire.TypeData, 1, "x") },
		"opens a stream":     func(l *liar) { l.json(2, wire.TypeOpen, wire.Open{Accept: &wire.Accept{}}) },
		"opens ours":         func(l *liar) { l.json(3, wire.TypeOpen, wire.Open{Accept: &wire.Accept{}}) },
		"configures":         func(l *liar) { l.json(0, wire.TypeConfig, wire.Config{}) },
		"says hello again":   func(l *liar) { l.json(0, wire.TypeHello, wire.Hello{}) },
		"pings":              func(l *liar) { l.frame(0, wire.TypePing, 0, "12345678") },
		"answers no ping":    func(l *liar) { l.frame(0, wire.TypePong, 0, "12345678") },
		"cancels":            func(l *liar) { l.json(1, wire.TypeCancel, wire.Cancel{}) },
		"cancels the run":    func(l *liar) { started(l); l.json(1, wire.TypeCancel, wire.Cancel{}) },
		"refusal of nothing": func(l *liar) { l.frame(1, wire.TypeRefused, 0, "{") },
		"end of nothing": func(l *liar) {
			started(l)
			l.frame(1, wire.TypeEOF, wire.Stdout, "")
			l.frame(1, wire.TypeEOF, wire.Stderr, "")
			l.frame(1, wire.TypeEnd, 0, "{")
		},
		"input, more credit": func(l *liar) { started(l); _ = l.writer.SendCredit(1, 0, wire.Window) },
		"data before start":  func(l *liar) { l.frame(1, wire.TypeData, 1, "x") },
		"end before start":   func(l *liar) { l.json(1, wire.TypeEnd, goodExit()) },
		"starts twice":       func(l *liar) { started(l); started(l) },
		"refuses the run":    func(l *liar) { started(l); l.json(1, wire.TypeRefused, wire.Refused{Code: "invalid"}) },
		"unknown field":      func(l *liar) { l.frame(1, wire.TypeStarted, 0, `{"pid":1,"path":"/etc"}`) },
		"two values":         func(l *liar) { l.frame(1, wire.TypeStarted, 0, `{"pid":1}{}`) },
		"data on stdin":      func(l *liar) { started(l); l.frame(1, wire.TypeData, 0, "x") },
		"credit not asked":   func(l *liar) { started(l); _ = l.writer.SendCredit(1, 0, 1) },
		"credit for output":  func(l *liar) { started(l); _ = l.writer.SendCredit(1, 1, 1) },
		"stops no stdin":     func(l *liar) { started(l); l.frame(1, wire.TypeStop, 0, "") },
		"data after its end": func(l *liar) { started(l); l.frame(1, wire.TypeEOF, 1, ""); l.frame(1, wire.TypeData, 1, "x") },
		"ends twice":         func(l *liar) { started(l); l.frame(1, wire.TypeEOF, 1, ""); l.frame(1, wire.TypeEOF, 1, "") },
		"more than live":     func(l *liar) { started(l); l.frame(1, wire.TypeData, 2, strings.Repeat("x", 1001)) },
		"end without eof":    func(l *liar) { started(l); l.json(1, wire.TypeEnd, goodExit()) },
		"frames after end":   func(l *liar) { started(l); l.end(func(*wire.Exit) {}); l.frame(1, wire.TypeData, 1, "x") },
		"cancelled":          ending(func(x *wire.Exit) { x.Cancelled = true }),
	} {
		t.Run(name, func(t *testing.T) {
			c, l := play(t)
			go func() {
				if l.next().Type == wire.TypeOpen {
					go l.drain()
					lie(l)
				}
			}()
			cmd := sandbox.Command{Argv: []string{"x"}, Output: sandbox.OutputLimits{Live: 1000, Tail: 100}}
			if strings.HasPrefix(name, "input") {
				cmd.Stdin = strings.NewReader("")
			}
			p, err := c.Start(t.Context(), cmd)
			if err == nil {
				_, err = p.Wait()
			}
			if err == nil { // a lie that comes after the end
				<-c.Done()
				err = c.Err()
			}
			if !errors.Is(err, sandbox.ErrLost) {
				t.Errorf("error is %v, want one of ErrLost", err)
			}
			<-c.Done()
			if !errors.Is(c.Err(), sandbox.ErrLost) {
				t.Errorf("connection's error is %v, want one of ErrLost", c.Err())
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for code, want := range map[wire.RefusalCode]error{
		wire.RefusedInvalid: sandbox.ErrInvalid, wire.RefusedBusy: sandbox.ErrUnavailable, "new": sandbox.ErrUnavailable,
	} {
		c, l := play(t)
		go func() {
			l.next()
			l.json(1, wire.TypeRefused, wire.Refused{Code: code, Text: "no\x1b[2Jway"})
		}()
		_, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "no?[2Jway") {
			t.Errorf("refused with %q: error is %q, want one of %v", code, err, want)
		}
		if c.Err() != nil {
			t.Errorf("a refusal ended the connection: %v", c.Err())
		}
	}
}

// TestSilence checks that a guest that does not answer in its time is lost.
func TestSilence(t *testing.T) {
	const answer = 30 * time.Second
	for name, tt := range map[string]struct {
		call  func(t *testing.T, c *guest.Conn) error
		after time.Duration
	}{
		"ping": {func(t *testing.T, c *guest.Conn) error { return c.Ping(t.Context()) }, answer},
		"start": {func(t *testing.T, c *guest.Conn) error {
			_, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}})
			return err
		}, answer},
		"timeout": {func(t *testing.T, c *guest.Conn) error {
			p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"run"}, Timeout: time.Hour, Grace: time.Second})
			if err != nil {
				return err
			}
			_, err = p.Wait()
			return err
		}, time.Hour + time.Second + answer},
		"cancelled": {func(t *testing.T, c *guest.Conn) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p, err := c.Start(ctx, sandbox.Command{Argv: []string{"run"}, Timeout: time.Hour, Grace: time.Second})
			if err != nil {
				return err
			}
			cancel()
			_, err = p.Wait()
			return err
		}, time.Second + answer},
		"cancelled before its start is told": {func(t *testing.T, c *guest.Conn) error {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Second, cancel)
			p, err := c.Start(ctx, sandbox.Command{Argv: []string{"later"}, Timeout: time.Hour, Grace: time.Second})
			if err != nil {
				return err
			}
			_, err = p.Wait()
			return err
		}, 5*time.Second + time.Second + answer},
		"change": {func(t *testing.T, c *guest.Conn) error {
			_, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"})
			return err
		}, 20 * answer},
		"cancelled change": {func(t *testing.T, c *guest.Conn) error {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(5*time.Second, cancel)
			_, err := c.Apply(ctx, workspace.Op{Kind: workspace.OpMkdir, Path: "d"})
			return err
		}, 5*time.Second + answer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := play(t)
				go func() {
					for f := l.next(); f.Type != 0; f = l.next() {
						var open wire.Open
						if f.Type != wire.TypeOpen || wire.Decode(f.Payload, &open) != nil || open.Exec == nil {
							continue
						}
						switch string(open.Exec.Argv[0]) {
						case "later":
							time.AfterFunc(10*time.Second, func() { l.json(1, wire.TypeStarted, wire.Started{}) })
						case "run":
							l.json(1, wire.TypeStarted, wire.Started{})
						}
					}
				}()
				began := time.Now()
				err := tt.call(t, c)
				if !errors.Is(err, sandbox.ErrLost) {
					t.Errorf("error is %v, want one of ErrLost", err)
				}
				if took := time.Since(began); took != tt.after {
					t.Errorf("lost after %v, want %v", took, tt.after)
				}
				if err := c.Err(); !errors.Is(err, sandbox.ErrLost) || !strings.Contains(err.Error(), "no answer") {
					t.Errorf("the connection's error is %v", err)
				}
			})
		})
	}
}

func TestDialFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		play func(l *liar)
		want string
	}{
		"ends":          {func(l *liar) { _ = l.raw.Close() }, "ended before"},
		"other frame":   {func(l *liar) { l.frame(0, wire.TypePong, 0, "12345678") }, "instead of a hello"},
		"other version": {func(l *liar) { l.json(0, wire.TypeHello, wire.Hello{Protocol: 9}) }, "of one build"},
		"can't serve":   {func(l *liar) { l.json(0, wire.TypeHello, wire.Hello{Protocol: wire.Version, Error: "no \x07groups"}) }, "no ?groups"},
		"no JSON":       {func(l *liar) { l.frame(0, wire.TypeHello, 0, "{") }, "decode"},
		"says nothing":  {func(*liar) {}, "no answer within"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, far := net.Pipe()
				defer far.Close()
				l := &liar{t: t, frames: wire.NewReader(far), writer: wire.NewWriter(far), raw: far}
				go func() {
					l.next()
					tt.play(l)
				}()
				_, err := guest.Dial(t.Context(), guest.Options{Conn: host, Config: guest.NewConfig(sandbox.Spec{})})
				if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error is %v, want one of ErrUnavailable with %q", err, tt.want)
				}
				if _, err := host.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("the connection is left open: %v", err)
				}
			})
		})
	}
}

// FuzzGuest feeds the host arbitrary bytes while a command and a change run.
// Both must end, the connection too, and memory must stay bounded.
func FuzzGuest(f *testing.F) {
	frame := func(stream uint32, typ wire.Type, channel uint8, payload string) []byte {
		var b bytes.Buffer
		_ = wire.NewWriter(&b).Send(wire.Frame{Stream: stream, Type: typ, Channel: channel, Payload: []byte(payload)})
		return b.Bytes()
	}
	exit, err := json.Marshal(goodExit())
	if err != nil {
		f.Fatal(err)
	}
	seeds := [][]byte{
		{},
		binary.BigEndian.AppendUint32(nil, 1<<31),
		bytes.Join([][]byte{
			frame(1, wire.TypeStarted, 0, `{"pid":3}`),
			frame(1, wire.TypeData, 1, "hello"),
			frame(1, wire.TypeCredit, 0, "\x00\x00\x00\x01"),
			frame(1, wire.TypeEOF, 1, ""), frame(1, wire.TypeEOF, 2, ""),
			frame(1, wire.TypeEnd, 0, string(exit)),
		}, nil),
		bytes.Join([][]byte{
			frame(3, wire.TypeData, 1, `{"kind":"mkdir","path":"d","bytes":0}`),
			frame(3, wire.TypeEOF, 1, ""),
			frame(3, wire.TypeEnd, 0, `{}`),
		}, nil),
		frame(1, wire.TypeRefused, 0, `{"code":"busy","text":"x"}`),
		bytes.Join([][]byte{
			frame(2, wire.TypeOpen, 0, `{"accept":{"local":"127.80.0.1:61080","uid":10001}}`),
			frame(2, wire.TypeData, 1, "GET / HTTP/1.1\r\n\r\n"),
			frame(2, wire.TypeCredit, 0, "\x00\x00\x00\x01"),
			frame(2, wire.TypeEOF, 1, ""),
			frame(2, wire.TypeEnd, 0, `{}`),
			frame(4, wire.TypeOpen, 0, `{"lookup":{"name":"example.com"}}`),
		}, nil),
		frame(2, wire.TypeOpen, 0, `{"accept":{"local":"127.0.0.1:22"}}`),
		frame(0, wire.TypePong, 0, "\x00\x00\x00\x00\x00\x00\x00\x01"),
	}
	if len(seeds) < 7 {
		f.Fatal("the seed corpus is gone")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		defer func() {
			runtime.ReadMemStats(&after)
			// One frame of the largest kind, a connection's own memory, and
			// copies.
			if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > 4*wire.MaxControl+int64(len(data))*256 {
				t.Errorf("%d bytes of a guest made the host allocate %d", len(data), grown)
			}
		}()
		host, far := net.Pipe()
		c, l := playOver(t, host, far, withEgress)
		c.Serve(echo{})
		go l.drain()
		ended := make(chan struct{}, 2)
		go func() {
			p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdin: strings.NewReader("in")})
			if err == nil {
				_, _ = p.Wait()
			}
			ended <- struct{}{}
		}()
		go func() {
			_, _ = c.Apply(t.Context(), workspace.Op{Kind: workspace.OpMkdir, Path: "d"})
			ended <- struct{}{}
		}()
		go func() {
			_, _ = l.raw.Write(data)
			_ = l.raw.Close()
		}()
		<-ended
		<-ended
		<-c.Done()
		if err := c.Err(); !errors.Is(err, sandbox.ErrLost) {
			t.Errorf("connection's error is %v", err)
		}
	})
}
