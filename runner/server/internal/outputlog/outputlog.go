// Package outputlog keeps the output of commands in files, for readers that
// come late or read slowly. A command never waits for a reader; output that
// can't be kept is counted. It imports only the standard library (rank 0).
package outputlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// Streams is the number of streams of a command: standard output and standard error.
const Streams = 2

// Store keeps the logs of one sandbox in a directory. It is safe for concurrent
// use.
type Store struct {
	dir              string
	perStream, total int64

	mu   sync.Mutex
	used int64
}

// NewStore makes a store's directory. The store keeps the first perStream bytes
// of each stream, and total bytes in all.
func NewStore(dir string, perStream, total int64) (*Store, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make output store: %w", err)
	}
	return &Store{dir: dir, perStream: perStream, total: total}, nil
}

// Room returns the number of bytes that can still be kept.
func (s *Store) Room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total - s.used
}

// Remove removes the directory with all logs. Open readers can go on.
func (s *Store) Remove() error { return os.RemoveAll(s.dir) }

// reserveBytes takes up to n bytes of the room, and returns how many.
func (s *Store) reserveBytes(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(n, s.total-s.used)
	s.used += n
	return n
}

func (s *Store) releaseBytes(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
}

// Log is the output of one command. It is safe for concurrent use.
type Log struct {
	store *Store
	paths [Streams]string

	mu      sync.Mutex
	files   [Streams]*os.File // nil once the log has ended
	state   State
	failed  error
	removed bool
	changed chan struct{} // nil while nothing waits
}

// State is the size of a log.
type State struct {
	// Kept counts the bytes of each stream that are kept, from its start. Total
	// counts all that the command wrote.
	Kept, Total [Streams]int64
	// Ended reports that there will be no more.
	Ended bool
}

// Create makes the log of a command, in files named after name. The caller must
// end it, and remove it unless it removes the store.
func (s *Store) Create(name string) (*Log, error) {
	l := &Log{store: s}
	for i := range l.files {
		path := filepath.Join(s.dir, fmt.Sprintf("%s.%d", name, i+1))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make output log: %w", err), l.End(), l.Remove())
		}
		l.files[i], l.paths[i] = f, path
	}
	return l, nil
}

// Writer returns the writer of a stream. It never fails: it only counts what it
// can't keep.
func (l *Log) Writer(stream int) io.Writer { return &writer{l, stream} }

type writer struct {
	log    *Log
	stream int
}

func (w *writer) Write(p []byte) (int, error) {
	w.log.appendOutput(w.stream, p)
	return len(p), nil
}

func (l *Log) appendOutput(stream int, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept, total := &l.state.Kept[stream], &l.state.Total[stream]
	if *kept == *total && l.files[stream] != nil && l.failed == nil { // nothing before it is missing
		n := l.store.reserveBytes(min(int64(len(p)), l.store.perStream-*kept))
		written, err := l.files[stream].Write(p[:n])
		l.store.releaseBytes(n - int64(written))
		*kept += int64(written)
		l.failed = err
	}
	*total += int64(len(p))
	l.wakeReaders()
}

// wakeReaders wakes readers that wait for a change. The caller holds mu.
func (l *Log) wakeReaders() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// End reports that the command has ended. It returns the error that kept output
// from being kept, if any.
func (l *Log) End() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.failed}
	for i, f := range l.files {
		if f != nil {
			errs = append(errs, f.Close())
		}
		l.files[i] = nil
	}
	l.state.Ended, l.failed = true, nil
	l.wakeReaders()
	return errors.Join(errs...)
}

// Remove removes an ended log and returns its bytes to the room. Open readers
// can go on.
func (l *Log) Remove() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removed {
		return nil
	}
	l.removed = true
	var errs []error
	for i, path := range l.paths {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		l.store.releaseBytes(l.state.Kept[i])
	}
	return errors.Join(errs...)
}

// State returns the size of the log, and a channel that is closed at the next
// change.
func (l *Log) State() (State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.state, l.changed
}

// Reader reads a log. The caller must close it.
type Reader struct {
	log   *Log
	files [Streams]*os.File
}

// Open opens a log, which may be removed while it is read.
func (l *Log) Open() (*Reader, error) {
	r := &Reader{log: l}
	for i, path := range l.paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open output log: %w", err), r.Close())
		}
		r.files[i] = f
	}
	return r, nil
}

// ReadAt reads a stream from an offset, up to what is kept by then.
func (r *Reader) ReadAt(stream int, p []byte, offset int64) (int, error) {
	n, err := r.files[stream].ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Close closes the files.
func (r *Reader) Close() error {
	var errs []error
	for _, f := range r.files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
