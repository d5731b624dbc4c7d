package kill

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// process is an entry of /proc, as its status file said a moment ago.
type process struct {
	pid, parent int
	// dead reports that nothing of it runs: a zombie without threads. A leader
	// that left while other threads run is a zombie with threads.
	dead    bool
	stopped bool
	// mortal reports that SIGTERM is neither caught nor ignored nor blocked. It
	// is false in gVisor, which doesn't report it (runsc 20260905).
	mortal bool
	groups []byte // the text of its supplementary groups
	// threads is its number of threads, memory what it has in memory and shares
	// with no file, in bytes, or all it has in memory if the kernel doesn't
	// tell.
	threads int
	memory  int64
}

func (p *process) hasGroup(gid uint32) bool {
	var digits [10]byte
	want := strconv.AppendUint(digits[:0], uint64(gid), 10)
	for field := range bytes.FieldsSeq(p.groups) {
		if bytes.Equal(field, want) {
			return true
		}
	}
	return false
}

// scanBound ends a scan that chases a chain of processes, each of which forks
// the next and ends, with growing pids. A scan of two hundred processes takes 6
// ms, in gVisor 150.
const scanBound = 500 * time.Millisecond

// errUnsteady means that a scan proves nothing: a process ended before it was
// read, and may have left a child.
var errUnsteady = errors.New("processes come and go")

// errChased means that a scan was given up at scanBound.
var errChased = fmt.Errorf("%w without end", errUnsteady)

// scanProcesses visits the processes of a directory like /proc, except self, in
// the order of their pids: processes forked meanwhile mostly come later and are
// met too. A process is valid only during the visit. It returns errUnsteady if
// a process ended before it was read.
func scanProcesses(directory string, self int, visit func(*process)) error {
	text := make([]byte, 4096)
	var unsteady error
	err := listProcesses(directory, self, func(proc, pid int, name string) {
		if p, ok := readStatus(proc, pid, name+"/status", text); ok {
			visit(&p)
		} else {
			unsteady = errUnsteady
		}
	})
	if err != nil {
		return err
	}
	return unsteady
}

// countProcesses returns the number of processes except self, including ended
// ones that were not reaped yet.
func countProcesses(directory string, self int) (n int) {
	_ = listProcesses(directory, self, func(int, int, string) { n++ })
	return n
}

// listProcesses lists the processes of the directory, except self. proc is the
// directory's descriptor.
func listProcesses(directory string, self int, visit func(proc, pid int, name string)) error {
	proc, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	names := make([]byte, 4096)
	for until := time.Now().Add(scanBound); time.Now().Before(until); {
		n, err := unix.Getdents(proc, names)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		_, _, found := unix.ParseDirent(names[:n], -1, nil)
		for _, name := range found {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == self {
				continue
			}
			visit(proc, pid, name)
		}
	}
	return errChased
}

// readStatus reads a status file. It returns false if the process is gone.
func readStatus(dir, pid int, name string, text []byte) (process, bool) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, text)
	if err != nil || n <= 0 {
		return process{}, false
	}
	return parseStatus(pid, text[:n]), true
}

func parseStatus(pid int, status []byte) process {
	p := process{pid: pid, threads: 1}
	zombie := false
	resident, own := int64(0), int64(-1)
	masks, spared := 0, false
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "State":
			zombie = len(value) > 0 && (value[0] == 'Z' || value[0] == 'X')
			p.stopped = len(value) > 0 && value[0] == 'T'
		case "PPid":
			p.parent, _ = strconv.Atoi(string(value))
		case "Groups":
			p.groups = value
		case "Threads":
			p.threads, _ = strconv.Atoi(string(value))
		case "VmRSS":
			resident = parseKilobytes(value)
		case "RssAnon", "RssShmem":
			own = max(own, 0) + parseKilobytes(value)
		case "SigBlk", "SigIgn", "SigCgt":
			mask, err := strconv.ParseUint(string(value), 16, 64)
			masks++
			spared = spared || err != nil || mask&(1<<(unix.SIGTERM-1)) != 0
		}
	}
	p.mortal = masks == 3 && !spared
	p.dead = zombie && p.threads <= 1
	p.memory = resident
	if own >= 0 {
		p.memory = own
	}
	return p
}

// parseKilobytes returns a value such as "12 kB" in bytes.
func parseKilobytes(value []byte) int64 {
	number, _, _ := bytes.Cut(value, []byte(" "))
	n, _ := strconv.ParseInt(string(number), 10, 64)
	return n << 10
}
