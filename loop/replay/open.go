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

// maxFileBytes is the size of the largest recording.
const maxFileBytes = 256 << 20

// ErrNotRecording is the error of [Open] for a file that is not a valid recording.
var ErrNotRecording = errors.New("not a recording")

// parseError is the error for an invalid recording. Its text has the position and
// the cause.
type parseError struct{ text string }

// Error returns e.text.
func (e *parseError) Error() string { return e.text }

// Unwrap returns [ErrNotRecording].
func (e *parseError) Unwrap() error { return ErrNotRecording }

// Open reads a recording and returns a model that plays it. The file is a script, a
// trace, a session's directory, or an ATIF trajectory; its content decides. Errors
// name the file, with line and column if possible, and wrap [ErrNotRecording] or an
// error of the file system.
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

// readRecording returns the content and the path of a file, or those of the trace
// in a session's directory.
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
	defer func() { _ = f.Close() }() // opened for reading
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, path, err
	}
	if len(data) > maxFileBytes {
		return nil, path, fmt.Errorf("%s: %w: larger than %d bytes", path, ErrNotRecording, maxFileBytes)
	}
	return data, path, nil
}

// parseRecording parses a recording of any form. Errors start with line and column.
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
