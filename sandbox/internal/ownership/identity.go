package ownership

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits/state"
)

// Identity identifies one Caisson process across restarts of processes and the
// machine. The zero value's fate is [Unknown].
type Identity struct {
	// Instance is the state directory's ID on its machine; see [Instance].
	Instance string `json:"instance"`
	// Boot is the content of /proc/sys/kernel/random/boot_id, or "".
	Boot string `json:"boot_id"`
	// PIDNamespace is the target of /proc/self/ns/pid, such as
	// "pid:[4026531836]", or "". A PID has no meaning outside its namespace.
	PIDNamespace string `json:"pid_namespace"`
	// PID and Start are the process and field 22 of its /proc/PID/stat (clock
	// ticks since boot, proc(5)). A later process with the same PID has another
	// Start.
	PID   int    `json:"pid"`
	Start uint64 `json:"start_time"`
	// Lease is when an owner whose fate is unknown (another machine or PID
	// namespace) stops protecting its stopped containers.
	Lease time.Time `json:"lease"`
}

// LeaseTime is how long an owner that this process can't observe keeps its
// stopped containers. A day is longer than any known session, and a stopped
// container costs only disk. Leases are not renewed: a running container's
// guest ends with its owner, and a stopped container never runs again.
const LeaseTime = 24 * time.Hour

// WithNewLease returns the identity with a lease that begins now, for things
// made long after the process started.
func (id Identity) WithNewLease() Identity {
	id.Lease = time.Now().Add(LeaseTime).UTC().Truncate(time.Second)
	return id
}

// Fate is what is known about an owner's state.
type Fate int

// Only the property of [Dead] owners is removed without further conditions.
const (
	Unknown Fate = iota // the process can't be seen from here
	Alive               // the process exists and is the same one
	Dead                // the process is gone, its PID reused, or the machine restarted
)

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

// Self returns the identity of this process. instance is the state directory's
// [Instance].
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

// Fate returns whether the owner still runs. instance is this process's
// [Instance] or "". Fate returns [Dead] only if the system proves it, and
// [Unknown] in doubt.
func (id Identity) Fate(instance string) Fate {
	switch {
	case id.PID <= 0:
		return Unknown
	case id.Boot != state.BootID():
		// The same state directory and machine: it was restarted. Another one
		// may be another machine that shares the engine.
		if id.Instance != "" && id.Instance == instance {
			return Dead
		}
		return Unknown
	case id.PIDNamespace != pidNamespace():
		return Unknown
	}
	return processFate(id.PID, id.Start)
}

// Expired reports whether the lease is over, by the wall clock.
func (id Identity) Expired(now time.Time) bool { return now.After(id.Lease) }

func (id Identity) String() string {
	return fmt.Sprintf("pid %d (started %d)", id.PID, id.Start)
}

// parseStat returns the state letter and start time in the text of
// /proc/PID/stat. The second field, the program's name in parentheses, may
// contain anything, so it counts fields from the last parenthesis.
func parseStat(text string) (state byte, start uint64, err error) {
	end := strings.LastIndexByte(text, ')')
	if end < 0 {
		return 0, 0, errors.New("parse process stat: no program name")
	}
	fields := strings.Fields(text[end+1:])
	const stateField, startField = 0, 19 // 3 and 22 in proc(5), which counts from 1, less the two before
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

func pidNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid") // "" without /proc
	return name
}

func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, start, err := parseStat(string(data))
	return start, err
}

// processFate first asks kill(2), which returns EPERM for another user's
// process even if hidepid hides it in /proc.
func processFate(pid int, start uint64) Fate {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return Dead
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Unknown
	}
	state, now, err := parseStat(string(data))
	switch {
	case err != nil:
		return Unknown
	case now != start:
		return Dead
	case state == 'Z' || state == 'X':
		// Killed and not yet waited for. A Go program's first thread ends only
		// with the process, so a zombie holds nothing any more.
		return Dead
	}
	return Alive
}

// A container's labels. Their prefix is a reversed domain name, as Docker's
// guidelines for labels demand.
const (
	LabelSchema       = "io.caisson.schema"
	LabelSession      = "io.caisson.session"
	LabelInstance     = "io.caisson.instance"
	LabelBoot         = "io.caisson.boot"
	LabelPIDNamespace = "io.caisson.pidns"
	LabelPID          = "io.caisson.pid"
	LabelStart        = "io.caisson.start"
	LabelLease        = "io.caisson.lease"
)

// schemaVersion is the version of the set of labels. Containers with another
// one are left alone.
const schemaVersion = "1"

// Labels returns a container's labels for the owner and the session.
func (id Identity) Labels(session string) map[string]string {
	return map[string]string{
		LabelSchema:       schemaVersion,
		LabelSession:      session,
		LabelInstance:     id.Instance,
		LabelBoot:         id.Boot,
		LabelPIDNamespace: id.PIDNamespace,
		LabelPID:          strconv.Itoa(id.PID),
		LabelStart:        strconv.FormatUint(id.Start, 10),
		LabelLease:        id.Lease.UTC().Format(time.RFC3339),
	}
}

// FromLabels is the inverse of [Identity.Labels]. It returns an error for
// another schema and for labels that Labels can't have written: such a
// container has no known owner and is left alone.
func FromLabels(labels map[string]string) (id Identity, session string, err error) {
	if v := labels[LabelSchema]; v != schemaVersion {
		return Identity{}, "", fmt.Errorf("parse owner labels: schema %q is not %q", v, schemaVersion)
	}
	session = labels[LabelSession]
	if !isPlainWord(session) {
		return Identity{}, "", fmt.Errorf("parse owner labels: session %q", session)
	}
	id = Identity{
		Instance:     labels[LabelInstance],
		Boot:         labels[LabelBoot],
		PIDNamespace: labels[LabelPIDNamespace],
	}
	if id.PID, err = strconv.Atoi(labels[LabelPID]); err != nil || id.PID <= 0 {
		return Identity{}, "", fmt.Errorf("parse owner labels: pid %q", labels[LabelPID])
	}
	if id.Start, err = strconv.ParseUint(labels[LabelStart], 10, 64); err != nil {
		return Identity{}, "", fmt.Errorf("parse owner labels: start time: %w", err)
	}
	if id.Lease, err = time.Parse(time.RFC3339, labels[LabelLease]); err != nil {
		return Identity{}, "", fmt.Errorf("parse owner labels: lease: %w", err)
	}
	return id, session, nil
}

const instanceFile = "instance"

// Instance returns the ID of a state directory on this machine, which the first
// call creates. It is a hash of a random number in the directory and of the
// machine's own ID, so a home directory on a network file system has a
// different one on each machine. The directory must be safe for
// [state.OpenDir].
func Instance(stateDir string) (string, error) {
	root, err := state.OpenDir(stateDir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	seed, err := readSeed(root)
	if errors.Is(err, fs.ErrNotExist) {
		seed, err = makeSeed(root)
	}
	if err != nil {
		return "", fmt.Errorf("read instance id in %s: %w", stateDir, err)
	}
	sum := sha256.Sum256([]byte(seed + "\x00" + machineID()))
	return hex.EncodeToString(sum[:16]), nil
}

func readSeed(root *os.Root) (string, error) {
	data, err := root.ReadFile(instanceFile)
	if err != nil {
		return "", err
	}
	seed := strings.TrimSpace(string(data))
	if len(seed) != 32 || !isPlainWord(seed) {
		return "", fmt.Errorf("file %q is damaged: remove it", instanceFile)
	}
	return seed, nil
}

// makeSeed writes a new seed, or returns the seed of another process that was
// first: link(2) fails if the name exists, and shows only whole files.
func makeSeed(root *os.Root) (string, error) {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	seed := hex.EncodeToString(raw)
	temp := "." + instanceFile + "-" + seed
	if err := root.WriteFile(temp, []byte(seed+"\n"), 0o600); err != nil {
		return "", err
	}
	defer func() { _ = root.Remove(temp) }() // if it stays, it does no harm
	if err := root.Link(temp, instanceFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readSeed(root)
}

// machineID returns text that distinguishes machines that share a home
// directory.
func machineID() string {
	for _, name := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if data, err := os.ReadFile(name); err == nil && len(data) > 0 {
			return strings.TrimSpace(string(data))
		}
	}
	name, _ := os.Hostname() // "" if it is not known
	return name
}
