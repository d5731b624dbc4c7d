package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// silentModel is a provider that takes requests and never answers.
func silentModel(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return "http://" + l.Addr().String() + "/v1"
}

// TestShutdownIdle ends sessions that wait for their model: in order, in
// bounded time, and nothing is left.
func TestShutdownIdle(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": syscall.SIGINT} {
			t.Run(name, func(t *testing.T) {
				m := newMachine(t)
				m.env = append(m.env, "OPENAI_API_KEY=test", "OPENAI_BASE_URL="+silentModel(t))
				run := m.start(t, taskArgs(m, "--backend", backend, "--model", "openai/silent", "wait")...)
				run.await(t, `"sandbox.started"`)
				run.signal(t, signal)
				out := run.wait(t, time.Minute)
				out.want(t, 128+int(signal))
				records := readRecords(t, out.stdout)
				if end := records.end(t); end.Reason != "cancelled" || len(end.Left) > 0 {
					t.Errorf("session.ended: %+v", end)
				}
				m.wantNothingLeft(t, records[0].Session)
			})
		}
	})
}

// TestShutdownTwice asks a session twice while its command ignores the first:
// it does not wait for the grace period any more, and nothing is left.
func TestShutdownTwice(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		args := append([]string{"--backend", backend, "--grace", "10m"}, m.playing(t, []scriptCall{shell("trap '' TERM; touch started; while :; do sleep 1; done")})...)
		run := m.start(t, taskArgs(m, args...)...)
		m.awaitFile(t, run, "started")
		for range 2 {
			run.signal(t, syscall.SIGTERM)
			time.Sleep(300 * time.Millisecond) // two signals at once may be one
		}
		out := run.wait(t, time.Minute)
		out.want(t, 143)
		records := readRecords(t, out.stdout)
		if end := records.end(t); len(end.Left) > 0 {
			t.Errorf("left: %v", end.Left)
		}
		m.wantNothingLeft(t, records[0].Session)
	})
}

// TestShutdownHungEngine ends sessions while their engine hangs: they end in
// bounded time, say what they could not remove, and it is removed when the
// engine goes on.
func TestShutdownHungEngine(t *testing.T) {
	needBackend(t, "docker")
	t.Parallel() // with the tests that wait too
	for name, signals := range map[string]int{"once": 1, "twice": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for deadlines
			e := privateengine.New(t)
			m := newMachine(t)
			m.env = append(m.env, "DOCKER_HOST="+e.Host())
			args := append([]string{"--backend", "docker", "--grace", "100ms"}, m.playing(t, []scriptCall{shell("touch started; while :; do sleep 1; done")})...)
			run := m.start(t, taskArgs(m, args...)...)
			m.awaitFile(t, run, "started")
			e.Freeze(t)
			defer e.Thaw(t)
			hanging := m.start(t, "sandbox", "gc") // it waits meanwhile
			for range signals {
				run.signal(t, syscall.SIGTERM)
				time.Sleep(300 * time.Millisecond) // two signals at once may be one
			}
			// 30 s for a guest that does not answer, as much for its removal.
			begun := time.Now()
			out := run.wait(t, 100*time.Second)
			t.Logf("it ended %s after the signal", time.Since(begun).Round(time.Second))
			if out.status == 0 {
				t.Errorf("it ended with 0 although its container is there\n%s", out.stderr)
			}
			records := readRecords(t, out.stdout)
			if end := records.end(t); len(end.Left) == 0 || !strings.Contains(strings.Join(end.Left, " "), "hang") {
				t.Errorf("session.ended does not say what is left: %+v", end)
			}
			if gc := hanging.wait(t, time.Minute); gc.status != 1 || !strings.Contains(gc.stderr, "no answer in time") {
				t.Errorf("gc while the engine hangs: %d %s", gc.status, gc.stderr)
			}
			e.Thaw(t)
			m.run(t, "sandbox", "gc").want(t, 0)
			m.wantNothingLeft(t, records[0].Session)
		})
	}
}
