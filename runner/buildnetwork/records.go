package buildnetwork

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// Begun is the data of the first record of a build.
type Begun struct {
	Dir     string   `json:"dir"`     // of the Dockerfile
	Session string   `json:"session"` // of the sandbox whose network the build shared
	Allow   []string `json:"allow"`
	Deny    []string `json:"deny,omitempty"`
}

// KindBegun is the kind of [Begun].
const KindBegun record.Kind = "build.network"

// recordFile is the file of a build's records. It is created with the first
// one. It is safe for concurrent use.
type recordFile struct {
	dir   string
	first Begun

	mu   sync.Mutex
	file *os.File
}

type line struct {
	Time time.Time   `json:"time"`
	Kind record.Kind `json:"kind"`
	Data any         `json:"data"`
}

// writeRecord writes a record. If sync is true, it is on the disk afterwards.
func (f *recordFile) writeRecord(kind record.Kind, data any, sync bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		if err := f.createFile(); err != nil {
			return err
		}
	}
	err := f.appendLine(kind, data)
	if err == nil && sync {
		err = f.file.Sync()
	}
	return err
}

func (f *recordFile) createFile() (err error) {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	if f.file, err = os.OpenFile(filepath.Join(f.dir, RecordsFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	return f.appendLine(KindBegun, f.first)
}

func (f *recordFile) appendLine(kind record.Kind, data any) error {
	text, err := json.Marshal(line{time.Now().UTC(), kind, data})
	if err != nil {
		return err
	}
	_, err = f.file.Write(append(text, '\n'))
	return err
}

// closeFile closes the file, and removes old builds' records beside it.
func (f *recordFile) closeFile() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	return errors.Join(f.file.Close(), removeOld(filepath.Dir(f.dir)))
}

// keepTime is how long the records of a build are kept.
const keepTime = 90 * 24 * time.Hour

func removeOld(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepTime {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
