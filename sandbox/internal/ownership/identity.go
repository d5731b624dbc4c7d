package ownership

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Identity names one Caisson process, across restarts of processes and of the
// machine. It is a value; the zero value owns nothing and is [Unknown].
type Identity struct {
	// Instance is the id of the state folder on its machine; see [Instance].
	Instance string `json:"instance"`
	// Boot is /proc/sys/kernel/random/boot_id, "" where the system has none.
	Boot string `json:"boot_id"`
	// PIDNamespace is what /proc/self/ns/pid names, such as "pid:[4026531836]":
	// a pid means nothing outside it. "" where the system has none.
	PIDNamespace string `json:"pid_namespace"`
	// PID and Start are the process and field 22 of its /proc/PID/stat (clock
	// ticks since boot, proc(5)), which tells it from a later process with the
	// same number. Start is 0 where the system does not say.
	PID   int    `json:"pid"`
	Start uint64 `json:"start_time"`
	// Lease is the time after which an owner whose fate can't be told (another
	// machine, another PID namespace) no longer protects what is stopped.
	Lease time.Time `json:"lease"`
}

// LeaseTime is how long an owner that this process can't observe keeps its
// stopped containers. A day is longer than any session that we know of, and
// what a lease protects is stopped, so it costs disk and no CPU. Nobody renews
// a lease: what runs needs none (its guest ends with its owner), and a container
// is stopped for good.
const LeaseTime = 24 * time.Hour

// Renewed is the identity with a lease that begins now: for what a process
// makes long after it began.
func (id Identity) WithNewLease() Identity {
	id.Lease = time.Now().Add(LeaseTime).UTC().Truncate(time.Second)
	return id
}

// Fate is what can be told of an owner.
type Fate int

// The fates. Only what belongs to the [Dead] is removed without more ado.
const (
	Unknown Fate = iota // it lives where this process can't look
	Alive               // the process exists and is the same one
	Dead                // the process is gone, its number reused, or the machine restarted
)

// String gives the word.
func (f Fate) String() string {
	switch f {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	default:
		return "unknown"
	}
}

// Self returns the identity of this process. instance is what [Instance]
// returned for the state folder.
func Self(instance string) (Identity, error) {
	if !isPlainWord(instance) {
		return Identity{}, fmt.Errorf("identify owner: instance %q is not 1 to 64 letters, digits, '_' or '-'", instance)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return Identity{}, fmt.Errorf("identify owner: %w", err)
	}
	return Identity{
		Instance:     instance,
		Boot:         bootID(),
		PIDNamespace: pidNamespace(),
		PID:          os.Getpid(),
		Start:        start,
	}.WithNewLease(), nil
}

// Fate says whether the owner still runs. instance is this process's own (see
// [Instance]), or "". It errs on the side of the living: [Dead] is returned
// only where the system said so.
func (id Identity) Fate(instance string) Fate {
	switch {
	case id.PID <= 0:
		return Unknown
	case id.Boot != bootID():
		// The same state folder on the same machine: it was restarted. Any
		// other may be another machine that shares the engine.
		if id.Instance != "" && id.Instance == instance {
			return Dead
		}
		return Unknown
	case id.PIDNamespace != pidNamespace():
		return Unknown
	}
	return processFate(id.PID, id.Start)
}

// Alive reports whether the owner must be left alone: it is alive, or nothing
// can be told of it.
func (id Identity) Alive() bool { return id.Fate("") != Dead }

// Expired says that the lease is over, by the wall clock.
func (id Identity) Expired(now time.Time) bool { return now.After(id.Lease) }

// String is for people: "pid 4711 (started 123456)".
func (id Identity) String() string {
	return fmt.Sprintf("pid %d (started %d)", id.PID, id.Start)
}

// parseStat returns the state letter and the start time from the text of
// /proc/PID/stat. The second field is the program's name in parentheses and
// may hold anything, so that fields are counted from the last one.
func parseStat(text string) (state byte, start uint64, err error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return 0, 0, errors.New("parse process stat: no program name")
	}
	fields := strings.Fields(text[end+1:])
	const stateField, startField = 0, 19 // 3 and 22 in proc(5), which counts from 1; two are cut off
	if len(fields) <= startField || len(fields[stateField]) != 1 {
		return 0, 0, fmt.Errorf("parse process stat: %d fields after the name", len(fields))
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("parse process stat: start time: %w", err)
	}
	return fields[stateField][0], start, nil
}

// validWord says that s is safe in a file name, a label and a log line.
func isPlainWord(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
