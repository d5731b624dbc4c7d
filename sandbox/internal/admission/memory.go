package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Memory is the machine's, in bytes.
type Memory struct{ Total, Available int64 }

const (
	// limitDivisor is the part of its limit that a sandbox is expected to use: limits
	// are ceilings, set so that a build fits, and an idle sandbox uses 1 to 17
	// MB. Where all go to their limits at once the kernel's limits decide.
	limitDivisor = 8
	// minExpected is what any sandbox is expected to use with a small command.
	minExpected = 64 << 20
	// minReserve is left to everything else: a sixteenth of the machine, but at
	// least this.
	minReserve     = 512 << 20
	reserveDivisor = 16
)

// expectedUse is what a sandbox with a limit is counted as.
func expectedUse(limit int64) int64 { return min(limit, max(limit/limitDivisor, minExpected)) }

// reserveMemory takes memory for the sandbox, or says why it has to wait. A sandbox
// that is alone is never refused: nobody would give memory back.
func (a *acquisition) reserveMemory(ctx context.Context) (reason string, err error) {
	s := a.semaphore
	if s.opts.Memory == nil {
		return "", nil
	}
	memory, err := s.opts.Memory()
	if err != nil || memory.Total == 0 {
		return "", err
	}
	lock := s.newLock("leases.lock") // held for a millisecond
	defer lock.Close()
	if _, err := lock.TryLockContext(ctx, time.Millisecond); err != nil {
		return "", errors.Join(context.Cause(ctx), err)
	}
	free, sum, count, err := s.sumReservations()
	if err != nil {
		return "", err
	}
	defer func() {
		if a.lease.memory == nil {
			_ = free.Close() // not used
		}
	}()
	need := expectedUse(a.request.MemoryBytes)
	reserve := max(memory.Total/reserveDivisor, minReserve)
	switch {
	case count == 0:
	case sum+need > memory.Total-reserve:
		return fmt.Sprintf("for memory: %d sandboxes run, for which %s of this machine's %s are set aside", count, formatSize(sum), formatSize(memory.Total)), nil
	case memory.Available < reserve+need:
		return fmt.Sprintf("for memory: %s are to be available and %d other sandboxes run", formatSize(reserve+need), count), nil
	}
	if err := os.WriteFile(free.Path(), []byte(strconv.FormatInt(need, 10)+"\n"), 0o600); err != nil {
		return "", err
	}
	a.lease.memory = free
	return "", nil
}

// sumReservations adds up what lives, and takes the first lease that is free: one that
// was never used, or whose holder is gone. Only one process does so at a time.
func (s *Semaphore) sumReservations() (free *flock.Flock, sum int64, count int, err error) {
	for n := 0; ; n++ {
		lock := s.newLock(fmt.Sprintf("%d.lease", n))
		_, missing := os.Stat(lock.Path())
		if free != nil && missing != nil {
			return free, sum, count, nil // none has been used beyond it
		}
		ours, err := lock.TryLock()
		if ours && free == nil {
			free = lock
			continue
		}
		_ = lock.Close() // it was only probed
		if err != nil {
			if free != nil {
				_ = free.Close() // the error counts
			}
			return nil, 0, 0, err
		}
		if ours {
			continue
		}
		if data, err := os.ReadFile(lock.Path()); err == nil {
			bytes, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
			sum += max(bytes, 0)
			count++
		}
	}
}

// formatSize is for people.
func formatSize(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
