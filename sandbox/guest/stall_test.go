package guest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/tools/workspace"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestStalledConsumer: one command's consumer takes nothing. Everything else
// continues, and the command can be cancelled.
func TestStalledConsumer(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	stalled := blocked{make(chan struct{})}
	out, errs := signalled{make(chan struct{})}, signalled{make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := c.Start(ctx, sandbox.Command{
		Argv: []string{"sh", "-c", "yes & yes >&2 & wait"}, Stdout: writers{stalled, out}, Stderr: writers{stalled, errs},
		Output: sandbox.OutputLimits{Live: 1 << 40}, Grace: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-out.ch
	<-errs.ch
	for i := range 20 {
		if r := sh(t, c, "echo "+itoa(i)); r.stdout != itoa(i)+"\n" {
			t.Fatalf("beside a stalled command: %+v", r)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: []byte{1}}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	exit, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if !exit.Status.Cancelled || exit.Kill.Left != 0 || exit.Kill.Terminated < 3 {
		t.Errorf("stalled command ended with %+v", exit)
	}
	if exit.Stdout.Total == 0 || exit.Stdout.Live != 0 {
		t.Errorf("stdout's account is %+v", exit.Stdout)
	}
	close(stalled.open)
}

// TestFlood checks that a gigabyte on stdout costs neither end memory.
func TestFlood(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	sh(t, c, "true")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const size = 1 << 30
	r := start(t.Context(), t, c, sandbox.Command{
		Argv: []string{"sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none"}, Stdout: io.Discard,
		Output: sandbox.OutputLimits{Live: 64 << 20},
	})()
	runtime.ReadMemStats(&after)
	if r.Stdout.Total != size || r.Stdout.Live != 64<<20 {
		t.Errorf("account is %+v", r.Stdout)
	}
	if grown := int64(after.Sys) - int64(before.Sys); grown > 32<<20 {
		t.Errorf("the host process grew by %d bytes", grown)
	}
	if peak := statusField(t, g.PID, "VmHWM") << 10; peak > 24<<20 && !guesttest.Race() {
		t.Errorf("the guest's peak is %d bytes", peak)
	}
}

func statusField(t testing.TB, pid int, name string) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s of process %d", name, pid)
	return 0
}

// threadsAhead is how many threads a guest may have without one for a command:
// those that it makes ahead (its package warm) and the runtime's own, some of
// which may have come after the count.
const threadsAhead = 22

// TestManyAtOnce runs commands, changes and pings concurrently; the guest makes
// no thread for them.
func TestManyAtOnce(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	before := statusField(t, g.PID, "Threads")
	done := make(chan error)
	const workers = 12
	for w := range workers {
		go func() {
			done <- func() error {
				for i := range 25 {
					want := fmt.Sprintf("%d %d", w, i)
					var out strings.Builder
					p, err := c.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "echo -n " + want + "; head -c 200000 /dev/zero"}, Stdout: &out})
					if err != nil {
						return err
					}
					exit, err := p.Wait()
					if err != nil || !exit.Status.Success() || !strings.HasPrefix(out.String(), want) || exit.Stdout.Total != int64(200000+len(want)) {
						return fmt.Errorf("%s: %+v, %w", want, exit, err)
					}
					if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "f" + itoa(w), Content: []byte(want)}); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if after := statusField(t, g.PID, "Threads"); after > max(before, threadsAhead) {
		t.Errorf("the guest had %d threads and has %d", before, after)
	}
}
