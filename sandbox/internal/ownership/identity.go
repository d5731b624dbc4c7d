package ownership

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

// Identity identifies one Caisson process, across restarts of processes and of
// the machine. Its zero value owns nothing, and its fate is [Unknown].
type Identity struct {
	// Instance is the ID of the state directory on its machine; see [Instance].
	Instance string `json:"instance"`
	// Boot is the content of /proc/sys/kernel/random/boot_id, or "" on a system
	// without one.
	Boot string `json:"boot_id"`
	// PIDNamespace is the target of /proc/self/ns/pid, such as
	// "pid:[4026531836]", or "" on a system without one. A PID has no meaning
	// outside its namespace.
	PIDNamespace string `json:"pid_namespace"`
	// PID and Start are the process and field 22 of its /proc/PID/stat (clock
	// ticks since boot, proc(5)), which distinguishes it from a later process
	// with the same PID. Start is 0 if it is unknown.
	PID   int    `json:"pid"`
	Start uint64 `json:"start_time"`
	// Lease is the time after which an owner whose fate is unknown (another
	// machine, another PID namespace) no longer protects stopped containers.
	Lease time.Time `json:"lease"`
}

// LeaseTime is the time for which an owner that this process can't observe
// keeps its stopped containers. A day is longer than any known session, and a
// stopped container costs disk but no CPU. Leases are not renewed: a running
// container needs none, because its guest ends with its owner, and a container
// that stopped never runs again.
const LeaseTime = 24 * time.Hour

// WithNewLease returns the identity with a lease that begins now, for what a
// process makes long after its start.
func (id Identity) WithNewLease() Identity {
	id.Lease = time.Now().Add(LeaseTime).UTC().Truncate(time.Second)
	return id
}

// Fate is the state of an owner as far as it is known.
type Fate int

// The fates. Only what belongs to the [Dead] is removed without more ado.
const (
	Unknown Fate = iota // the process can't be seen from here
	Alive               // the process exists and is the same one
	Dead                // the process is gone, its number reused, or the machine restarted
)

// String returns "alive", "dead" or "unknown".
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

// Self returns the identity of this process. The instance is the result of
// [Instance] for the state directory.
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
		Boot:         state.BootID(),
		PIDNamespace: pidNamespace(),
		PID:          os.Getpid(),
		Start:        start,
	}.WithNewLease(), nil
}

// Fate returns whether the owner still runs. The instance is this process's own
// (see [Instance]) or "". Fate returns [Dead] only if the system reports it.
func (id Identity) Fate(instance string) Fate {
	switch {
	case id.PID <= 0:
		return Unknown
	case id.Boot != state.BootID():
		// The same state directory on the same machine: it was restarted. Any
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

// Alive reports whether the owner must be left alone: it is alive, or its fate
// is unknown.
func (id Identity) Alive() bool { return id.Fate("") != Dead }

// Expired reports whether the lease is over, by the wall clock.
func (id Identity) Expired(now time.Time) bool { return now.After(id.Lease) }

// String returns text for people: "pid 4711 (started 123456)".
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

// isPlainWord reports whether s is safe in a file name, a label and a log line.
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
