package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
)

// Memory is the machine's memory, in bytes.
type Memory struct{ Total, Available int64 }

const (
	// A sandbox is expected to use its limit divided by limitDivisor. Limits
	// are ceilings that let a build fit; an idle sandbox uses 1 to 17 MB. If
	// all sandboxes reach their limits at once, the kernel enforces them.
	limitDivisor = 8
	// minExpected is what a sandbox with a small command is expected to use.
	minExpected = 64 << 20
	// Everything else gets the machine's memory divided by reserveDivisor, and
	// at least minReserve.
	minReserve     = 512 << 20
	reserveDivisor = 16
)

func expectedUse(limit int64) int64 { return min(limit, max(limit/limitDivisor, minExpected)) }

// reserveMemory reserves memory for the sandbox, or returns the reason to wait.
// It never refuses the only sandbox, since no other could free memory.
func (a *acquisition) reserveMemory(ctx context.Context) (reason string, err error) {
	s := a.semaphore
	if s.opts.Memory == nil {
		return "", nil
	}
	memory, err := s.opts.Memory()
	if err != nil || memory.Total == 0 {
		return "", err
	}
	lock, err := state.Acquire(ctx, s.file("memory.lock"), state.Forever)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Release() }() // the lock ends with the process at the latest
	free, sum, count, err := s.sumReservations()
	if err != nil {
		return "", err
	}
	defer func() {
		if a.lease.memory == nil {
			_ = free.Release() // not needed
		}
	}()
	need := expectedUse(a.request.MemoryBytes)
	reserve := max(memory.Total/reserveDivisor, minReserve)
	switch {
	case count == 0:
	case sum+need > memory.Total-reserve:
		return fmt.Sprintf("for memory: %d sandboxes run, for which %s of this machine's %s are set aside", count, limits.FormatSize(sum), limits.FormatSize(memory.Total)), nil
	case memory.Available < reserve+need:
		return fmt.Sprintf("for memory: %s are to be available and %d other sandboxes run", limits.FormatSize(reserve+need), count), nil
	}
	if err := os.WriteFile(free.Path(), []byte(strconv.FormatInt(need, 10)+"\n"), 0o600); err != nil {
		return "", err
	}
	a.lease.memory = free
	return "", nil
}

// sumReservations returns the sum and the number of held reservations, and the
// lock of the first free one, which was never used or lost its holder. The
// caller must hold memory.lock.
func (s *Semaphore) sumReservations() (free *state.Lock, sum int64, count int, err error) {
	for n := 0; ; n++ {
		path := s.file(fmt.Sprintf("%d.memory", n))
		_, missing := os.Stat(path)
		if free != nil && missing != nil {
			return free, sum, count, nil // no later file has been used
		}
		switch lock, err := state.TryAcquire(path); {
		case err == nil && free == nil:
			free = lock
		case err == nil:
			_ = lock.Release() // it was only probed
		case !errors.Is(err, state.ErrHeld):
			_ = free.Release() // the error counts
			return nil, 0, 0, err
		default:
			if data, err := os.ReadFile(path); err == nil {
				bytes, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
				sum += max(bytes, 0)
				count++
			}
		}
	}
}

// ReadMemory returns this machine's memory: MemTotal and MemAvailable in
// /proc/meminfo, see proc(5).
func ReadMemory() (Memory, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("read the machine's memory: %w", err)
	}
	return parseMemory(string(data))
}

func parseMemory(text string) (m Memory, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		target := map[string]*int64{"MemTotal": &m.Total, "MemAvailable": &m.Available}[name]
		if target == nil {
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("read the machine's memory: %s: %w", name, err)
		}
		*target = kb << 10
	}
	if m.Total <= 0 || m.Available <= 0 {
		return Memory{}, fmt.Errorf("read the machine's memory: no MemTotal or MemAvailable")
	}
	return m, nil
}
