package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxFileBytes bounds a recording. Results in it were bounded when they were made.
const maxFileBytes = 256 << 20

// ErrNotRecording says that a file is none of the forms that can be played.
var ErrNotRecording = errors.New("not a recording")

// parseError is a file that can't be played; its text has place and cause.
type parseError struct{ text string }

// Error gives the text.
func (e *parseError) Error() string { return e.text }

// Unwrap gives [ErrNotRecording].
func (e *parseError) Unwrap() error { return ErrNotRecording }

// Open reads a recording: a script, a trace, a session's folder, or an ATIF
// trajectory; what it is is told by its content. Errors name the file, with
// line and column where there are any, and wrap [ErrNotRecording] or the
// file system's.
func Open(path string, o Options) (*Model, error) {
	data, path, err := readRecording(path)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	r, err := parseRecording(data)
	if err != nil {
		return nil, &parseError{text: fmt.Sprintf("open recording: %s:%v", path, err)}
	}
	if r.name == "" {
		base := filepath.Base(path)
		r.name = strings.TrimSuffix(base, filepath.Ext(base))
	}
	return newModel(path, r, o), nil
}

// readRecording reads the file, or the trace of a session's folder.
func readRecording(path string) ([]byte, string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, path, err
	}
	if info.IsDir() {
		path = filepath.Join(path, "trace.jsonl")
		info, err = os.Stat(path)
		if err != nil {
			return nil, path, err
		}
	}
	if !info.Mode().IsRegular() {
		return nil, path, fmt.Errorf("%s: %w: not a regular file", path, ErrNotRecording)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, path, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, path, err
	}
	if len(data) > maxFileBytes {
		return nil, path, fmt.Errorf("%s: %w: larger than %d bytes", path, ErrNotRecording, maxFileBytes)
	}
	return data, path, nil
}

// parseRecording tells the forms apart and reads them. Errors start with line and column.
func parseRecording(data []byte) (recording, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return parseScript(data)
	}
	if isATIF(data) {
		return parseATIF(data)
	}
	return parseTrace(data)
}
