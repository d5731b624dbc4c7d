package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/kill"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/output"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/spawn"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// reaper makes the test's process the parent of orphans, and reaps them.
var reaper = sync.OnceValue(func() *reap.Loop {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	loop := reap.New()
	go loop.Run()
	return loop
})

// shell starts a script with a group, and waits until it says "up".
func shell(t *testing.T, group uint32, script string) launch.Process {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := launch.Process{Mark: kill.Mark{Group: group}, Child: spawn.Child{Stdout: r}}
	p.Exit, err = reaper().Start(func() (pid int, err error) {
		p.PID, err = syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
			Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{null.Fd(), w.Fd(), null.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Groups: []uint32{group}}},
		})
		return p.PID, err
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGrace checks that an orphan gets SIGTERM in the grace period: at once
// when the command itself has ended, otherwise after some milliseconds.
func TestGrace(t *testing.T) {
	loop := reaper()
	for name, tt := range map[string]struct {
		exits      bool
		gone       bool
		grace      time.Duration
		terminated int
	}{
		"it ends":       {exits: true, grace: 500 * time.Microsecond, terminated: 1},
		"it runs":       {grace: 3500 * time.Microsecond},
		"it runs on":    {grace: 100 * time.Millisecond, terminated: 1},
		"it ends later": {exits: true, grace: 100 * time.Millisecond, terminated: 1},
		"all is gone":   {gone: true, grace: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				proc := t.TempDir()
				dir := filepath.Join(proc, strconv.Itoa(1<<23)) // more than any pid: signals hit nothing
				status := fmt.Sprintf("State:\tS\nPPid:\t%d\nGroups:\t5\n", os.Getpid())
				if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o600)); err != nil {
					t.Fatal(err)
				}
				exit := make(chan reap.Exit, 1)
				if tt.exits {
					exit <- reap.Exit{Status: 15}
				}
				c, err := newCommand(&Session{o: Options{Killer: kill.NewAt(proc, kill.MethodGroup, loop, nil)}}, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1, Grace: tt.grace})
				if err != nil {
					t.Fatal(err)
				}
				var e ending
				began, want := time.Now(), tt.grace
				if tt.gone {
					want = 0
					if err := os.RemoveAll(dir); err != nil {
						t.Fatal(err)
					}
				}
				if c.waitGrace(&e, launch.Process{Mark: kill.Mark{Group: 5}, Exit: exit}) != tt.gone || e.reaped != tt.exits {
					t.Errorf("it ends with %+v", e)
				}
				if took, k := time.Since(began), e.report.Wire("gid"); took != want || k.Terminated != tt.terminated {
					t.Errorf("after %v the report is %+v, want %d terminated", took, k, tt.terminated)
				}
			})
		})
	}
}

// TestSettle checks that a consumer that takes nothing has the rest of the
// command's time, at least two seconds, until it is cancelled, and then two
// seconds. After an end by force it has only these.
func TestSettle(t *testing.T) {
	for name, tt := range map[string]struct {
		forced    bool
		left      time.Duration
		cancelled time.Duration // when
		want      time.Duration
	}{
		"forced":           {forced: true, left: time.Hour, want: liveWait},
		"time is left":     {left: time.Minute, want: time.Minute + liveWait},
		"no time is left":  {left: -time.Minute, want: 2 * liveWait},
		"cancelled":        {left: time.Minute, cancelled: time.Second, want: time.Second + liveWait},
		"takes everything": {left: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, err := newCommand(&Session{}, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1, Stdin: true, Live: 100})
				if err != nil {
					t.Fatal(err)
				}
				c.out = [2]*output.Pump{c.startPump(nil, wire.Stdout), c.startPump(nil, wire.Stderr)}
				const closing = time.Second // what the streams take to end
				ended := make(chan struct{})
				if tt.want == 0 {
					close(ended)
				} else {
					c.credits[0].Take(wire.Window, nil)
					go func() {
						c.out[0].Add("text") // waits for credit, or until it is abandoned
						time.Sleep(closing)
						close(ended)
					}()
					tt.want += closing
				}
				if tt.cancelled != 0 {
					time.AfterFunc(tt.cancelled, func() { c.cancel(wire.Cancel{}) })
				}
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				began := time.Now()
				c.waitStreams(ended, w, tt.forced, tt.left)
				if took := time.Since(began); took != tt.want {
					t.Errorf("it took %v, want %v", took, tt.want)
				}
				if w.Close() == nil || c.stdin.Next() != nil {
					t.Error("the input is open")
				}
			})
		})
	}
}

// TestSettlePipe checks that a pipe that another process holds open is not
// waited for.
func TestSettlePipe(t *testing.T) {
	c, err := newCommand(&Session{slots: output.NewSlots(1)}, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1})
	if err != nil {
		t.Fatal(err)
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	src := os.NewFile(uintptr(fds[0]), "pipe")
	c.out = [2]*output.Pump{c.startPump(src, wire.Stdout), c.startPump(src, wire.Stderr)}
	ended := make(chan struct{})
	go func() {
		c.out[0].Run()
		close(ended)
	}()
	began := time.Now()
	c.waitStreams(ended, nil, false, time.Minute)
	if took := time.Since(began); took < pipeWait || took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// TestAwait checks that a command ends by itself, by SIGTERM in its grace
// period, or by SIGKILL after it, and leaves nothing.
func TestAwait(t *testing.T) {
	const deaf = "trap '' TERM; echo up; while :; do sleep .01; done"
	const never, soon = 5 * time.Second, 100 * time.Millisecond
	cancel := func(c *command, _ chan struct{}) { c.cancel(wire.Cancel{}) }
	for name, tt := range map[string]struct {
		script string
		grace  time.Duration
		end    func(c *command, timeout chan struct{})
		want   ending // but its report and its usage
		out    string
		report func(k wire.Kill) bool
	}{
		"by itself": {
			script: "echo up; exit 3", want: ending{exit: reap.Exit{Status: 3 << 8}},
			report: func(k wire.Kill) bool { return k == wire.Kill{} },
		},
		"and leaves others": {
			script: "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & echo up", want: ending{},
			report: func(k wire.Kill) bool { return k.AfterExit && k.Killed == 2 && k.Terminated == 0 },
		},
		"cancelled": {
			script: "echo up; exec sleep 1000", grace: never, end: cancel,
			want:   ending{cancelled: true, exit: reap.Exit{Status: 15}},
			report: func(k wire.Kill) bool { return k.Terminated == 1 && k.Killed == 0 && !k.AfterExit },
		},
		"timed out": {
			script: "echo up; exec sleep 1000", grace: never, end: func(_ *command, timeout chan struct{}) { close(timeout) },
			want:   ending{timedOut: true, exit: reap.Exit{Status: 15}},
			report: func(k wire.Kill) bool { return k.Terminated == 1 && k.Killed == 0 },
		},
		"cleans up": {
			// It counts first, so that no pass of Terminate meets the sleep.
			script: "trap 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep .2 && echo bye; exit 3' TERM; echo up; while :; do sleep .01; done", grace: never, end: cancel,
			want: ending{cancelled: true, exit: reap.Exit{Status: 3 << 8}}, out: "bye\n",
			report: func(k wire.Kill) bool { return k.Terminated >= 1 && k.Killed == 0 },
		},
		"starts another and leaves it": {
			script: "trap 'sleep 1000 & exit 3' TERM; echo up; while :; do sleep .01; done", grace: never, end: cancel,
			want:   ending{cancelled: true, exit: reap.Exit{Status: 3 << 8}},
			report: func(k wire.Kill) bool { return k.Terminated >= 2 && k.Killed == 0 },
		},
		"is deaf": {
			script: deaf, grace: soon, end: cancel,
			want:   ending{cancelled: true, exit: reap.Exit{Status: 9}},
			report: func(k wire.Kill) bool { return k.Terminated >= 1 && k.Killed >= 1 },
		},
		"has no grace": {
			script: "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep .01; done", grace: never,
			end:    func(c *command, _ chan struct{}) { c.cancel(wire.Cancel{Kill: true}) },
			want:   ending{cancelled: true, exit: reap.Exit{Status: 9}},
			report: func(k wire.Kill) bool { return k.Terminated == 0 && k.Killed >= 1 },
		},
		"loses its grace": {
			script: deaf, grace: never,
			end: func(c *command, _ chan struct{}) {
				c.cancel(wire.Cancel{})
				time.AfterFunc(soon, func() { c.cancel(wire.Cancel{Kill: true}) })
			},
			want:   ending{cancelled: true, exit: reap.Exit{Status: 9}},
			report: func(k wire.Kill) bool { return k.Terminated >= 1 && k.Killed >= 1 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			group := uint32(fuzzGroups + 1000 + 2*os.Getpid()) // of this run alone
			p := shell(t, group, tt.script)
			beside := shell(t, group+1, "echo up; exec sleep 1000")
			killer := kill.New(kill.MethodGroup, reaper(), nil)
			c, err := newCommand(&Session{o: Options{Killer: killer}}, 1, wire.Exec{Argv: [][]byte{{'x'}}, Timeout: 1, Grace: tt.grace})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // where the test fails
				for _, m := range []kill.Mark{p.Mark, beside.Mark} {
					killer.Kill(m, new(kill.Report))
				}
			})
			timeout := make(chan struct{})
			if tt.end != nil {
				tt.end(c, timeout)
			}
			got := c.awaitEnd(p, timeout, nil)
			if got.exit.Status != tt.want.exit.Status || got.cancelled != tt.want.cancelled || got.timedOut != tt.want.timedOut || !got.reaped {
				t.Errorf("it ends with %+v, want %+v", got, tt.want)
			}
			if k := got.report.Wire("gid"); !tt.report(k) || k.Left != 0 {
				t.Errorf("the report is %+v", k)
			}
			if !killer.Gone(p.Mark) {
				t.Error("something is left")
			}
			_ = p.Stdout.SetDeadline(time.Now().Add(never))
			if out, err := io.ReadAll(p.Stdout); err != nil || !strings.HasSuffix(string(out), tt.out) || len(out) != len(tt.out) {
				t.Errorf("then it says %q, %v, want %q", out, err, tt.out)
			}
			if killer.Gone(beside.Mark) {
				t.Error("the command beside it is gone")
			}
			killer.Kill(beside.Mark, new(kill.Report))
			<-beside.Exit
		})
	}
}
