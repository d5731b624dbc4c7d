package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

func loadChecks() []check {
	return []check{
		{name: "timeouts hold under load", fresh: true, run: checkBusy, resources: func(r *limits.Resources) { r.PIDs = 512 }},
		{name: "stopped processes are killed", fresh: true, run: checkStopped},
		{name: "out of files, then well again", run: checkFilesRecover},
		{name: "forks can be had again", fresh: true, run: checkForksRecover, resources: func(r *limits.Resources) { r.PIDs = 64 }},
		{name: "memory that no process holds", fresh: true, run: checkUnheldMemory, resources: func(r *limits.Resources) {
			r.MemoryBytes, r.TmpBytes = 128<<20, 512<<20
		}},
		{name: "a paused sandbox is lost, not waited for", fresh: true, waits: true, run: checkPaused},
	}
}

// checkBusy computes in 64 processes: a timeout ends them, and meanwhile other
// commands run.
func checkBusy(ctx context.Context, e *env) error {
	// A kernel in user space takes seconds to start them.
	timeout := 3 * time.Second
	if e.target.OwnKernel {
		timeout = 8 * time.Second
	}
	if err := e.retrySlower(timeout, func(timeout time.Duration) (bool, error) { return runBusy(ctx, e, timeout) }); err != nil {
		return err
	}
	return e.expectWorking(ctx)
}

func runBusy(ctx context.Context, e *env, timeout time.Duration) (began bool, err error) {
	w := newSignalWriter("ready\n")
	p, err := e.sb.Start(ctx, sandbox.Command{Argv: probeArgv("busy", "64", newMarker()), Stdout: w, Timeout: timeout, Grace: testGrace})
	if err != nil {
		return false, err
	}
	type end struct {
		exit sandbox.Exit
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		exit, err := waitProcess(ctx, p)
		ended <- end{exit, err}
	}()
	select {
	case <-w.seen:
	case early := <-ended:
		if early.err == nil && (!early.exit.Status.TimedOut || early.exit.Kill.Left != 0) {
			early.err = fmt.Errorf("status %+v, kill %+v; want timed out and all ended", early.exit.Status, early.exit.Kill)
		}
		return false, early.err
	}
	// A kernel in user space shares its processors with what it runs, so
	// RunNeighbours tests that with another session.
	for i := 0; i < 3 && !e.target.OwnKernel; i++ {
		if _, err := e.expectOutput(ctx, "exit", "0"); err != nil {
			return true, fmt.Errorf("beside 64 busy processes: %w", err)
		}
	}
	late := <-ended
	if late.err == nil && (!late.exit.Status.TimedOut || late.exit.Kill.Left != 0 || late.exit.Kill.Killed+late.exit.Kill.Terminated < 64) {
		late.err = fmt.Errorf("status %+v, kill %+v; want timed out and all ended", late.exit.Status, late.exit.Kill)
	}
	return true, late.err
}

// checkStopped stops every process that a command can. Cancelling must still
// work.
func checkStopped(ctx context.Context, e *env) error {
	if e.target.SingleUID {
		return attestsLoss(e, "uid") // the guest can be stopped too, and is then lost
	}
	m := newMarker()
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("daemons", "3", m, "stay"), Grace: testGrace})
	if err != nil {
		return err
	}
	if _, err := e.expectOutput(ctx, "stop-all"); err != nil {
		return err
	}
	cancel(errTest)
	exit, err := waitProcess(ctx, p)
	if err != nil {
		return err
	}
	if !exit.Status.Cancelled || exit.Kill.Left != 0 {
		return fmt.Errorf("status %+v, kill %+v", exit.Status, exit.Kill)
	}
	if err := e.expectGone(ctx, m); err != nil {
		return err
	}
	return e.expectWorking(ctx)
}

// checkFilesRecover uses up the descriptors: the command gets an error, and the
// next one has them again.
func checkFilesRecover(ctx context.Context, e *env) error {
	for range 2 {
		out, err := e.expectOutput(ctx, "open-files")
		if err != nil {
			return err
		}
		if !strings.HasSuffix(out, " EMFILE\n") {
			return fmt.Errorf("out of files: %q, want EMFILE", out)
		}
	}
	return e.expectAnswer(ctx, "", "exit", "0")
}

// checkForksRecover counts how many processes can be started, uses them up, and
// counts again, up to five times, since a loaded machine reaps late.
func checkForksRecover(ctx context.Context, e *env) error {
	if e.target.LimitsUnenforced && !e.target.OwnKernel {
		return attestsLoss(e, "pids")
	}
	first := 0
	for range 6 {
		count, err := e.expectNumber(ctx, "fork-count")
		if err != nil {
			return err
		}
		switch {
		case first > 0 && count >= first-5:
			return nil
		case first > 0:
			continue
		case count < 2 || count > 64:
			return fmt.Errorf("%d processes could be started; limit 64", count)
		}
		first = count
		if _, err := e.expectOutput(ctx, "orphans", "300"); err != nil {
			return err
		}
	}
	return fmt.Errorf("first %d processes could be started, then at least 6 fewer; limit 64", first)
}

// checkUnheldMemory fills memory that belongs to no process, so that killing one
// frees nothing. The memory limit is below the size of /tmp. The writer gets an
// error, and everything else continues. gVisor's own kernel may need the rest of
// the memory; then the loss names the limit.
func checkUnheldMemory(ctx context.Context, e *env) error {
	if e.target.LimitsUnenforced {
		return attestsLoss(e, "memory")
	}
	for _, place := range []string{"/tmp", "/dev/shm"} {
		r, err := e.runProbe(ctx, "hold", place, strconv.Itoa(400<<20))
		if err != nil && e.target.OwnKernel {
			return expectDeath(ctx, e, err)
		}
		if err != nil {
			return err
		}
		if !strings.Contains(r.out, "ENOSPC") {
			return fmt.Errorf("%s: status %+v, output %q; want ENOSPC", place, r.Status, r.out)
		}
	}
	if at := e.sb.Attestation().Limits; at.TmpBytes >= at.MemoryBytes {
		return fmt.Errorf("attested %+v: /tmp holds more than the memory limit", at)
	}
	return e.expectWorking(ctx)
}

func checkPaused(ctx context.Context, e *env) error {
	if e.target.Pause == nil {
		return skipError("needs who can freeze a container from outside")
	}
	runCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("sleep", newMarker()), Grace: testGrace})
	if err != nil {
		return err
	}
	if err := e.target.Pause(ctx, e.sb); err != nil {
		return err
	}
	cancel(errTest)
	// The guest has 30 s to answer a cancellation (design, "Cancellation").
	longer, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer stop()
	if _, err := waitProcess(longer, p); !errors.Is(err, sandbox.ErrLost) {
		return errorf("command: %w, want ErrLost", err)
	}
	if err := waitDone(e.sb); err != nil {
		return err
	}
	if !errors.Is(e.sb.Err(), sandbox.ErrLost) {
		return errorf("sandbox: %w, want ErrLost", e.sb.Err())
	}
	return nil
}

func limitChecks() []check {
	small := func(r *limits.Resources) { r.MemoryBytes, r.PIDs = 256<<20, 64 }
	return []check{
		{name: "memory", fresh: true, run: checkMemory, resources: small},
		{name: "processes", fresh: true, run: checkPIDs, resources: small},
		{name: ownBudget, fresh: true, run: checkOwnBudget},
		{name: "temporary files", fresh: true, run: checkTmp, resources: func(r *limits.Resources) { r.TmpBytes = 8 << 20 }},
		{name: "open files", run: checkOpenFiles},
		{name: "a full place is reported", fresh: true, run: checkFull, resources: smallPlaces},
		{name: "processors are those of the limit", fresh: true, run: checkProcessors, resources: func(r *limits.Resources) { r.MilliCPUs = 1000 }},
	}
}

// expectDeath asserts that the memory limit ended a sandbox with its own kernel.
func expectDeath(ctx context.Context, e *env, err error) error {
	select {
	case <-e.sb.Done():
	case <-ctx.Done():
		return errorf("the sandbox survived; command: %w", err)
	}
	var exceeded *limits.ExceededError
	if lost := e.sb.Err(); !errors.Is(lost, sandbox.ErrLost) || !errors.As(lost, &exceeded) || exceeded.Kind != limits.KindMemory {
		return errorf("sandbox ended with %w, want the loss to the memory limit", lost)
	}
	if !errors.Is(err, sandbox.ErrLost) {
		return errorf("command ended with %w, want ErrLost", err)
	}
	return nil
}

func checkMemory(ctx context.Context, e *env) error {
	if e.target.LimitsUnenforced {
		return attestsLoss(e, "memory")
	}
	r, err := e.runProbe(ctx, "hog", strconv.Itoa(512<<20))
	if e.target.OwnKernel {
		return expectDeath(ctx, e, err)
	}
	if err != nil {
		return err
	}
	if r.Status.Signal != 9 || !r.Status.OOMKilled {
		return fmt.Errorf("status %+v, want killed out of memory", r.Status)
	}
	return e.expectWorking(ctx)
}

// expectWorking asserts that the sandbox still takes commands, changes and
// cancellations.
func (e *env) expectWorking(ctx context.Context) error {
	if _, err := e.expectOutput(ctx, "exit", "0"); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if _, err := e.sb.Apply(ctx, writeOp("after")); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if _, err := cancelVerb(ctx, e, enoughGrace, "sleep", newMarker()); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}

func writeOp(path string) workspace.Op {
	return workspace.Op{Kind: workspace.OpWrite, Path: path, Content: []byte("x")}
}

func checkPIDs(ctx context.Context, e *env) error {
	if e.target.LimitsUnenforced && !e.target.OwnKernel {
		return attestsLoss(e, "pids")
	}
	m := newMarker()
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, w, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("fork-bomb", m), Grace: testGrace})
	if err != nil {
		return fmt.Errorf("fill: %w (%s)", err, w.String())
	}
	if _, err := e.sb.Apply(ctx, writeOp("full")); err != nil {
		return fmt.Errorf("write at the limit: %w", err)
	}
	cancel()
	exit, err := waitProcess(ctx, p)
	if err != nil {
		return fmt.Errorf("cancel at the limit: %w", err)
	}
	if exit.Kill.Left != 0 {
		return fmt.Errorf("kill %+v", exit.Kill)
	}
	if exit.PIDsLimitHit != e.target.countsForks() {
		return fmt.Errorf("the result says that the pids limit was hit: %t, want %t", exit.PIDsLimitHit, e.target.countsForks())
	}
	if r, err := e.runProbe(ctx, "exit", "0"); err != nil || r.PIDsLimitHit || r.Status.OOMKilled {
		return errorf("a command that met no limit: %+v, %w", r.Exit, err)
	}
	return e.expectWorking(ctx)
}

const ownBudget = "a command has a budget of its own"

// checkOwnBudget: only the command that exceeds its own number of processes is
// killed.
func checkOwnBudget(ctx context.Context, e *env) error {
	const most = 30
	other, _, err := startReady(ctx, ctx, e, sandbox.Command{Argv: probeArgv("sleep", newMarker()), MaxTasks: most, MaxMemory: 256 << 20, Grace: testGrace})
	if err != nil {
		return err
	}
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("fork-bomb", newMarker()), MaxTasks: most, Grace: testGrace})
	if err != nil {
		return err
	}
	if x := r.Exceeded; x == nil || x.Kind != limits.KindPIDs || x.Limit != most || x.Used <= most {
		return fmt.Errorf("a command with %d processes too many ended with %+v, exceeded %w", most, r.Status, x)
	}
	if r.Kill.Left != 0 {
		return fmt.Errorf("kill %+v", r.Kill)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = other.Wait()
	}()
	select {
	case <-ended:
		return errors.New("another command was ended with it")
	case <-time.After(time.Second):
	}
	return nil
}

func checkTmp(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "fill", "/tmp/big", strconv.Itoa(64<<20))
	if err != nil {
		return err
	}
	var wrote int64
	var errno string
	if _, err := fmt.Sscan(out, &wrote, &errno); err != nil {
		return err
	}
	if wrote > 8<<20 || errno != "ENOSPC" {
		return fmt.Errorf("wrote %d bytes to /tmp of 8 MiB, error %s", wrote, errno)
	}
	return nil
}

func checkOpenFiles(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "open-files")
	if err != nil {
		return err
	}
	var n int
	if _, err := fmt.Sscan(out, &n); err != nil {
		return err
	}
	if limit := int(limits.DefaultResources().OpenFiles); n > limit || n < limit/2 {
		return fmt.Errorf("%d files could be opened, limit %d", n, limit)
	}
	return nil
}

func checkFull(ctx context.Context, e *env) error {
	r, err := e.runProbe(ctx, "hold", "/tmp", strconv.Itoa(64<<20), "fail")
	if err != nil {
		return err
	}
	if r.Status.Success() || !slices.Equal(r.Full, []string{"/tmp"}) {
		return fmt.Errorf("%s, full %q; want a failure and /tmp", r.Status, r.Full)
	}
	r, err = e.runProbe(ctx, "unhold", "/tmp", "fail")
	if err != nil {
		return err
	}
	if r.Status.Success() || len(r.Full) > 0 {
		return fmt.Errorf("afterwards: %s, full %q", r.Status, r.Full)
	}
	return nil
}

// checkProcessors: programs see the CPU limit, not the machine. As a control, a sandbox
// that may use all of the machine's processors sees them.
func checkProcessors(ctx context.Context, e *env) (err error) {
	if e.target.LimitsUnenforced && !e.target.OwnKernel {
		return attestsLoss(e, "CPU")
	}
	out, err := e.expectOutput(ctx, "processors")
	if err != nil {
		return err
	}
	if out != "1 1 0\n" {
		return fmt.Errorf("a command sees %q processors with a limit of 1", out)
	}
	whole := newEnv(e.target, filepath.Join(e.base, "whole"))
	if err := whole.start(ctx, func(r *limits.Resources) { r.MilliCPUs = int64(runtime.NumCPU()) * 1000 }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, whole.close(ctx)) }()
	out, err = whole.expectOutput(ctx, "processors")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%d %[1]d ", runtime.NumCPU()); !strings.HasPrefix(out, want) {
		return fmt.Errorf("positive control: without a lower limit a command sees %q processors, of %d", out, runtime.NumCPU())
	}
	return nil
}
