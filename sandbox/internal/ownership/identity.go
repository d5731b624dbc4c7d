package ownership

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
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

// processFate asks the kernel first: with hidepid, the process of another user
// has no directory in /proc but kill(2) returns EPERM.
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
		// Killed and not yet waited for. A Go program's first thread ends with
		// the process only, so that a zombie holds nothing any more.
		return Dead
	}
	return Alive
}

// The labels of a container. Their prefix is the project's name reversed, as
// Docker's guidelines for labels demand.
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
// one are not touched.
const schemaVersion = "1"

// Labels returns the owner and the session as labels of a container.
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
// labels of another schema and for labels that Labels can't have written: such
// a container has no known owner and is left alone.
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

// instanceFile contains the random part of an instance ID.
const instanceFile = "instance"

// Instance returns the ID of a state directory on this machine, and creates it
// at the first call. It is a hash of a random number in the directory and of
// the machine's own ID, so that a home directory on a network file system has a
// different one on each machine. The directory must exist and belong to the
// caller alone (see [state.CheckDir]).
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

// makeSeed writes a new seed, or returns that of another process that was
// first: link(2) fails on an existing name, and shows whole files only.
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
	defer func() { _ = root.Remove(temp) }() // a file that stays does no harm
	if err := root.Link(temp, instanceFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return readSeed(root)
}

// machineID returns text that distinguishes this machine from others that share
// a home directory.
func machineID() string {
	for _, name := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if data, err := os.ReadFile(filepath.Clean(name)); err == nil && len(data) > 0 {
			return strings.TrimSpace(string(data))
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
