package serve

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// noProcess launches nothing: its "process" writes a little and has ended.
type noProcess struct{}

func (noProcess) Launch(r spawn.Request) (launch.Process, error) {
	if r.Dir == "gone" {
		return launch.Process{}, spawn.ErrDir
	}
	if r.Argv[0] == "missing" {
		return launch.Process{}, &spawn.Failure{Code: 127, Text: "not found"}
	}
	p := launch.Process{Release: func() {}, Mark: kill.Mark{Group: r.Group}}
	p.PID = 2
	for _, f := range []**os.File{&p.Stdout, &p.Stderr} {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return p, err
		}
		_, _ = unix.Write(fds[1], bytes.Repeat([]byte("output "), 2000)) // more than one small read
		_ = unix.Close(fds[1])
		*f = os.NewFile(uintptr(fds[0]), "pipe")
	}
	if r.Stdin {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return p, err
		}
		_ = unix.Close(fds[0])
		p.Stdin = os.NewFile(uintptr(fds[1]), "pipe")
	}
	exit := make(chan reap.Exit, 1)
	exit <- reap.Exit{}
	p.Exit = exit
	return p, nil
}

type noChange struct{}

func (noChange) Apply(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	if op.Path == "" {
		return workspace.Change{}, errors.New("no path")
	}
	return workspace.Change{Path: op.Path}, ctx.Err()
}

// fuzzGroups begins a range of groups that no process has.
const fuzzGroups = 2_000_000_000

// frames encodes a host's side of a conversation.
func frames(list ...wire.Frame) []byte {
	var b bytes.Buffer
	if err := wire.NewWriter(&b).Send(list...); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// FuzzSession feeds the guest arbitrary bytes as the host's frames. It must not
// panic, must end when they do, and must leave no stream behind. The credit of
// the opened streams bounds its memory.
func FuzzSession(f *testing.F) {
	const exec = `{"exec":{"argv":["c2g="],"env":[],"stdin":true,"live":1000000,"tail":100,"timeout":1000000000,"grace":1000000}}`
	open := func(id uint32, text string) wire.Frame {
		return wire.Frame{Stream: id, Type: wire.TypeOpen, Payload: []byte(text)}
	}
	seeds := [][]byte{
		{},
		binary.BigEndian.AppendUint32(nil, 1<<31),
		frames(wire.Frame{Type: wire.TypePing, Payload: []byte("12345678")}),
		frames(open(1, exec),
			wire.Frame{Stream: 1, Type: wire.TypeData, Channel: wire.Stdin, Payload: []byte("in")},
			wire.Frame{Stream: 1, Type: wire.TypeCredit, Channel: wire.Stdout, Payload: []byte{0, 0, 0, 1}},
			wire.Frame{Stream: 1, Type: wire.TypeStop, Channel: wire.Stderr},
			wire.Frame{Stream: 1, Type: wire.TypeEOF, Channel: wire.Stdin},
			wire.Frame{Stream: 1, Type: wire.TypeCancel, Payload: []byte(`{"kill":true}`)}),
		frames(open(1, `{"exec":{"argv":["bWlzc2luZw=="],"env":[],"live":0,"tail":0,"timeout":1,"grace":0}}`)),
		frames(open(1, `{"exec":{"argv":["eA=="],"dir":"Z29uZQ==","env":[],"live":1,"tail":1,"timeout":1,"grace":0}}`)),
		frames(open(3, `{"apply":{"size":28}}`),
			wire.Frame{Stream: 3, Type: wire.TypeData, Channel: wire.Stdin, Payload: []byte(`{"kind":"mkdir","path":"d"}`)},
			wire.Frame{Stream: 3, Type: wire.TypeEOF, Channel: wire.Stdin}),
		frames(open(5, `{"apply":{"size":50331648}}`), wire.Frame{Stream: 5, Type: wire.TypeCancel, Payload: []byte("{}")}),
		frames(open(2, `{"accept":{"local":"127.0.0.1:80"}}`)),
		frames(open(1, `{}`)),
	}
	if len(seeds) < 8 {
		f.Fatal("the seed corpus is gone")
	}
	for _, s := range seeds {
		f.Add(s)
	}
	loop := reap.New()  // no child is ever its own
	none := f.TempDir() // in place of /proc: nothing is ever left
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var out bytes.Buffer
		s := New(Options{
			Frames: wire.NewReader(bytes.NewReader(data)), Writer: wire.NewWriter(&out),
			Config:   wire.Config{GIDBase: fuzzGroups, GIDCount: 1000},
			Launcher: noProcess{}, Appliers: noChange{}, Reaper: loop,
			Killer: kill.NewAt(none, kill.MethodGroup, loop, nil),
		})
		err := s.Run()
		if err != nil && !errors.Is(err, wire.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("ended with %v", err)
		}
		// As after a host's death; here the process lives on.
		s.mu.Lock()
		open := make([]stream, 0, len(s.streams))
		for _, st := range s.streams {
			open = append(open, st)
		}
		s.mu.Unlock()
		for _, st := range open {
			st.cancel(wire.Cancel{})
			for channel := range uint8(3) {
				st.stopReading(channel)
			}
			_ = st.takeEOF(wire.Stdin)
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
			s.mu.Lock()
			left := len(s.streams)
			s.mu.Unlock()
			if left == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d streams do not end", left)
			}
		}
		s.idle.Stop()
		runtime.ReadMemStats(&after)
		// Each frame may open a stream.
		if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > 64<<20+int64(len(data))*4096 {
			t.Errorf("%d bytes of input made it allocate %d", len(data), grown)
		}
	})
}
