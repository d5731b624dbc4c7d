package workspace

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// distant is a Remote with a delay: a tree of directories with equally many files.
type distant struct {
	delay              time.Duration
	directories, files int
}

func (d distant) wait(ctx context.Context) error {
	select {
	case <-time.After(d.delay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d distant) Stat(ctx context.Context, _ string, _ bool) (Info, error) {
	return Info{Type: TypeDir}, d.wait(ctx)
}

func (d distant) ReadDir(ctx context.Context, dir string, _ bool, _ Capacity) (entries []Entry, more bool, err error) {
	typ, count := TypeDir, d.directories
	if dir != "." {
		typ, count = TypeFile, d.files
	}
	for i := range count {
		entries = append(entries, Entry{Path: path.Join(dir, fmt.Sprintf("%04d", i)), Type: typ})
	}
	return entries, false, d.wait(ctx)
}

func (d distant) ReadFile(ctx context.Context, _ string, _, _ int64) (File, error) {
	return File{}, d.wait(ctx)
}

func (d distant) ReadFiles(ctx context.Context, _ string, names []string, _ int64, each func(int, File, error)) (int, error) {
	if err := d.wait(ctx); err != nil {
		return 0, err
	}
	for i := range names {
		each(i, File{Data: []byte("text")}, nil)
	}
	return len(names), nil
}

// TestSearchFarAway: a search of 5,000 files takes some tens of delays, however the
// files are distributed.
func TestSearchFarAway(t *testing.T) {
	for directories, most := range map[int]time.Duration{10: time.Second, 100: 2 * time.Second, 1000: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			d := distant{delay: 50 * time.Millisecond, directories: directories, files: 5000 / directories}
			r := NewRemoteReader(d, ReaderOptions{})
			began, found := time.Now(), 0
			var last string
			_, err := r.Search(t.Context(), ".", SearchOptions{
				MaxFile: 1 << 20,
				Examine: func(_ context.Context, _ string, f File, err error) SearchResult {
					return SearchResult{Value: err == nil && bytes.Equal(f.Data, []byte("text"))}
				},
				Visit: func(name string, f SearchResult) error {
					if f.Value != true || strings.Compare(name, last) <= 0 {
						t.Errorf("%s after %s: %v", name, last, f.Value)
					}
					last = name
					found++
					return nil
				},
			})
			if took := time.Since(began); err != nil || found != 5000 || took > most {
				t.Errorf("%d directories: %d files in %v, %v; want 5000 within %v", directories, found, took, err, most)
			} else {
				t.Logf("%d directories: %v", directories, took)
			}
		})
	}
}
