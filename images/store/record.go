package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
)

// record is what the store knows of a reference: what it named when it was
// last asked, which is a name's pin. One file each; the time of the file's last
// change is when the image was last used.
type record struct {
	Version   int    `json:"version"`
	Reference string `json:"reference"`
	Source    origin `json:"source"`
	Platform  string `json:"platform"`
	// Digest and ID are those of [images.Image].
	Digest string `json:"digest"`
	ID     string `json:"id"`
	// EngineID is what the engine called the image.
	EngineID string    `json:"engine_id,omitempty"`
	Blobs    []string  `json:"blobs,omitempty"` // manifest, configuration, layers
	Tree     string    `json:"tree"`            // key of the tree
	Created  time.Time `json:"created,omitzero"`
	Pulled   time.Time `json:"pulled"`
	Volumes  []string  `json:"volumes,omitempty"`
	Env      []string  `json:"env,omitempty"`
	// EnvDropped counts entries of the environment that were left out.
	EnvDropped int `json:"env_dropped,omitempty"`

	used time.Time
	path string
}

// source is where a record's image came from. A name may have two records: what
// an engine has for it and what its registry says are two things.
type origin string

const (
	originRegistry origin = "registry"
	originEngine   origin = "engine"
	originLocal    origin = "local" // a layout, an archive
	originBuild    origin = "build"
)

const recordVersion = 1

func (s *Store) recordPath(from origin, name string) string {
	key := digest.Hex(digest.Of([]byte(strings.Join([]string{string(from), name, s.o.Platform}, "\n"))))
	return filepath.Join(s.o.Dir, "refs", key+".json")
}

// recall reads what is known of a name; nil if nothing is, or nothing that
// this version understands.
func (s *Store) loadRecord(from origin, name string) (*record, error) {
	r, err := readRecord(s.recordPath(from, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, images.ErrInvalid) {
		return nil, nil
	}
	return r, err
}

// readRecord reads one record. What is damaged is [images.ErrInvalid]: it is asked for
// again rather than guessed.
func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%w: record %s: %w", images.ErrInvalid, path, err)
	}
	digests := append(slices.Clone(r.Blobs), r.Digest, r.ID, "sha256:"+r.Tree)
	if r.Version != recordVersion || slices.ContainsFunc(digests, func(d string) bool { return !digest.Valid(d) }) {
		return nil, fmt.Errorf("%w: record %s is of version %d", images.ErrInvalid, path, r.Version)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	r.used, r.path = info.ModTime(), path
	return &r, nil
}

// remember writes what is known of a name, whole or not at all.
func (s *Store) saveRecord(ctx context.Context, name string, r *record) error {
	r.Version = recordVersion
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("remember image: %w", err)
	}
	temp, remove, err := s.makeTemp(ctx)
	if err != nil {
		return err
	}
	return errors.Join(writeFileAtomic(temp, s.recordPath(r.Source, name), data), remove())
}

// writeWhole writes a file that is there whole or not at all, by way of temp.
func writeFileAtomic(temp, path string, data []byte) error {
	f, err := os.CreateTemp(temp, "record-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", filepath.Base(path), err), os.Remove(f.Name()))
	}
	return nil
}

// touch notes that a record is used now. Where that fails, it counts as used
// when it was made.
func (s *Store) touchRecord(from origin, name string) {
	now := time.Now()
	os.Chtimes(s.recordPath(from, name), now, now) //nolint:errcheck // see above
}

// records reads all records. Damaged ones are given by their paths.
func (s *Store) listRecords() (list []*record, damaged []string, err error) {
	dir := filepath.Join(s.o.Dir, "refs")
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
