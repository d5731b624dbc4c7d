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
	"github.com/caisson-run/caisson/sandbox"
)

// Memory is the memory of the machine, or of a job that has less, in bytes.
type Memory struct{ Total, Available int64 }

const (
	// A sandbox is expected to use its limit divided by limitDivisor. Limits
	// are ceilings that let a build fit; an idle sandbox uses 1 to 17 MB. If
	// all sandboxes reach their limits at once, the kernel enforces them.
	limitDivisor = 8
	// minExpected is what a sandbox with a small command is expected to use.
	minExpected = 64 << 20
	// Everything else gets the machine's memory divided by reserveDivisor, and
	// at least minReserve, but no more than a part of a small machine or job.
	minReserve        = 512 << 20
	reserveDivisor    = 16
	maxReserveDivisor = 4
)

func expectedUse(limit int64) int64 { return min(limit, max(limit/limitDivisor, minExpected)) }

// Job describes a sandbox that shares the limits of the container job around
// this process, with Caisson and everything else in the job.
type Job struct {
	// Read returns what the job has of the machine's memory, and its threads.
	Read func(machine Memory) (Memory, Threads)
	// MostThreads is how many threads of the machine the sandbox can use, and
	// LeastThreads the fewest that it can do with.
	LeastThreads, MostThreads int64
}

// Threads is a job's limit of processes and threads.
type Threads struct {
	// Limit is 0 if there is none. Used is how many the job has now.
	Limit, Used int64
	// Idle is the least number of threads that a sandbox has; Used includes them.
	Idle int64
}

// spareThreads is for those that Caisson itself still starts.
const spareThreads = 8

// fit returns how many of the job's threads a sandbox may use beside those that
// hold the given reservations, or the reason to wait. If it is the only one, no
// other could free any, so there is an error instead. Without a limit, granted
// is 0.
func (t Threads) fit(j Job, held reservations) (granted int64, reason string, err error) {
	if t.Limit == 0 {
		return 0, "", nil
	}
	others := max(t.Used-held.threadHolders*t.Idle, 0)
	free := t.Limit - others - held.threads - spareThreads
	switch {
	case free >= j.LeastThreads:
		return min(free, j.MostThreads), "", nil
	case held.threadHolders == 0:
		return 0, "", fmt.Errorf("%w: a sandbox needs %d processes and threads, and this job may have %d, of which %d are in use: raise the job's limit (such as docker run --pids-limit)",
			sandbox.ErrUnavailable, j.LeastThreads+spareThreads, t.Limit, t.Used)
	}
	return 0, fmt.Sprintf("for processes: other sandboxes have %d of the %d processes and threads that this job may have; more of them fit if each has a lower limit", held.threads, t.Limit), nil
}

// reserve reserves memory and threads for the sandbox, or returns the reason to
// wait. It never refuses memory to the only sandbox, since no other could free
// any.
func (a *acquisition) reserve(ctx context.Context) (reason string, err error) {
	s := a.semaphore
	if s.opts.Memory == nil {
		return "", nil
	}
	memory, err := s.opts.Memory()
	if err != nil || memory.Total == 0 {
		return "", err
	}
	var threads Threads
	job := a.request.Job
	if job != nil {
		memory, threads = job.Read(memory)
	}
	lock, err := state.Acquire(ctx, s.file("memory.lock"), state.Forever)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Release() }() // the lock ends with the process at the latest
	free, held, err := s.sumReservations()
	if err != nil {
		return "", err
	}
	defer func() {
		if a.lease.memory == nil {
			_ = free.Release() // not needed
		}
	}()
	need := expectedUse(a.request.MemoryBytes)
	reserve := min(max(memory.Total/reserveDivisor, minReserve), memory.Total/maxReserveDivisor)
	switch {
	case held.count == 0:
	case held.memory+need > memory.Total-reserve:
		return fmt.Sprintf("for memory: %d sandboxes run, for which %s of %s are set aside", held.count, limits.FormatSize(held.memory), limits.FormatSize(memory.Total)), nil
	case memory.Available < reserve+need:
		return fmt.Sprintf("for memory: %s are to be available and %d other sandboxes run", limits.FormatSize(reserve+need), held.count), nil
	}
	var granted int64
	if job != nil {
		if granted, reason, err = threads.fit(*job, held); reason != "" || err != nil {
			return reason, err
		}
	}
	if err := os.WriteFile(free.Path(), fmt.Appendf(nil, "%d %d\n", need, granted), 0o600); err != nil {
		return "", err
	}
	a.lease.memory, a.lease.threads = free, granted
	return "", nil
}

// reservations are the sums of the held ones.
type reservations struct {
	memory, threads int64
	count           int
	threadHolders   int64 // those that have threads
}

// add adds a reservation from the content of its file: the bytes and the
// threads, which earlier versions didn't write.
func (r *reservations) add(text string) {
	numbers := append(strings.Fields(text), "", "")
	bytes, _ := strconv.ParseInt(numbers[0], 10, 64)
	threads, _ := strconv.ParseInt(numbers[1], 10, 64)
	r.count++
	r.memory += max(bytes, 0)
	if threads > 0 {
		r.threads += threads
		r.threadHolders++
	}
}

// sumReservations returns the sums of the held reservations, and the lock of the
// first free one, which was never used or lost its holder. The caller must hold
// memory.lock.
func (s *Semaphore) sumReservations() (free *state.Lock, held reservations, err error) {
	for n := 0; ; n++ {
		path := s.file(fmt.Sprintf("%d.memory", n))
		_, missing := os.Stat(path)
		if free != nil && missing != nil {
			return free, held, nil // no later file has been used
		}
		switch lock, err := state.TryAcquire(path); {
		case err == nil && free == nil:
			free = lock
		case err == nil:
			_ = lock.Release() // it was only probed
		case !errors.Is(err, state.ErrHeld):
			_ = free.Release() // the error counts
			return nil, reservations{}, err
		default:
			if data, err := os.ReadFile(path); err == nil {
				held.add(string(data))
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
