package guest_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest/plan"
	"github.com/caisson-run/caisson/tools/workspace"
)

// cgroup makes a cgroup of version 1 with one limit, or skips the test.
func cgroup(t *testing.T, controller, file, limit string) string {
	t.Helper()
	guesttest.Require(t)
	parent := filepath.Join("/sys/fs/cgroup", controller)
	if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); err != nil {
		t.Skipf("needs the %s controller of cgroup v1 at %s", controller, parent)
	}
	dir, err := os.MkdirTemp(parent, "caisson-guest-test-") //nolint:usetesting // a cgroup, no temporary directory
	if err != nil {
		t.Skipf("needs a writable cgroup: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("remove cgroup: %v", err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(limit), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// hoppers are chains of processes, each of which forks the next and ends, so
// that hardly any lives long enough to be looked at.
const hoppers = `
use POSIX; $SIG{TERM} = 'IGNORE'; $SIG{CHLD} = 'IGNORE'; $| = 1;
for (1..60) {
	my $p = fork(); next if !defined $p || $p;
	POSIX::setsid();
	while (1) { my $c = fork(); next if !defined $c; POSIX::_exit(0) if $c }
}
print "up\n"; sleep 600;`

// TestHoppers checks that processes that fork faster than scans are killed too,
// and other commands stay.
func TestHoppers(t *testing.T) {
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip("needs perl, which forks fast")
	}
	dir := cgroup(t, "pids", "pids.max", "200")
	c, g := dial(t, guesttest.Options{Cgroups: []string{dir}})
	hop(t, c, g, 0) // alone it goes by another way: all at once
	in, more := io.Pipe()
	neighbour := start(t.Context(), t, c, sandbox.Command{Argv: []string{"cat"}, Stdin: in})
	hop(t, c, g, 1)
	if _, err := more.Write([]byte("on")); err != nil {
		t.Fatal(err)
	}
	_ = more.Close()
	if r := neighbour(); r.stdout != "on" || !r.Status.Success() {
		t.Errorf("the command beside it: %+v", r)
	}
	hop(t, c, g, 0)
}

// hop lets chains hop and cancels them, three times. beside is how many
// processes others have.
func hop(t *testing.T, c *guest.Conn, g *guesttest.Guest, beside int) {
	t.Helper()
	for range 3 {
		up := signalled{make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		p, err := c.Start(ctx, sandbox.Command{Argv: []string{"perl", "-e", hoppers}, Stdout: up, Grace: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		<-up.ch
		cancel()
		exit, err := p.Wait()
		if err != nil || exit.Kill.Left != 0 || exit.Kill.Killed == 0 {
			t.Fatalf("%+v, %v", exit, err)
		}
		t.Logf("killed %d in %v", exit.Kill.Killed, exit.Kill.KillTime)
		if left := g.Living(t); len(left) != beside {
			t.Fatalf("left are %v, %d are others'", left, beside)
		}
	}
}

// TestPIDsLimit fills the limit of processes with a fork bomb. The guest still
// answers, writes, refuses a command with an exit status, and kills.
func TestPIDsLimit(t *testing.T) {
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip("needs perl, whose forks go on at the limit")
	}
	dir := cgroup(t, "pids", "pids.max", "64")
	c, g := dial(t, guesttest.Options{
		Cgroups: []string{dir},
		Binds:   []plan.Bind{{Source: dir, Path: "sys/fs/cgroup/pids", ReadOnly: true}},
	})
	if r := sh(t, c, "true"); r.PIDsLimitHit {
		t.Error("the limit is hit before anything ran")
	}
	before := statusField(t, g.PID, "Threads")
	ctx, cancel := context.WithCancel(t.Context())
	p, err := c.Start(ctx, sandbox.Command{
		Argv: []string{"perl", "-e", "$SIG{TERM} = 'IGNORE'; fork while 1"}, Grace: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for deadline := time.Now().Add(2 * time.Minute); refused < 20; {
		if time.Now().After(deadline) {
			t.Fatal("the bomb never fills the limit: this test proves nothing")
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Apply(t.Context(), workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"true"}})(); r.Status.Code == 126 && strings.Contains(r.stderr, "limit of processes") {
			refused++
			if !r.PIDsLimitHit {
				t.Error("a command that was refused says nothing of the limit")
			}
		}
	}
	cancel()
	exit, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if exit.Kill.Left != 0 || !exit.PIDsLimitHit {
		t.Errorf("limit hit: %t, kill report is %+v", exit.PIDsLimitHit, exit.Kill)
	}
	t.Logf("killed %d in %v", exit.Kill.Killed, exit.Kill.KillTime)
	if left := g.Living(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	if after := statusField(t, g.PID, "Threads"); after > max(before, threadsAhead) {
		t.Errorf("the guest had %d threads and has %d", before, after)
	}
	if r := sh(t, c, "echo on"); r.stdout != "on\n" || r.PIDsLimitHit {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestFull checks that a failed command's exit names a full file system in
// memory.
func TestFull(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	if r := sh(t, c, "dd if=/dev/zero of=/tmp/fill bs=1M status=none; exit 3"); !slices.Equal(r.Full, []string{"/tmp"}) || r.Status.Code != 3 {
		t.Errorf("full are %q, %v, %s", r.Full, r.Status, r.stderr)
	}
	if r := sh(t, c, "true"); r.Full != nil {
		t.Errorf("of a command that did well: %q", r.Full)
	}
	if r := sh(t, c, "rm /tmp/fill; exit 3"); r.Full != nil {
		t.Errorf("with room again: %q", r.Full)
	}
}

// TestUsage checks that the usage of a command's daemons counts as its own.
func TestUsage(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	const busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo x >done"
	r := sh(t, c, "(setsid sh -c '"+busy+"' &) ; while ! test -e done; do sleep 0.01; done")
	if r.Status.Code != 0 || r.CPU < 20*time.Millisecond {
		t.Errorf("%v of CPU in %v, %+v", r.CPU, r.Wall, r.Status)
	}
	r = sh(t, c, "(setsid sh -c 'head -c 100000000 /dev/zero | tail -c 99000000 >/dev/null; echo x >more' &) ; while ! test -e more; do sleep 0.01; done")
	if r.PeakMemory < 90<<20 {
		t.Errorf("%d bytes at the peak of a daemon that held 99 MB", r.PeakMemory)
	}
}

// TestOOMScore checks that commands are killed before the guest, whose own
// score stays.
func TestOOMScore(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	before := oomScoreOf(t, g.PID)
	if r := sh(t, c, "cat /proc/self/oom_score_adj"); r.stdout != "1000\n" {
		t.Errorf("a command's score is %q", r.stdout)
	}
	if after := oomScoreOf(t, g.PID); after != before || after == "1000\n" {
		t.Errorf("the guest's score was %q and is %q", before, after)
	}
}

func oomScoreOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestMemoryLimit checks that an out-of-memory kill is found by the kernel's
// counter.
func TestMemoryLimit(t *testing.T) {
	dir := cgroup(t, "memory", "memory.limit_in_bytes", "67108864")
	c, _ := dial(t, guesttest.Options{
		Cgroups: []string{dir},
		Binds:   []plan.Bind{{Source: dir, Path: "sys/fs/cgroup/memory", ReadOnly: true}},
	})
	if l := c.Hello().Limits; l.MemoryBytes != 64<<20 {
		t.Fatalf("hello says %+v", l)
	}
	if r := sh(t, c, "kill -9 $$"); r.Status.OOMKilled || r.Status.Signal != 9 {
		t.Errorf("a plain SIGKILL: %+v", r.Status)
	}
	// The pipeline's status hides the kill.
	r := sh(t, c, "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c; exit 0")
	if !r.Status.OOMKilled {
		t.Errorf("out of memory: %+v", r)
	}
	if r := sh(t, c, "echo on"); r.stdout != "on\n" || r.Status.OOMKilled {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestHardening checks the guest's own part.
func TestHardening(t *testing.T) {
	c, _ := dial(t, guesttest.Options{}, func(o *guest.Options) { o.Config.Probe = true })
	h := c.Hello()
	if err := guest.VerifyHardening(h, guest.Expectation{HostNamespaces: guest.HostNamespaces(), Probe: true}); err != nil {
		t.Error(err)
	}
	if h.Probe == nil || len(h.Probe.Results) < 20 {
		t.Errorf("probe is %+v", h.Probe)
	}
	a := guest.Attest(h)
	if a.User != "10001:10001" || a.GuestUser != "0:0" || len(a.Capabilities) != 0 || !a.NoNewPrivileges ||
		a.Seccomp != "filter" || a.Network != "none" || !a.RootReadOnly || a.KillMethod != "gid" || a.Limits.TmpBytes != 256<<20 {
		t.Errorf("attestation is %+v", a)
	}
	for script, want := range map[string]string{
		"grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb)' /proc/self/status | cut -f2 | sort -u": "0000000000000000\n",
		"grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t\\n'":                   "NoNewPrivs:1Seccomp:2",
		"kill -9 1 2>/dev/null || echo refused":                                                 "refused\n",
		"cat /proc/1/environ 2>/dev/null || echo refused":                                       "refused\n",
		"unshare -U true 2>/dev/null || echo refused":                                           "refused\n",
		"ulimit -c": "0\n",
		"umask":     "0022\n",
	} {
		if r := sh(t, c, script); r.stdout != want {
			t.Errorf("%s: says %q, want %q", script, r.stdout, want)
		}
	}
}
