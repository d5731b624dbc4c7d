package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Unlike List, References neither waits for the store's lock nor creates a
// directory.
func TestReferencesWaitForNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	if names, err := References(dir); len(names) > 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no store: %q, %v", names, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory is made: %v", err)
	}
	s := openStore(t, dir)
	hex := strings.Repeat("0", 64)
	for _, name := range []string{"debian:12", "alpine:3"} {
		for _, from := range []origin{originRegistry, originEngine} {
			r := &record{Reference: name, Source: from, Digest: "sha256:" + hex, ID: "sha256:" + hex, Tree: hex}
			must(t, s.records.saveRecord(t.Context(), name, r))
		}
	}
	unlock, err := s.locks.lock(t.Context(), lockStore, false)
	must(t, err)
	defer unlock()
	if names, err := References(dir); err != nil || !slices.Equal(names, []string{"alpine:3", "debian:12"}) {
		t.Errorf("%q, %v", names, err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("locked"))
	defer cancel()
	if list, err := s.List(ctx); err == nil {
		t.Errorf("the control: %d images are listed", len(list))
	}
}
