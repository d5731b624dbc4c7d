package oci

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// Once the guest has opened the low ports, no thread of the guest or of a
// command has their capability in any set.
func TestLowPortsLeaveNothing(t *testing.T) {
	b := newBed(t, Runc, os.Geteuid())
	spec := b.spec(t, "low-ports")
	spec.Egress = &sandbox.EgressPlan{Names: true, Capture: []int{22, 443}}
	sb := b.start(t, spec)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := sb.Start(ctx, sandbox.Command{Argv: []string{"sleep", "60"}, Dir: sandbox.WorkspaceDir})
	must(t, err)
	pid := containerOf(sb).process.pid
	own, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	must(t, err)
	files, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/status")
	must(t, err)
	threads, processes := 0, map[string]bool{}
	for _, file := range files {
		process := strings.Split(file, "/")[2]
		if ns, err := os.Readlink("/proc/" + process + "/ns/pid"); err != nil || ns != own {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		threads++
		processes[process] = true
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if !strings.HasPrefix(name, "Cap") {
				continue
			}
			if set, err := strconv.ParseUint(value, 16, 64); err != nil || set&(1<<unix.CAP_NET_BIND_SERVICE) != 0 {
				t.Errorf("%s has %s %s", file, name, value)
			}
		}
	}
	if threads < 4 || len(processes) < 2 {
		t.Errorf("%d threads of %d processes were examined, want those of the guest and a command", threads, len(processes))
	}
	cancel()
	_, err = p.Wait()
	must(t, err)
}

// When the container is killed, every handler's context ends, also of
// connections that wait.
func TestEgressEndsWithSandbox(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		spec := b.spec(t, "ses_killed")
		spec.Egress = &sandbox.EgressPlan{}
		sb := b.start(t, spec)
		h := &heldHandler{full: make(chan struct{})}
		sb.(sandbox.EgressServer).Serve(h)
		p, err := sb.Start(t.Context(), sandbox.Command{
			Argv: []string{"bash", "-c", "for i in $(seq 100); do exec {fd}<>/dev/tcp/127.80.0.1/61080; done; sleep 60"}, Dir: sandbox.WorkspaceDir,
		})
		must(t, err)
		select {
		case <-h.full:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d connections are open", h.open.Load())
		}
		containerOf(sb).process.sendKill()
		if _, err := p.Wait(); !errors.Is(err, sandbox.ErrLost) {
			t.Errorf("error is %v, want ErrLost", err)
		}
		for end := time.Now().Add(10 * time.Second); h.open.Load() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d handlers don't end", h.open.Load())
			}
		}
	})
}

type heldHandler struct {
	open atomic.Int32
	full chan struct{} // closed at the most connections
}

func (h *heldHandler) ServeEgress(ctx context.Context, _ sandbox.EgressConn) {
	defer h.open.Add(-1)
	if h.open.Add(1) == sandbox.MaxCommandConns {
		close(h.full)
	}
	<-ctx.Done()
}

func (*heldHandler) LookupName(context.Context, string) (netip.Addr, bool) {
	return netip.Addr{}, false
}
