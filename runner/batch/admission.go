package batch

import (
	"context"
	"fmt"
	"sync"

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

	mu   sync.Mutex
	used Capacity
	// freed is closed and replaced whenever a trial ends.
	freed chan struct{}
}

// NewAdmission returns an Admission without trials.
func NewAdmission(c Capacity) *Admission {
	return &Admission{capacity: c, freed: make(chan struct{})}
}

// Acquire waits until a trial fits and returns the function that releases its share.
// Only one caller may wait at a time, so that none is overtaken.
func (a *Admission) Acquire(ctx context.Context, e task.Environment) (release func(), err error) {
	need := Capacity{Trials: 1, MemoryBytes: e.MemoryBytes, MilliCPUs: e.MilliCPUs, StorageBytes: e.StorageBytes}
	if a.capacity.MilliCPUs > 0 {
		need.MilliCPUs = min(need.MilliCPUs, a.capacity.MilliCPUs)
	}
	for {
		if err := context.Cause(ctx); err != nil { // also if something has just become free
			return nil, err
		}
		a.mu.Lock()
		wait := a.freed
		fits := a.isFree(need)
		if fits {
			a.addUse(need, 1)
		}
		a.mu.Unlock()
		if fits {
			return sync.OnceFunc(func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.addUse(need, -1)
				close(a.freed)
				a.freed = make(chan struct{})
			}), nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (a *Admission) isFree(need Capacity) bool {
	within := func(used, need, bound int64) bool { return bound <= 0 || used+need <= bound }
	return within(int64(a.used.Trials), 1, int64(a.capacity.Trials)) && within(a.used.MemoryBytes, need.MemoryBytes, a.capacity.MemoryBytes) &&
		within(a.used.MilliCPUs, need.MilliCPUs, a.capacity.MilliCPUs) && within(a.used.StorageBytes, need.StorageBytes, a.capacity.StorageBytes)
}

func (a *Admission) addUse(need Capacity, sign int64) {
	a.used.Trials += int(sign)
	a.used.MemoryBytes += sign * need.MemoryBytes
	a.used.MilliCPUs += sign * need.MilliCPUs
	a.used.StorageBytes += sign * need.StorageBytes
}
