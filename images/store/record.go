package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
)

// record is what the store knows about a reference: the image it named when it
// was last resolved, which pins a name. Each record is a file, modified at each
// use.
type record struct {
	Version   int    `json:"version"`
	Reference string `json:"reference"`
	Source    origin `json:"source"`
	Platform  string `json:"platform"`
	// Digest and ID are as in [images.Image].
	Digest string `json:"digest"`
	ID     string `json:"id"`
	// EngineID is the engine's ID for the image.
	EngineID string    `json:"engine_id,omitempty"`
	Blobs    []string  `json:"blobs,omitempty"` // manifest, configuration, layers
	Tree     string    `json:"tree"`            // the tree's key
	Created  time.Time `json:"created,omitzero"`
	Pulled   time.Time `json:"pulled"`
	// Config has the volumes as declared.
	Config images.Config `json:"config"`
	// EnvDropped is the number of environment entries left out.
	EnvDropped int `json:"env_dropped,omitempty"`

	used time.Time
	path string
}

// origin is where an image came from. A name may have several records, because
// engine and registry may have different images.
type origin string

const (
	originRegistry origin = "registry"
	originEngine   origin = "engine"
	originLocal    origin = "local" // a layout or archive
	originBuild    origin = "build"
)

const recordVersion = 2

type records struct {
	dir, platform string
	locks         locks
}

func (rs records) recordPath(from origin, name string) string {
	key := digest.Hex(digest.Of([]byte(strings.Join([]string{string(from), name, rs.platform}, "\n"))))
	return filepath.Join(rs.dir, "refs", key+".json")
}

// loadRecord returns a name's record, or nil if this version can read none.
func (rs records) loadRecord(from origin, name string) (*record, error) {
	r, err := readRecord(rs.recordPath(from, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, images.ErrInvalid) {
		return nil, nil
	}
	return r, err
}

// readRecord reads a record. A damaged one is [images.ErrInvalid], so that its
// reference is resolved again.
func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%w: read record %s: %w", images.ErrInvalid, path, err)
	}
	digests := append(slices.Clone(r.Blobs), r.Digest, r.ID, "sha256:"+r.Tree)
	if r.Version != recordVersion || slices.ContainsFunc(digests, func(d string) bool { return !digest.Valid(d) }) {
		return nil, fmt.Errorf("%w: record %s has version %d", images.ErrInvalid, path, r.Version)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	r.used, r.path = info.ModTime(), path
	return &r, nil
}

func (rs records) saveRecord(ctx context.Context, name string, r *record) error {
	r.Version = recordVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	temp, remove, err := rs.locks.makeTemp(ctx)
	if err != nil {
		return err
	}
	return errors.Join(placeFile(temp, rs.recordPath(r.Source, name), bytes.NewReader(data), nil), remove())
}

// placeFile writes a file in temp and renames it to path once check, if not
// nil, accepts it, so that it is complete or absent. Package atomicwriter would
// put its temporary files beside path, where records and blobs are listed. What
// a killed process leaves in temp is removed.
func placeFile(temp, path string, r io.Reader, check func() error) error {
	f, err := os.CreateTemp(temp, "new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = io.Copy(f, r)
	if err == nil && check != nil {
		err = check()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", filepath.Base(path), err), os.Remove(f.Name()))
	}
	return nil
}

func (rs records) touchRecord(from origin, name string) {
	now := time.Now()
	_ = os.Chtimes(rs.recordPath(from, name), now, now) // otherwise its last write counts
}

// listRecords reads all records, and returns the paths of damaged ones.
func (rs records) listRecords() (list []*record, damaged []string, err error) {
	dir := filepath.Join(rs.dir, "refs")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch r, err := readRecord(path); {
		case err == nil:
			list = append(list, r)
		case errors.Is(err, images.ErrInvalid):
			damaged = append(damaged, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, nil, fmt.Errorf("list images: %w", err)
		}
	}
	return list, damaged, nil
}
