package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// testGrace is the grace period of commands that ignore SIGTERM. enoughGrace is
// for those that must end by SIGTERM on any machine.
const (
	testGrace   = 300 * time.Millisecond
	enoughGrace = time.Minute
)

var errTest = errors.New("cancelled by the suite")

func cancelChecks() []check {
	return []check{
		{name: "cancel before start", run: checkCancelBefore},
		{name: "cancel while it runs", run: checkCancelDuring},
		{name: "cancel right at the start", run: checkCancelAtStart},
		{name: "cancel after the end changes nothing", run: checkCancelAfter},
		{name: "SIGTERM comes first", run: checkTermFirst},
		{name: "what a parent leaves at SIGTERM gets one too", run: checkTermOrphans},
		{name: "a process that ignores SIGTERM is killed", run: checkIgnoresTerm},
		{name: "daemons are found and killed", run: checkDaemons},
		{name: "a timeout ends everything", run: checkTimeout},
		{name: "what is left after the end is killed", run: checkLeftAfterExit},
		{name: "a grandchild that holds stdout does not hold the command", run: checkHoldsStdout},
		{name: "cancelling one command spares another", run: checkSpares},
		{name: "orphans are reaped", run: checkZombies},
	}
}

func isInvalid(err error) bool { return errors.Is(err, sandbox.ErrInvalid) }

func checkCancelBefore(ctx context.Context, e *env) error {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(errTest)
	p, err := e.sb.Start(ctx, sandbox.Command{Argv: probeArgv("sleep")})
	if err == nil {
		_, _ = waitProcess(ctx, p)
		return errors.New("start with a cancelled context succeeded")
	}
	if !errors.Is(err, errTest) {
		return errorf("error %w does not wrap the cause", err)
	}
	return nil
}

// startReady starts a command and waits until it reports that it is ready.
func startReady(ctx, waitCtx context.Context, e *env, cmd sandbox.Command) (sandbox.Process, *signalWriter, error) {
	w := newSignalWriter("ready\n")
	cmd.Stdout = w
	p, err := e.sb.Start(ctx, cmd)
	if err != nil {
		return nil, nil, err
	}
	return p, w, w.waitSeen(waitCtx, e.sb)
}

func cancelVerb(ctx context.Context, e *env, grace time.Duration, args ...string) (sandbox.Exit, error) {
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, w, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv(args...), Grace: grace})
	if err != nil {
		return sandbox.Exit{}, err
	}
	cancel(errTest)
	exit, err := waitProcess(ctx, p)
	if err != nil {
		return exit, err
	}
	if !exit.Status.Cancelled || exit.Kill.Left != 0 {
		return exit, fmt.Errorf("status %s, left %d; want cancelled and nothing left", exit.Status, exit.Kill.Left)
	}
	if !strings.Contains(w.String(), "ready") {
		return exit, errors.New("partial output is lost")
	}
	return exit, nil
}

func checkCancelDuring(ctx context.Context, e *env) error {
	m := newMarker()
	exit, err := cancelVerb(ctx, e, enoughGrace, "sleep", m)
	if err != nil {
		return err
	}
	if exit.Status.Signal != 15 || exit.Kill.Terminated < 1 || exit.Kill.Killed != 0 {
		return fmt.Errorf("status %+v kill %+v, want an end by SIGTERM", exit.Status, exit.Kill)
	}
	return e.expectGone(ctx, m)
}

// expectGone asserts that no process with the marker runs. Its positive control
// shows that such a process would be seen.
func (e *env) expectGone(ctx context.Context, m string) error {
	control := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("sleep", control), Grace: testGrace})
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	seen, err := e.countRunning(ctx, control)
	if err != nil || seen == 0 {
		return errorf("positive control: a running process is not seen (%d, %w)", seen, err)
	}
	cancel()
	if _, err := waitProcess(ctx, p); err != nil {
		return err
	}
	n, err := e.countRunning(ctx, m)
	if err != nil {
		return err
	}
	if n != 0 {
		return fmt.Errorf("%d processes still run", n)
	}
	return nil
}

func checkCancelAtStart(ctx context.Context, e *env) error {
	m := newMarker()
	for range 20 {
		runCtx, cancel := context.WithCancelCause(ctx)
		go cancel(errTest)
		p, err := e.sb.Start(runCtx, sandbox.Command{Argv: probeArgv("sleep", m), Grace: testGrace})
		if err != nil {
			if !errors.Is(err, errTest) {
				return fmt.Errorf("start: %w", err)
			}
			continue
		}
		exit, err := waitProcess(ctx, p)
		if err != nil {
			return err
		}
		if !exit.Status.Cancelled {
			return fmt.Errorf("status %s, want cancelled", exit.Status)
		}
	}
	return e.expectGone(ctx, m)
}

func checkCancelAfter(ctx context.Context, e *env) error {
	runCtx, cancel := context.WithCancelCause(ctx)
	p, err := e.sb.Start(runCtx, sandbox.Command{Argv: probeArgv("exit", "3")})
	if err != nil {
		cancel(nil)
		return err
	}
	first, err := waitProcess(ctx, p)
	if err != nil {
		cancel(nil)
		return err
	}
	cancel(errTest)
	second, err := waitProcess(ctx, p)
	if err != nil {
		return err
	}
	if want := (sandbox.ExitStatus{Code: 3}); first.Status != want || second.Status != want {
		return fmt.Errorf("status %+v, then %+v, want code 3 twice", first.Status, second.Status)
	}
	return nil
}

func checkTermFirst(ctx context.Context, e *env) error {
	exit, err := cancelVerb(ctx, e, enoughGrace, "term-exit", "7")
	if err != nil {
		return err
	}
	if exit.Status.Code != 7 || exit.Kill.Killed != 0 {
		return fmt.Errorf("status %+v kill %+v, want the handler's exit code 7", exit.Status, exit.Kill)
	}
	return nil
}

func checkTermOrphans(ctx context.Context, e *env) error {
	m := newMarker()
	exit, err := cancelVerb(ctx, e, enoughGrace, "term-leave", m)
	if err != nil {
		return err
	}
	if exit.Status.Code != 0 || exit.Kill.Terminated < 2 || exit.Kill.Killed != 0 {
		return fmt.Errorf("status %+v kill %+v, want an end by SIGTERM of what was left", exit.Status, exit.Kill)
	}
	return e.expectGone(ctx, m)
}

func checkIgnoresTerm(ctx context.Context, e *env) error {
	m := newMarker()
	exit, err := cancelVerb(ctx, e, testGrace, "ignore-term", m)
	if err != nil {
		return err
	}
	if exit.Status.Signal != 9 || exit.Kill.Killed < 1 {
		return fmt.Errorf("status %+v kill %+v, want an end by SIGKILL", exit.Status, exit.Kill)
	}
	return e.expectGone(ctx, m)
}

func checkDaemons(ctx context.Context, e *env) error {
	m := newMarker()
	exit, err := cancelVerb(ctx, e, testGrace, "daemons", "4", m, "stay")
	if err != nil {
		return err
	}
	if exit.Kill.Killed < 4 {
		return fmt.Errorf("kill %+v, want at least the 4 daemons killed", exit.Kill)
	}
	return e.expectGone(ctx, m)
}

func checkTimeout(ctx context.Context, e *env) error {
	return e.retrySlower(2*time.Second, func(timeout time.Duration) (began bool, err error) {
		m := newMarker()
		r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("daemons", "2", m, "stay"), Timeout: timeout, Grace: testGrace})
		if err != nil {
			return false, err
		}
		if !r.Status.TimedOut || r.Status.Cancelled || r.Kill.Left != 0 {
			return false, fmt.Errorf("status %+v kill %+v out %q, want timed out with partial output", r.Status, r.Kill, r.out)
		}
		return strings.Contains(r.out, "ready"), e.expectGone(ctx, m)
	})
}

// retrySlower runs f with a timeout that suffices on a calm machine. If f did
// not begin before it, f runs once more with six times as much.
func (e *env) retrySlower(timeout time.Duration, f func(timeout time.Duration) (began bool, err error)) error {
	began, err := f(timeout)
	if err == nil && !began {
		timeout *= 6
		began, err = f(timeout)
	}
	if err == nil && !began {
		return fmt.Errorf("nothing was written in the %s until the timeout", timeout)
	}
	return err
}

func checkLeftAfterExit(ctx context.Context, e *env) error {
	m := newMarker()
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("daemons", "3", m), Grace: testGrace})
	if err != nil {
		return err
	}
	if !r.Status.Success() || !r.Kill.AfterExit || r.Kill.Left != 0 || r.Kill.Killed+r.Kill.Terminated < 3 {
		return fmt.Errorf("status %+v kill %+v, want success and 3 killed after the exit", r.Status, r.Kill)
	}
	return e.expectGone(ctx, m)
}

func checkHoldsStdout(ctx context.Context, e *env) error {
	m := newMarker()
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("hold-stdout", m), Grace: testGrace})
	if err != nil {
		return err
	}
	if !r.Status.Success() || r.out != "held\n" {
		return fmt.Errorf("status %s out %q", r.Status, r.out)
	}
	return e.expectGone(ctx, m)
}

func checkSpares(ctx context.Context, e *env) error {
	spared := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("daemons", "2", spared, "stay"), Grace: testGrace})
	if err != nil {
		return err
	}
	if _, err := cancelVerb(ctx, e, testGrace, "daemons", "2", newMarker(), "stay"); err != nil {
		return err
	}
	n, err := e.countRunning(ctx, spared)
	if err != nil {
		return err
	}
	cancel()
	if _, err := waitProcess(ctx, p); err != nil {
		return err
	}
	if n < 3 {
		return fmt.Errorf("%d processes of the other command are left, want 3", n)
	}
	return e.expectGone(ctx, spared)
}

func checkZombies(ctx context.Context, e *env) error {
	if _, err := e.expectOutput(ctx, "orphans", strconv.Itoa(e.target.repeatCount(1000))); err != nil {
		return err
	}
	// PID 1 reaps them when it gets the processor.
	zombies := 0
	for range 50 {
		var err error
		if zombies, err = e.expectNumber(ctx, "zombies"); zombies == 0 || err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%d zombies", zombies)
}
