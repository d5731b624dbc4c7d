package guest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

const mostProcesses = 1 << 22

// TestExits checks that every possible exit of a command is accepted, up to its
// bounds.
func TestExits(t *testing.T) {
	for name, tt := range map[string]struct {
		cancelled bool // the host asked for it
		tell      func(*wire.Exit)
		want      func(*sandbox.Exit)
	}{
		"plain":         {tell: func(*wire.Exit) {}, want: func(*sandbox.Exit) {}},
		"highest code":  {tell: func(x *wire.Exit) { x.Code = 255 }, want: func(x *sandbox.Exit) { x.Status.Code = 255 }},
		"first signal":  {tell: func(x *wire.Exit) { x.Code, x.Signal = -1, 1 }, want: func(x *sandbox.Exit) { x.Status.Code, x.Status.Signal = -1, 1 }},
		"last signal":   {tell: func(x *wire.Exit) { x.Code, x.Signal = -1, 64 }, want: func(x *sandbox.Exit) { x.Status.Code, x.Status.Signal = -1, 64 }},
		"timed out":     {tell: func(x *wire.Exit) { x.TimedOut = true }, want: func(x *sandbox.Exit) { x.Status.TimedOut = true }},
		"cancelled":     {cancelled: true, tell: func(x *wire.Exit) { x.Cancelled = true }, want: func(x *sandbox.Exit) { x.Status.Cancelled = true }},
		"not cancelled": {cancelled: true, tell: func(*wire.Exit) {}, want: func(*sandbox.Exit) {}},
		"usage": {
			tell: func(x *wire.Exit) { x.Wall, x.CPU, x.PeakMemory, x.PIDsLimitHit, x.OOMKilled = 1, 2, 3, true, true },
			want: func(x *sandbox.Exit) {
				x.Wall, x.CPU, x.PeakMemory, x.PIDsLimitHit, x.Status.OOMKilled = 1, 2, 3, true, true
			},
		},
		"full": {tell: func(x *wire.Exit) { x.Full = []string{"/run", "/tmp"} }, want: func(x *sandbox.Exit) { x.Full = []string{"/run", "/tmp"} }},
		"killed": {
			tell: func(x *wire.Exit) {
				x.Kill = wire.Kill{Method: "gid", Terminated: mostProcesses, Killed: mostProcesses, AfterExit: true, Left: mostProcesses, KillTime: 5}
			},
			want: func(x *sandbox.Exit) {
				x.Kill = sandbox.KillReport{Method: "gid", Terminated: mostProcesses, Killed: mostProcesses, AfterExit: true, Left: mostProcesses, KillTime: 5}
			},
		},
		"killed by shim": {tell: func(x *wire.Exit) { x.Kill.Method = "subreaper" }, want: func(x *sandbox.Exit) { x.Kill.Method = "subreaper" }},
		"longest tail": {
			tell: func(x *wire.Exit) { x.Stderr.Tail, x.Stderr.Total = make([]byte, 100), 100 },
			want: func(x *sandbox.Exit) { x.Stderr.Tail, x.Stderr.Total = make([]byte, 100), 100 },
		},
		"more than was sent": {
			tell: func(x *wire.Exit) { x.Stdout.Tail, x.Stdout.Total = []byte("end"), 1<<40 },
			want: func(x *sandbox.Exit) { x.Stdout.Tail, x.Stdout.Total = []byte("end"), 1<<40 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := sandbox.Exit{
				Stdout: sandbox.Stream{Total: 3, Live: 3, SHA256: emptySum}, Stderr: sandbox.Stream{SHA256: emptySum},
			}
			tt.want(&want)
			got, err := tellExit(t, tt.cancelled, tt.tell)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v, exit (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestExitLies checks that an impossible exit ends the connection.
func TestExitLies(t *testing.T) {
	for name, tell := range map[string]func(*wire.Exit){
		"exit code":         func(x *wire.Exit) { x.Code = 256 },
		"negative code":     func(x *wire.Exit) { x.Code = -1 },
		"code and signal":   func(x *wire.Exit) { x.Code, x.Signal = 1, 9 },
		"signal":            func(x *wire.Exit) { x.Code, x.Signal = -1, 65 },
		"negative signal":   func(x *wire.Exit) { x.Code, x.Signal = -1, -1 },
		"both ends":         func(x *wire.Exit) { x.Cancelled, x.TimedOut = true, true },
		"negative time":     func(x *wire.Exit) { x.Wall = -1 },
		"negative CPU time": func(x *wire.Exit) { x.CPU = -1 },
		"negative memory":   func(x *wire.Exit) { x.PeakMemory = -1 },
		"terminated":        func(x *wire.Exit) { x.Kill.Terminated = -1 },
		"killed":            func(x *wire.Exit) { x.Kill.Killed = -1 },
		"left":              func(x *wire.Exit) { x.Kill.Left = -1 },
		"many terminated":   func(x *wire.Exit) { x.Kill.Terminated = mostProcesses + 1 },
		"many killed":       func(x *wire.Exit) { x.Kill.Killed = mostProcesses + 1 },
		"many left":         func(x *wire.Exit) { x.Kill.Left = mostProcesses + 1 },
		"kill time":         func(x *wire.Exit) { x.Kill.KillTime = -1 },
		"kill method":       func(x *wire.Exit) { x.Kill.Method = "hope" },
		"full":              func(x *wire.Exit) { x.Full = []string{"/tmp", "/etc"} },
		"full twice":        func(x *wire.Exit) { x.Full = []string{"/tmp", "/tmp"} },
		"total under live":  func(x *wire.Exit) { x.Stdout.Total = 2 },
		"more live":         func(x *wire.Exit) { x.Stdout.Live, x.Stdout.Total = 4, 4 },
		"less live":         func(x *wire.Exit) { x.Stdout.Live = 2 },
		"total under tail":  func(x *wire.Exit) { x.Stdout.Tail, x.Stdout.Total = []byte("tail"), 6 },
		"long tail":         func(x *wire.Exit) { x.Stderr.Tail, x.Stderr.Total = make([]byte, 101), 101 },
		"no hash":           func(x *wire.Exit) { x.Stderr.SHA256 = "" },
		"strange hash":      func(x *wire.Exit) { x.Stdout.SHA256 = strings.Repeat("z", 64) },
		"long hash":         func(x *wire.Exit) { x.Stdout.SHA256 += "00" },
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := tellExit(t, true, tell); !errors.Is(err, sandbox.ErrLost) || !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("exit %+v, error %v, want one of ErrLost", got, err)
			}
		})
	}
}

// tellExit plays the guest of a command that writes three bytes to stdout, and
// sends its exit as changed. With cancel the host cancels first.
func tellExit(t *testing.T, cancel bool, change func(*wire.Exit)) (sandbox.Exit, error) {
	t.Helper()
	c, l := play(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		l.next()
		l.json(1, wire.TypeStarted, wire.Started{PID: 7})
		if cancel && l.next().Type != wire.TypeCancel {
			t.Error("the host cancels nothing")
		}
		go l.drain()
		l.frame(1, wire.TypeData, wire.Stdout, "out")
		l.end(func(x *wire.Exit) {
			x.Stdout.Live, x.Stdout.Total = 3, 3
			change(x)
		})
	}()
	var out bytes.Buffer
	p, err := c.Start(ctx, sandbox.Command{
		Argv: []string{"x"}, Stdout: &out, Output: sandbox.OutputLimits{Live: 1000, Tail: 100},
	})
	if err != nil {
		t.Fatal(err)
	}
	if cancel {
		stop()
	}
	exit, err := p.Wait()
	if out.String() != "out" {
		t.Errorf("stdout is %q", out.String())
	}
	return exit, err
}
