package admission

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
)

// tryLock takes the lock on a file, and writes the PID of this process into the file. It
// returns nil if another process holds the lock.
func tryLock(path string) (*state.Lock, error) {
	lock, err := state.TryAcquire(path)
	if errors.Is(err, state.ErrHeld) {
		return nil, nil
	}
	if err == nil {
		err = writePID(path)
	}
	if err != nil {
		_ = lock.Release() // the error counts
		return nil, err
	}
	return lock, nil
}

// writePID writes this process's PID over the content of a file. It does not
// truncate the file: some file systems then write it out at once, which takes
// longer than everything else.
func writePID(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%-10d\n", os.Getpid())
	return errors.Join(err, f.Close())
}

// holderStopped reports whether the process that holds a lock is stopped, for
// instance by Ctrl-Z. Such a process keeps its locks and makes no progress. The
// PID in the file may belong to another process, if it is outdated or from
// another PID namespace. A wrong result only affects the order of starts, never
// the bound on memory.
func holderStopped(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return err == nil && pid > 0 && pid != os.Getpid() && isStopped(pid)
}
