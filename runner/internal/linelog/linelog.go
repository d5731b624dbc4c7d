// Package linelog writes files of JSON lines beside a session's trace, whose hashes the
// trace's last record has.
package linelog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/caisson-run/caisson/runner/redact"
)

// Log is one file, which its first line creates. It is safe for concurrent use.
type Log struct {
	path     string
	redact   *redact.Redactor
	maxLines int
	maxBytes int64

	mu      sync.Mutex
	file    *os.File
	sum     hash.Hash
	lines   int
	bytes   int64
	omitted int64
}

// New returns a log of at most maxLines lines and maxBytes bytes, without the redactor's
// secrets.
func New(path string, r *redact.Redactor, maxLines int, maxBytes int64) *Log {
	return &Log{path: path, redact: r, maxLines: maxLines, maxBytes: maxBytes}
}

// Add appends a line, a JSON value. If the file is full, it only counts the line, and
// returns false.
func (l *Log) Add(text []byte) (added bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text = append(l.redact.JSON(text), '\n')
	if l.lines >= l.maxLines || l.bytes+int64(len(text)) > l.maxBytes {
		l.omitted++
		return false, nil
	}
	if err := l.open(); err != nil {
		return false, err
	}
	l.lines++
	l.bytes += int64(len(text))
	_, err = io.MultiWriter(l.file, l.sum).Write(text)
	return err == nil, err
}

// open opens the file, to append to what earlier processes of the session wrote. The caller
// holds mu.
func (l *Log) open() error {
	if l.file != nil {
		return nil
	}
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	l.sum = sha256.New()
	if _, err := io.Copy(l.sum, file); err != nil {
		return errors.Join(err, file.Close())
	}
	l.file = file
	return nil
}

// Close closes the file. It returns the file's hash, or "" if there is none, and the number
// of lines that it lacks.
func (l *Log) Close() (sum string, omitted int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		if _, err := os.Lstat(l.path); errors.Is(err, fs.ErrNotExist) {
			return "", l.omitted, nil
		}
		if err := l.open(); err != nil {
			return "", l.omitted, err
		}
	}
	sum = hex.EncodeToString(l.sum.Sum(nil))
	return sum, l.omitted, l.file.Close()
}
