package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// RunTrial runs one trial, whose files it writes to a directory of its own, and returns
// its result. The fields that name the trial and its times are set by [Run]. Budget
// bounds the cost of the trial, if it is not nil. If ctx ends it returns soon, and the
// result does not count.
type RunTrial func(ctx context.Context, t Trial, dir string, budget *int64) Result

// Options configures [Run].
type Options struct {
	Ledger *Ledger
	Trials []Trial
	// Run runs each trial. It is called by several goroutines.
	Run      RunTrial
	Capacity Capacity
	// MaxCostMicroUSD bounds the cost of all trials of the ledger: none starts when it
	// is used up, and each may cost what is left when it starts. 0 is no bound.
	MaxCostMicroUSD int64
	// Retries is how often a trial is tried again after a fault of the infrastructure.
	Retries int
	// RetryDelay is the time before the first of them; it doubles with each. Zero is a
	// second.
	RetryDelay time.Duration
	// OnStart and OnResult are called when a trial starts and when it has its result, by
	// several goroutines. They must return at once, and may be nil.
	OnStart  func(k Key)
	OnResult func(r Result)
}

// Totals counts the trials of one call of [Run].
type Totals struct {
	// Kept is the number of trials that had a result before, Ran of those that got
	// one.
	Kept, Ran int
	// NotRun are trials without a result, because the cost was used up or ctx ended.
	NotRun []Key
	// CostReached reports that MaxCostMicroUSD kept trials from starting.
	CostReached bool
}

// Run runs the trials that have no result. It returns when all have one, the cost is used up,
// or ctx has ended and what ran was stopped. The error is that of the ledger, or of a trial
// for which the disk was full: no trial starts once a result can't be kept.
func Run(ctx context.Context, o Options) (Totals, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &run{Options: o, admission: NewAdmission(o.Capacity), stop: stop, cost: o.Ledger.CostMicroUSD()}
	var totals Totals
	for i, t := range o.Trials {
		if _, done := o.Ledger.Ending(t.Key); done {
			totals.Kept++
			continue
		}
		release, err := r.admission.Acquire(ctx, t.Definition.Environment)
		left, some := r.costLeft()
		if err == nil && !some {
			release()
			totals.CostReached = true
		}
		if err != nil || !some {
			for _, other := range o.Trials[i:] {
				if _, done := o.Ledger.Ending(other.Key); !done {
					totals.NotRun = append(totals.NotRun, other.Key)
				}
			}
			break
		}
		r.running.Go(func() {
			defer release()
			r.runTrial(ctx, t, left)
		})
	}
	r.running.Wait()
	totals.Ran, totals.NotRun = r.ran, append(r.cancelled, totals.NotRun...)
	return totals, r.err
}

// run is the state of one call of Run.
type run struct {
	Options
	admission *Admission
	stop      context.CancelCauseFunc
	running   sync.WaitGroup

	mu        sync.Mutex
	cost      int64 // of all trials with a result, in millionths of a dollar
	ran       int
	cancelled []Key
	err       error
}

// costLeft returns what the next trial may cost, nil for any, and whether it may
// start.
func (r *run) costLeft() (*int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.MaxCostMicroUSD == 0 {
		return nil, true
	}
	left := r.MaxCostMicroUSD - r.cost
	return &left, left > 0
}

// runTrial runs a trial until it has a result that is not the infrastructure's fault, or
// no try is left.
func (r *run) runTrial(ctx context.Context, t Trial, budget *int64) {
	if r.OnStart != nil {
		r.OnStart(t.Key)
	}
	began, delay := time.Now(), r.RetryDelay
	if delay == 0 {
		delay = time.Second
	}
	var faults []Fault
	var spent limits.Usage
	for try := 0; ; try++ {
		dir, err := r.Ledger.Begin(t.Key)
		if err != nil {
			r.stopBatch(err)
			return
		}
		result := r.Run(ctx, t, dir, budget)
		if ctx.Err() != nil || result.Outcome == Cancelled {
			r.dropTrial(t.Key)
			return
		}
		if isDiskFault(result.fault) {
			r.dropTrial(t.Key)
			r.stopBatch(fmt.Errorf("%s: %w", t.Key.Describe(), result.fault))
			return
		}
		if result.Outcome == Infrastructure {
			faults = append(faults, Fault{result.Class, result.Cause})
		}
		if result.Outcome == Infrastructure && result.Class != ProviderAuth && try < r.Retries { // a key does not get better
			spent = addUsage(spent, result.Usage)
			select {
			case <-time.After(delay << try):
				continue
			case <-ctx.Done():
				r.dropTrial(t.Key)
				return
			}
		}
		result.Key, result.Checksum, result.Faults = t.Key, t.Definition.Checksum, faults
		result.Started, result.Finished = began.UTC(), began.Add(time.Since(began)).UTC() // whatever the clock did meanwhile
		if try > 0 && result.Model != "" {
			result.setUsage(addUsage(spent, result.Usage))
		}
		r.finishTrial(result)
		return
	}
}

// isDiskFault reports whether an error is a disk that takes no more data. It is no fault of
// one trial: each would fail, and be counted as if it had been tried.
func isDiskFault(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO)
}

// addUsage adds what two tries used. An unknown cost counts as nothing where the other one
// is known.
func addUsage(a, b limits.Usage) limits.Usage {
	switch {
	case a == (limits.Usage{}):
		return b
	case b == (limits.Usage{}):
		return a
	}
	return a.Plus(b)
}

func (r *run) finishTrial(result Result) {
	if err := r.Ledger.Finish(result); err != nil {
		r.stopBatch(err)
		return
	}
	r.mu.Lock()
	r.cost += result.Ending().CostMicroUSD
	r.ran++
	r.mu.Unlock()
	if r.OnResult != nil {
		r.OnResult(result)
	}
}

// dropTrial drops a trial that was stopped.
func (r *run) dropTrial(k Key) {
	err := r.Ledger.Drop(k)
	r.mu.Lock()
	r.cancelled = append(r.cancelled, k)
	r.mu.Unlock()
	if err != nil {
		r.stopBatch(err)
	}
}

// stopBatch ends the batch.
func (r *run) stopBatch(err error) {
	r.mu.Lock()
	r.err = errors.Join(r.err, err)
	r.mu.Unlock()
	r.stop(err)
}
