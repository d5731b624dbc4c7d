package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
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
	// MaxCostMicroUSD bounds the cost of all trials of the ledger: none starts once it is
	// used up, and each try may cost what is left when it starts. 0 is no bound.
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
	// NotRun are the trials without a result, because of Reached or because ctx ended.
	NotRun []Key
	// Reached describes the limit on all trials together that kept trials from starting or
	// ended one. It is "" if none did.
	Reached string
}

// Run runs the trials that have no result. It returns when all have one, when a limit on all
// trials together is reached, or when ctx has ended and running trials were stopped. The error
// comes from the ledger, or is an [EndError].
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
		_, some := r.costLeft()
		if err == nil && !some {
			release()
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
			r.runTrial(ctx, t)
		})
	}
	r.running.Wait()
	totals.Ran, totals.NotRun, totals.Reached = r.ran, append(r.cancelled, totals.NotRun...), r.reached
	return totals, r.err
}

// run is the state of one call of Run.
type run struct {
	Options
	admission *Admission
	stop      context.CancelCauseFunc
	running   sync.WaitGroup

	mu        sync.Mutex
	cost      int64 // of all tries, in millionths of a dollar
	reached   string
	ran       int
	cancelled []Key
	err       error
}

// costLeft returns what the next try may cost, nil for any, and whether it may start.
func (r *run) costLeft() (*int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.MaxCostMicroUSD == 0 {
		return nil, r.reached == ""
	}
	left := r.MaxCostMicroUSD - r.cost
	if left <= 0 {
		r.reached = cmp.Or(r.reached, DescribeCost(r.MaxCostMicroUSD))
	}
	return &left, r.reached == ""
}

// DescribeCost returns [Totals].Reached for a bound of the cost.
func DescribeCost(maxMicroUSD int64) string {
	return fmt.Sprintf("all trials together may cost %s US dollars", record.CostUSD(&maxMicroUSD))
}

// runTrial runs a trial until it has a result that is not the infrastructure's fault, or
// no try is left.
func (r *run) runTrial(ctx context.Context, t Trial) {
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
		budget, some := r.costLeft()
		if !some {
			r.dropTrial(t.Key, spent)
			return
		}
		dir, err := r.Ledger.Begin(t.Key)
		if err != nil {
			r.stopBatch(err)
			return
		}
		result := r.Run(ctx, t, dir, budget)
		r.addTry(result)
		spent = addUsage(spent, result.Usage)
		if ctx.Err() != nil || result.Outcome == Cancelled || result.Outcome == NotRun {
			r.dropTrial(t.Key, spent)
			return
		}
		if result.endsBatch() {
			r.dropTrial(t.Key, spent)
			r.stopBatch(&EndError{t.Key, result.Class, cmp.Or(result.fault, errors.New(result.Cause))})
			return
		}
		if result.Outcome == Infrastructure {
			faults = append(faults, Fault{result.Class, result.Cause})
		}
		if result.Outcome == Infrastructure && try < r.Retries {
			select {
			case <-time.After(delay << try):
				continue
			case <-ctx.Done():
				r.dropTrial(t.Key, spent)
				return
			}
		}
		result.Key, result.Checksum, result.Faults = t.Key, t.Definition.Checksum, faults
		result.Started, result.Finished = began.UTC(), began.Add(time.Since(began)).UTC() // whatever the clock did meanwhile
		if try > 0 && result.Model != "" {
			result.setUsage(spent)
		}
		r.finishTrial(result)
		return
	}
}

// addTry adds the cost of a try. If a limit on all trials together ended the try, no other
// trial starts.
func (r *run) addTry(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cost += result.Ending().CostMicroUSD
	if result.Outcome == NotRun {
		r.reached = cmp.Or(r.reached, result.Cause)
	}
}

// EndError is a fault of one trial that would affect every other trial too: the disk is full,
// the provider refuses the key, or a ceiling is reached. It ends the batch. The trial has no
// result.
type EndError struct {
	Key   Key
	Class Class
	Err   error
}

// Error names the trial.
func (e *EndError) Error() string { return e.Key.Describe() + ": " + e.Err.Error() }

// Unwrap returns the fault.
func (e *EndError) Unwrap() error { return e.Err }

// endsBatch reports whether every other trial would fail as this one did.
func (r Result) endsBatch() bool {
	return r.Class == ProviderAuth || r.Class == Ceiling || isDiskFault(r.fault)
}

// isDiskFault reports whether an error means that a disk takes no more data.
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
	r.ran++
	r.mu.Unlock()
	if r.OnResult != nil {
		r.OnResult(result)
	}
}

// dropTrial drops a trial that was stopped, but keeps its cost.
func (r *run) dropTrial(k Key, spent limits.Usage) {
	err := r.Ledger.Drop(k, Result{Usage: spent}.Ending().CostMicroUSD)
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
