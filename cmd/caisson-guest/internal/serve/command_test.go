package serve

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/output"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// TestGroupsOfCommands checks that a group marks one command at a time. A
// command releases its group when it has ended or failed to start, unless one
// of its processes does not end.
func TestGroupsOfCommands(t *testing.T) {
	h := serveHost(t, func(o *Options) {
		o.Config.GIDCount = 1
		o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
			if r.Group != fuzzGroups {
				t.Errorf("the group is %d", r.Group)
			}
			p, err := noProcess{}.Launch(r)
			if r.Argv[0] == "stuck" {
				p.Exit = make(chan reap.Exit)
			}
			return p, err
		})
	})
	open := func(id uint32, program string) {
		text, err := json.Marshal(wire.Open{Exec: &wire.Exec{
			Argv: [][]byte{[]byte(program)}, Live: 1 << 20, Tail: 100, Timeout: time.Hour, Grace: time.Hour,
		}})
		if err != nil {
			t.Fatal(err)
		}
		h.send(openFrame(id, string(text)))
	}
	var x wire.Exit
	open(1, "missing")
	if f := h.next(); f.Type != wire.TypeStarted {
		t.Errorf("a program that is missing: first type %d comes", f.Type)
	}
	if h.until(wire.TypeEnd, &x); x.Code != 127 || x.Stderr.Total != int64(len("caisson: not found\n")) {
		t.Errorf("a program that is missing: %+v", x)
	}
	open(3, "x")
	x = wire.Exit{}
	if h.until(wire.TypeEnd, &x); x.Code != 0 || x.Stdout.Total != 14000 || x.Kill != (wire.Kill{}) || x.Cancelled {
		t.Errorf("a command: %+v", x)
	}
	open(5, "stuck")
	h.until(wire.TypeStarted, new(wire.Started))
	open(7, "x")
	if f := h.untilRefused(); f.Stream != 7 {
		t.Errorf("stream %d is refused", f.Stream)
	}
	h.send(on(5, wire.TypeCancel, 0, "{}"))
	x = wire.Exit{}
	if h.until(wire.TypeEnd, &x); x.Code != -1 || x.Signal != int(unix.SIGKILL) || !x.Cancelled || x.Kill.Left != 1 || x.Kill.AfterExit {
		t.Errorf("a command whose process does not end: %+v", x)
	}
	open(9, "x")
	if f := h.untilRefused(); f.Stream != 9 {
		t.Errorf("stream %d is refused", f.Stream)
	}
}

// TestTerminalOfNoProgram checks that the reason is on the only stream of a
// terminal.
func TestTerminalOfNoProgram(t *testing.T) {
	h := serveHost(t, nil)
	h.send(openFrame(1, `{"exec":{"argv":["bWlzc2luZw=="],"env":[],"terminal":{"rows":1,"columns":1},"live":100,"tail":1,"timeout":50000000,"grace":1}}`))
	h.until(wire.TypeStarted, new(wire.Started))
	if f := h.next(); f.Channel != wire.Stdout || string(f.Payload) != "caisson: not found\r\n" {
		t.Errorf("channel %d says %q", f.Channel, f.Payload)
	}
	var x wire.Exit
	if h.until(wire.TypeEnd, &x); x.Code != 127 || x.Stderr.Total != 0 {
		t.Errorf("it ends with %+v", x)
	}
}

// TestCommandIsOver checks that a command's resources are given back once, when
// it is over. Its timeout ends it, but processes that stay are not forgotten.
func TestCommandIsOver(t *testing.T) {
	for name, ends := range map[string]bool{"ended": true, "timed out": false} {
		t.Run(name, func(t *testing.T) {
			released := make(chan struct{}, 2)
			var killer *kill.Killer
			h := serveHost(t, func(o *Options) {
				killer = o.Killer
				o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
					p, err := noProcess{}.Launch(r)
					p.Release = func() { released <- struct{}{} }
					if !ends {
						p.Exit = make(chan reap.Exit)
					}
					return p, err
				})
			})
			h.send(openFrame(1, `{"exec":{"argv":["eA=="],"env":[],"live":1000000,"tail":1,"timeout":50000000,"grace":1}}`))
			var x wire.Exit
			if h.until(wire.TypeEnd, &x); x.TimedOut == ends || (x.Kill.Left == 0) != ends {
				t.Errorf("it ends with %+v", x)
			}
			if n, one := killer.Launches(); n != 1 || one == ends {
				t.Errorf("%d launches, one runs: %t", n, one)
			}
			if n := len(released); n != 1 {
				t.Errorf("released %d times", n)
			}
		})
	}
}

// TestStuckStart checks that a child is woken if another command stopped it
// before it has executed.
func TestStuckStart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	killer := kill.New(kill.MethodGroup, reaper(), nil)
	h := serveHost(t, func(o *Options) {
		o.Killer = killer
		o.Config.GIDBase = uint32(fuzzGroups + 1000 + 2*os.Getpid()) // of this run alone
		o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
			p := shell(t, r.Group, "echo up; kill -STOP $$; exit 3")
			exit := <-p.Exit // not before it is woken
			child, err := noProcess{}.Launch(r)
			ended := make(chan reap.Exit, 1)
			ended <- exit
			child.Exit = ended
			return child, err
		})
	})
	h.send(openFrame(1, `{"exec":{"argv":["eA=="],"env":[],"live":1000000,"tail":1,"timeout":60000000000,"grace":1}}`))
	var x wire.Exit
	if h.until(wire.TypeEnd, &x); x.Code != 3 {
		t.Errorf("it ends with %+v", x)
	}
}

// untilRefused reads up to a refusal because of what runs.
func (h *host) untilRefused() wire.Frame {
	h.t.Helper()
	f := h.next()
	for f.Type != wire.TypeRefused {
		if f.Type == wire.TypeEnd {
			h.t.Fatalf("stream %d ends: %s", f.Stream, f.Payload)
		}
		f = h.next()
	}
	var r wire.Refused
	if err := wire.Decode(f.Payload, &r); err != nil || r.Code != wire.RefusedBusy {
		h.t.Errorf("refused: %s", f.Payload)
	}
	return f
}

// TestCommandFrames checks that each channel of a command goes one way.
func TestCommandFrames(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		c, err := newCommand(nil, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1, Stdin: stdin})
		if err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			err error
			ok  bool
		}{
			"data on stdin":    {c.takeData(wire.Stdin, []byte("x")), stdin},
			"end of stdin":     {c.takeEOF(wire.Stdin), stdin},
			"data on stdout":   {c.takeData(wire.Stdout, []byte("x")), false},
			"end of stderr":    {c.takeEOF(wire.Stderr), false},
			"credit on stdin":  {c.addCredit(wire.Stdin, 1), false},
			"credit on stdout": {c.addCredit(wire.Stdout, 0), true},
			"credit on stderr": {c.addCredit(wire.Stderr, wire.Window), false},
		} {
			if tt.ok != (tt.err == nil) || tt.err != nil && !errors.Is(tt.err, wire.ErrProtocol) {
				t.Errorf("with input %t, %s: %v", stdin, name, tt.err)
			}
		}
		if stdin {
			again := c.takeEOF(wire.Stdin)
			if more := c.takeData(wire.Stdin, []byte("x")); !errors.Is(again, wire.ErrProtocol) || !errors.Is(more, wire.ErrProtocol) {
				t.Errorf("after the end of stdin: another end is %v, data are %v", again, more)
			}
		}
		c.stopReading(wire.Stdin)
		c.stopReading(wire.Stderr)
		if out, errs := c.credits[0].Take(1, nil), c.credits[1].Take(1, nil); out != 1 || errs != 0 {
			t.Errorf("after a stop of stderr %d and %d bytes may be sent", out, errs)
		}
	}
}

// TestCancelsOfACommand checks that a cancel without a grace period counts
// once, even after another cancel.
func TestCancelsOfACommand(t *testing.T) {
	c, err := newCommand(nil, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1})
	if err != nil {
		t.Fatal(err)
	}
	closed := func(ch chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	for i, request := range []wire.Cancel{{}, {}, {Kill: true}, {Kill: true}} {
		c.cancel(request)
		if !closed(c.cancelled) || closed(c.killed) != (i >= 2) {
			t.Errorf("after %d: cancelled %t, killed %t", i, closed(c.cancelled), closed(c.killed))
		}
	}
}

func TestEnding(t *testing.T) {
	usage := unix.Rusage{Utime: unix.Timeval{Sec: 1}, Stime: unix.Timeval{Usec: 2}, Maxrss: 3}
	for name, tt := range map[string]struct {
		e    ending
		want wire.Exit
	}{
		"exit":       {ending{reaped: true, exit: reap.Exit{Status: 3 << 8, Usage: usage}}, wire.Exit{Code: 3, CPU: time.Second + 2*time.Microsecond, PeakMemory: 3 << 10}},
		"signal":     {ending{reaped: true, cancelled: true, exit: reap.Exit{Status: 15}}, wire.Exit{Code: -1, Signal: 15, Cancelled: true}},
		"not reaped": {ending{timedOut: true}, wire.Exit{Code: -1, Signal: 9, TimedOut: true}},
	} {
		tt.want.Wall = time.Minute
		if diff := cmp.Diff(&tt.want, tt.e.toWire(time.Minute, "gid")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if forced := tt.e.cancelled || tt.e.timedOut; tt.e.isForced() != forced {
			t.Errorf("%s: forced %t", name, !forced)
		}
	}
}

func inputPipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// TestStdinOfACommand checks that input comes in order, up to its end, and that
// a closed pipe stops it.
func TestStdinOfACommand(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<14) // more than a pipe holds
	for name, read := range map[string]bool{"read": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			got, exit := make(chan string, 1), make(chan reap.Exit, 1)
			h := serveHost(t, func(o *Options) {
				o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
					in, out, err := inputPipe()
					if err != nil {
						return launch.Process{}, err
					}
					r.Stdin = false
					p, err := noProcess{}.Launch(r)
					p.Stdin, p.Exit = out, exit
					go func() {
						defer in.Close()
						var text []byte
						if read {
							text, _ = io.ReadAll(in)
						}
						got <- string(text)
					}()
					return p, err
				})
			})
			h.send(openFrame(1, `{"exec":{"argv":["eA=="],"env":[],"stdin":true,"live":1000000,"tail":1,"timeout":10000000000,"grace":1}}`))
			h.until(wire.TypeStarted, new(wire.Started))
			sent := make(chan error, 1)
			go func() {
				for i := 0; i < len(long); i += wire.MaxData {
					_ = h.writer.Send(on(1, wire.TypeData, 0, long[i:min(i+wire.MaxData, len(long))]))
				}
				sent <- h.writer.Send(on(1, wire.TypeEOF, 0, ""))
			}()
			stopped := false
			if !read {
				for f := h.next(); !stopped; f = h.next() {
					if stopped = f.Type == wire.TypeStop && f.Channel == wire.Stdin; stopped {
						break
					}
				}
				exit <- reap.Exit{}
			} else {
				go func() {
					text := <-got
					got <- text
					exit <- reap.Exit{}
				}()
			}
			h.until(wire.TypeEnd, new(wire.Exit))
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if text := <-got; read && text != long {
				t.Errorf("%d bytes come, want %d", len(text), len(long))
			}
		})
	}
}

// bareCommand returns a command of a session without a host.
func bareCommand(t *testing.T, r wire.Exec, l launcher) *command {
	t.Helper()
	r.Argv = [][]byte{{'x'}}
	c, err := newCommand(&Session{
		o: Options{
			Writer: wire.NewWriter(io.Discard), Launcher: l, Reaper: reaper(),
			Killer: kill.NewAt(t.TempDir(), kill.MethodGroup, reaper(), nil),
		},
		slots: output.NewSlots(movingStreams), gids: newGIDs(fuzzGroups, 10),
	}, 1, r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLaunchedAsRequested checks that a command is launched as the host asks.
func TestLaunchedAsRequested(t *testing.T) {
	for _, stdin := range []bool{false, true} {
		var got spawn.Request
		c := bareCommand(t, wire.Exec{
			Env: [][]byte{[]byte("A=b")}, Dir: []byte("d"), NoLinks: true, Stdin: stdin, Timeout: time.Hour,
		}, func(r spawn.Request) (launch.Process, error) {
			got = r
			return launch.Process{}, errBroken
		})
		if _, refused := c.runToEnd(); refused == nil || refused.Code != wire.RefusedInternal {
			t.Errorf("refused: %+v", refused)
		}
		want := spawn.Request{Argv: []string{"x"}, Env: []string{"A=b"}, Dir: "d", NoLinks: true, Stdin: stdin, Group: fuzzGroups}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
}

// TestTimeToSettle checks that the consumer of an ended command has the rest of
// the command's time, and two seconds. The end of a stream ends no other.
func TestTimeToSettle(t *testing.T) {
	reaper() // outside the bubble
	synctest.Test(t, func(t *testing.T) {
		const runs = 10 * time.Second
		exit := make(chan reap.Exit, 1)
		c := bareCommand(t, wire.Exec{Live: 1 << 20, Tail: 1 << 20, Timeout: time.Minute}, func(r spawn.Request) (launch.Process, error) {
			p, err := noProcess{}.Launch(r)
			p.Exit = exit
			_ = p.Stderr.Close()
			return p, err
		})
		c.credits[0].Take(wire.Window, nil)
		began := time.Now()
		time.AfterFunc(runs, func() { exit <- reap.Exit{} })
		x, refused := c.runToEnd()
		if refused != nil {
			t.Fatal(refused.Text)
		}
		if took := time.Since(began); took != time.Minute+liveWait || x.Wall != runs {
			t.Errorf("it took %v, and the command %v", took, x.Wall)
		}
		if x.Stdout.Total != 14000 || x.Stdout.Live != 0 || x.Stderr.Total != 0 {
			t.Errorf("output is %+v and %+v", x.Stdout, x.Stderr)
		}
	})
}

// TestFullVolumes checks that a failed command's exit names the full volumes.
func TestFullVolumes(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: a mount")
	}
	dir := t.TempDir()
	done := make(chan struct{})
	identity.Dedicate(func() { // its mounts end with the thread
		defer close(done)
		if err := errors.Join(
			unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"),
		); err != nil {
			t.Error(err)
			return
		}
		for code, want := range map[int][]string{0: nil, 1: {dir}, 2: {dir}} {
			c := bareCommand(t, wire.Exec{Timeout: time.Hour}, func(r spawn.Request) (launch.Process, error) {
				p, err := noProcess{}.Launch(r)
				exit := make(chan reap.Exit, 1)
				exit <- reap.Exit{Status: unix.WaitStatus(code << 8)}
				p.Exit = exit
				return p, err
			})
			c.s.o.Volumes = observe.Volumes{dir}
			x, _ := c.runToEnd()
			if diff := cmp.Diff(want, x.Full); diff != "" {
				t.Errorf("exit status %d, full volumes (-want +got):\n%s", code, diff)
			}
		}
	})
	<-done
}

// TestDaemonsOfACommand checks that the usage of a command's daemons, which the
// guest reaps, counts as the command's.
func TestDaemonsOfACommand(t *testing.T) {
	c := bareCommand(t, wire.Exec{Timeout: time.Hour}, func(r spawn.Request) (launch.Process, error) {
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit"}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
		if err != nil {
			return launch.Process{}, err
		}
		for began := time.Now(); unix.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
			if time.Since(began) > 10*time.Second {
				return launch.Process{}, errors.New("the daemon is not reaped")
			}
		}
		return noProcess{}.Launch(r)
	})
	x, refused := c.runToEnd()
	if refused != nil {
		t.Fatal(refused.Text)
	}
	if x.PeakMemory == 0 {
		t.Errorf("it used %v and %d bytes", x.CPU, x.PeakMemory)
	}
}

// TestCommandIsForgotten checks that nothing keeps an ended command until its
// timeout.
func TestCommandIsForgotten(t *testing.T) {
	c := bareCommand(t, wire.Exec{Timeout: time.Hour}, noProcess{}.Launch)
	left := weak.Make(c)
	if _, refused := c.runToEnd(); refused != nil {
		t.Fatal(refused.Text)
	}
	for range 100 {
		runtime.GC()
		if left.Value() == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the command is kept")
}

// TestOutputToBrokenConnection checks that output that can't be sent is kept.
func TestOutputToBrokenConnection(t *testing.T) {
	c := bareCommand(t, wire.Exec{Live: 100, Tail: 100, Timeout: time.Hour}, nil)
	c.s.o.Writer = wire.NewWriter(brokenWriter{})
	p := c.startPump(nil, wire.Stdout)
	p.Add("text")
	if out := p.Result(); out.Live != 0 || string(out.Tail) != "text" {
		t.Errorf("output is %+v", out)
	}
}

// TestFeed checks that a single byte reaches the command, and that unread input
// is thrown away.
func TestFeed(t *testing.T) {
	for name, read := range map[string]bool{"read": true, "closed": false} {
		c := bareCommand(t, wire.Exec{Stdin: true, Timeout: time.Hour}, nil)
		r, w, err := inputPipe()
		if err != nil {
			t.Fatal(err)
		}
		if !read {
			_ = r.Close()
		}
		if err := c.takeData(wire.Stdin, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if read {
			_ = c.takeEOF(wire.Stdin)
		}
		c.copyInput(w)
		if read {
			if got, err := io.ReadAll(r); err != nil || string(got) != "x" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
			_ = r.Close()
			continue
		}
		if err := c.takeData(wire.Stdin, []byte("more")); err != nil {
			t.Error(err)
		}
		if got := c.stdin.Next(); got != nil {
			t.Errorf("%s: %q is kept", name, got)
		}
		if c.writeAll(nil, []byte("x")) == nil {
			t.Error("no file can be written")
		}
	}
}

// TestCreditOfInput checks that a host can send more than a window as the guest
// grants credit.
func TestCreditOfInput(t *testing.T) {
	const operation = `{"kind":"mkdir","path":"d"}`
	text := strings.Repeat(" ", wire.Window+wire.Window/2-len(operation)) + operation
	for name, open := range map[string]string{
		"change":  `{"apply":{"size":` + itoa(len(text)) + `}}`,
		"command": `{"exec":{"argv":["eA=="],"env":[],"stdin":true,"live":1000000,"tail":1,"timeout":60000000000,"grace":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			h := serveHost(t, func(o *Options) {
				o.Launcher = launcher(func(r spawn.Request) (launch.Process, error) {
					in, out, err := inputPipe()
					if err != nil {
						return launch.Process{}, err
					}
					r.Stdin = false
					p, err := noProcess{}.Launch(r)
					exit := make(chan reap.Exit, 1)
					p.Stdin, p.Exit = out, exit
					go func() {
						defer in.Close()
						all, _ := io.ReadAll(in)
						got <- string(all)
						exit <- reap.Exit{}
					}()
					return p, err
				})
			})
			h.send(openFrame(1, open))
			grants := make(chan int, len(text))
			go func() {
				defer close(grants)
				for {
					f, err := h.frames.Next()
					if err != nil || f.Type == wire.TypeEnd {
						return
					}
					if f.Type == wire.TypeCredit {
						grants <- int(wire.CreditOf(f))
					}
				}
			}()
			credit := wire.Window
			for rest := text; rest != ""; {
				n := min(len(rest), wire.MaxData, credit)
				h.send(on(1, wire.TypeData, wire.Stdin, rest[:n]))
				rest = rest[n:]
				if credit -= n; credit == 0 {
					select {
					case credit = <-grants:
					case <-time.After(4 * time.Second):
					}
					if credit == 0 {
						t.Fatal("no credit comes")
					}
				}
			}
			h.send(on(1, wire.TypeEOF, wire.Stdin, ""))
			for grant := range grants {
				if grant == 0 {
					t.Error("a credit of nothing comes")
				}
			}
			if name == "command" {
				if all := <-got; all != text {
					t.Errorf("%d bytes come, want %d", len(all), len(text))
				}
			}
		})
	}
}
