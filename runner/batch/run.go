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

// RunTrial runs one trial, writes its files to dir, and returns its result. [Run] sets
// the fields that identify the trial, and its times. Budget bounds the trial's cost
// unless it is nil. If ctx ends, RunTrial returns soon, and its result doesn't count.
type RunTrial func(ctx context.Context, t Trial, dir string, budget *int64) Result

// Options configures [Run].
type Options struct {
	Ledger *Ledger
	Trials []Trial
	// Run runs each trial. It is called concurrently.
	Run      RunTrial
	Capacity Capacity
	// MaxCostMicroUSD bounds the cost of all the ledger's trials; 0 is no bound. Each
	// attempt may cost what is left when it starts, and none starts once nothing is
	// left.
	MaxCostMicroUSD int64
	// Retries bounds the retries after infrastructure faults.
	Retries int
	// RetryDelay is the time before the first retry, and doubles with each. Zero means
	// a second.
	RetryDelay time.Duration
	// OnStart and OnResult are called when a trial starts and when it has a result,
	// concurrently. They must return at once, and may be nil.
	OnStart  func(k Key)
	OnResult func(r Result)
}

// Totals counts the trials of a [Run].
type Totals struct {
	// Kept counts trials that already had a result, and Ran those that got one.
	Kept, Ran int
	// NotRun are the trials without a result, because of Reached or because ctx ended.
	NotRun []Key
	// Reached describes the limit on all trials together that was reached, or is "".
	Reached string
}

// Run runs the trials without a result. It returns when all have one, when a limit on
// all trials together is reached, or when ctx has ended and running trials were
// stopped. The error comes from the ledger, or is an [EndError].
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
	totals.Ran = r.ran
	totals.NotRun = append(r.cancelled, totals.NotRun...)
	totals.Reached = r.reached
	return totals, r.err
}

type run struct {
	Options
	admission *Admission
	stop      context.CancelCauseFunc
	running   sync.WaitGroup

	mu        sync.Mutex
	cost      int64 // of all attempts, in millionths of a dollar
	reached   string
	ran       int
	cancelled []Key
	err       error
}

// costLeft returns what the next attempt may cost (nil for no bound), and whether it
// may start.
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

// DescribeCost returns [Totals].Reached for a cost bound.
func DescribeCost(maxMicroUSD int64) string {
	return fmt.Sprintf("all trials together may cost %s US dollars", record.CostUSD(&maxMicroUSD))
}

// runTrial tries a trial until its result is not an infrastructure fault, or no retry
// is left.
func (r *run) runTrial(ctx context.Context, t Trial) {
	if r.OnStart != nil {
		r.OnStart(t.Key)
	}
	began, delay := time.Now(), cmp.Or(r.RetryDelay, time.Second)
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
		result.Key = t.Key
		result.Checksum = t.Definition.Checksum
		result.Faults = faults
		result.Started, result.Finished = began.UTC(), began.Add(time.Since(began)).UTC() // whatever the clock did meanwhile
		if try > 0 && spent != (limits.Usage{}) {
			result.setUsage(spent)
		}
		r.finishTrial(result)
		return
	}
}

// addTry adds an attempt's cost. If a limit on all trials together ended it, no other
// trial starts.
func (r *run) addTry(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cost += result.Ending().CostMicroUSD
	if result.Outcome == NotRun {
		r.reached = cmp.Or(r.reached, result.Cause)
	}
}

// EndError is a trial's fault that would affect every other trial too, such as a full
// disk, a refused key or a reached ceiling. It ends the batch. The trial has no result.
type EndError struct {
	Key   Key
	Class Class
	Err   error
}

func (e *EndError) Error() string { return e.Key.Describe() + ": " + e.Err.Error() }

func (e *EndError) Unwrap() error { return e.Err }

// endsBatch reports whether every other trial would fail in the same way.
func (r Result) endsBatch() bool {
	return r.Class == ProviderAuth || r.Class == Ceiling || isDiskFault(r.fault)
}

// isDiskFault reports whether err means that a disk takes no more data.
func isDiskFault(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO)
}

// addUsage adds two attempts' usage. An empty usage adds nothing; otherwise the cost is
// known only if both are.
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

func (r *run) stopBatch(err error) {
	r.mu.Lock()
	r.err = errors.Join(r.err, err)
	r.mu.Unlock()
	r.stop(err)
}
