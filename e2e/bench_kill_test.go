package e2e

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// daemonsScript starts eight daemons that forked twice, left the session and
// ignore SIGTERM, each with a child; it says "up" when all run, and goes on.
const daemonsScript = `
for i in 1 2 3 4 5 6 7 8; do
	(setsid sh -c 'trap "" TERM INT HUP; echo; while :; do sleep 1000; done' &)
done | (for i in 1 2 3 4 5 6 7 8; do read x; done; echo up)
sleep 1000`

// stormScript is twenty chains of processes, each of which forks the next and
// ends: what forks faster than it can be looked at.
const stormScript = `
use POSIX; $SIG{TERM} = 'IGNORE'; $SIG{CHLD} = 'IGNORE'; $| = 1;
for (1..20) {
	my $p = fork(); next if !defined $p || $p;
	POSIX::setsid();
	while (1) { my $c = fork(); next if !defined $c; POSIX::_exit(0) if $c }
}
print "up\n"; sleep 600;`

// BenchmarkKill is the time from the first SIGKILL to the proof that nothing of
// a command is left: of one with sixteen daemons, alone and beside another
// command, and of a fork storm. It reports the 50th and the 99th percentile.
func BenchmarkKill(b *testing.B) {
	daemons := []string{"sh", "-c", daemonsScript}
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) { killed(b, benchSandbox(b, name).start(b), daemons) })
		b.Run(name+"-beside", func(b *testing.B) {
			box := benchSandbox(b, name).start(b)
			ctx, cancel := context.WithCancel(b.Context())
			beside, err := box.Start(ctx, sandbox.Command{Argv: []string{"sleep", "1000"}})
			if err != nil {
				b.Fatal(err)
			}
			killed(b, box, daemons)
			cancel()
			if exit, err := beside.Wait(); err != nil || exit.Status.Signal == 9 {
				b.Fatalf("the command beside it: %v, %v", exit.Status, err)
			}
		})
		b.Run(name+"-storm", func(b *testing.B) {
			if _, err := os.Stat("/usr/bin/perl"); err != nil {
				b.Skip("needs perl, which forks fast")
			}
			killed(b, benchSandbox(b, name).start(b), []string{"perl", "-e", stormScript})
		})
	}
}

// killed starts a command that says "up", cancels it with next to no grace, and
// reports how long its kill took.
func killed(b *testing.B, box sandbox.Sandbox, argv []string) {
	var kill, whole []time.Duration
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		up := make(chan struct{})
		process, err := box.Start(ctx, sandbox.Command{Argv: argv, Grace: time.Millisecond, Stdout: onWrite(func(p []byte) {
			if strings.Contains(string(p), "up") {
				close(up)
			}
		})})
		if err != nil {
			b.Fatal(err)
		}
		<-up
		began := time.Now()
		cancel()
		exit, err := process.Wait()
		if err != nil || exit.Kill.Left != 0 || exit.Kill.Killed == 0 {
			b.Fatalf("%+v, %v", exit, err)
		}
		whole = append(whole, time.Since(began))
		kill = append(kill, exit.Kill.KillTime)
	}
	for _, list := range []struct {
		name  string
		times []time.Duration
	}{{"", kill}, {"cancel-", whole}} {
		slices.Sort(list.times)
		last := len(list.times) - 1
		b.ReportMetric(float64(list.times[last/2]), list.name+"p50-ns")
		b.ReportMetric(float64(list.times[last*99/100]), list.name+"p99-ns")
	}
}

// onWrite is a writer that tells what is written.
type onWrite func(p []byte)

func (f onWrite) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
