package batch

import (
	"context"
	"fmt"
	"math"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/caisson-run/caisson/runner/batch/task"
)

// Capacity bounds what all of a process's trials use together. Zero fields are no
// bound.
type Capacity struct {
	// Trials is the number of concurrent trials.
	Trials                               int
	MemoryBytes, MilliCPUs, StorageBytes int64
}

// CapacityError reports a task that needs more than the machine has.
type CapacityError struct {
	// Kind is memory or storage.
	Kind       string
	Need, Have int64 // bytes
}

func (e *CapacityError) Error() string {
	return fmt.Sprintf("it needs %d MiB of %s, and there are %d MiB", e.Need>>20, e.Kind, e.Have>>20)
}

// Check returns a [CapacityError] if an environment never fits. An environment that
// wants too many processors gets all there are.
func (c Capacity) Check(e task.Environment) error {
	switch {
	case c.MemoryBytes > 0 && e.MemoryBytes > c.MemoryBytes:
		return &CapacityError{"memory", e.MemoryBytes, c.MemoryBytes}
	case c.StorageBytes > 0 && e.StorageBytes > c.StorageBytes:
		return &CapacityError{"storage", e.StorageBytes, c.StorageBytes}
	}
	return nil
}

// Admission admits trials while all fit. Use [NewAdmission]. It is safe for concurrent
// use.
type Admission struct {
	capacity Capacity
	pools    [4]*semaphore.Weighted // in the order of shares
}

// shares returns what counts against each bound.
func (c Capacity) shares() [4]int64 {
	return [4]int64{int64(c.Trials), c.MemoryBytes, c.MilliCPUs, c.StorageBytes}
}

// NewAdmission returns an Admission without trials.
func NewAdmission(c Capacity) *Admission {
	a := &Admission{capacity: c}
	for i, bound := range c.shares() {
		if bound <= 0 {
			bound = math.MaxInt64
		}
		a.pools[i] = semaphore.NewWeighted(bound)
	}
	return a
}

// Acquire waits until a trial fits and returns the function that releases its share.
// Only one caller may wait at a time, so that none is overtaken.
func (a *Admission) Acquire(ctx context.Context, e task.Environment) (release func(), err error) {
	need := Capacity{Trials: 1, MemoryBytes: e.MemoryBytes, MilliCPUs: e.MilliCPUs, StorageBytes: e.StorageBytes}
	if a.capacity.MilliCPUs > 0 {
		need.MilliCPUs = min(need.MilliCPUs, a.capacity.MilliCPUs)
	}
	shares, taken := need.shares(), 0
	release = sync.OnceFunc(func() {
		for i, share := range shares[:taken] {
			a.pools[i].Release(share)
		}
	})
	for i, share := range shares {
		if a.pools[i].Acquire(ctx, share) != nil {
			release()
			return nil, context.Cause(ctx)
		}
		taken++
	}
	return release, nil
}
