package network

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools/egress"
)

const maxRequests = 100_000

// maxURLBytes bounds the URL in a line. URLs can have 8 KiB, and since repeated headers are
// compressed, no budget bounds their total.
const maxURLBytes = 1024

func clipText(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// requestLine is a line of the file, for example
//
//	{"connection":3,"method":"GET","url":"https://registry.npmjs.org/left-pad","status":200,"received":1024,"sha256":"…","complete":true}
type requestLine struct {
	Conn     int64  `json:"connection"`
	Server   string `json:"server,omitempty"` // the MCP server that made it
	Command  int    `json:"command,omitempty"`
	Method   string `json:"method"`
	URL      string `json:"url"` // without its query
	Status   int    `json:"status"`
	Received int64  `json:"received"`
	SHA256   string `json:"sha256,omitempty"`
	Complete bool   `json:"complete"`
	Cached   bool   `json:"cached,omitempty"`
}

// requestLog writes the file, which the first line creates. It is safe for concurrent use.
type requestLog struct {
	path   string
	redact *redact.Redactor

	mu      sync.Mutex
	file    *os.File
	sum     hash.Hash
	lines   int
	omitted int64
}

func (l *requestLog) add(server string, r egress.Requested) error {
	text, err := json.Marshal(requestLine{r.ID, server, r.Command, clipText(r.Method, 32), clipText(r.URL, maxURLBytes), r.Status, r.Received, r.SHA256, r.Complete, r.Cached})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines >= maxRequests {
		l.omitted++
		return nil
	}
	if err := l.open(); err != nil {
		return err
	}
	l.lines++
	_, err = io.MultiWriter(l.file, l.sum).Write(append(l.redact.JSON(text), '\n'))
	return err
}

// open opens the file, to append to what earlier processes of the session wrote. The caller
// holds mu.
func (l *requestLog) open() error {
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

// close closes the file, and returns its hash, or "" if there is none, and the number of
// requests that it lacks.
func (l *requestLog) close() (sum string, omitted int64, err error) {
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
