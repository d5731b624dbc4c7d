package admission

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

// tryLock takes a lock if it is free, and notes in it who has it.
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

// writePID writes this process's pid, over what is there: to cut a file short makes
// some file systems write it out, which takes longer than all else.
func writePID(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%-10d\n", os.Getpid())
	return errors.Join(err, f.Close())
}

// holderStopped says whether the process that has a lock is stopped, by Ctrl-Z for
// instance: it keeps its locks and gets nowhere. Where the note is of another
// process, of before or of another PID namespace, the answer is about that one: a
// false one costs the order, never the bound of memory.
func holderStopped(lock *flock.Flock) bool {
	data, err := os.ReadFile(lock.Path())
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	return err == nil && pid > 0 && pid != os.Getpid() && isStopped(pid)
}
