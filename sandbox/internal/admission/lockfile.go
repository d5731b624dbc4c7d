package admission

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// tryLock takes a lock if it is free, and writes the PID of this process into
// its file. It reports whether it took the lock.
func tryLock(lock *flock.Flock) (bool, error) {
	ok, err := lock.TryLock()
	if !ok || err != nil {
		return false, err
	}
	if err := writePID(lock.Path()); err != nil {
		_ = lock.Close() // the error counts
		return false, err
	}
	return true, nil
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
func holderStopped(lock *flock.Flock) bool {
	data, err := os.ReadFile(lock.Path())
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return err == nil && pid > 0 && pid != os.Getpid() && isStopped(pid)
}
