package layer

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// unpackSeeds has every hostile image of the table that is small enough to
// mutate, an invalid layer, and one in each format. (-fuzzminimizetime 1s
// leaves the fuzzer more time to find new inputs.)
func unpackSeeds(t testing.TB) (seeds [][2][]byte) {
	for _, h := range hostileImages() {
		layers := append(h.layers(t, "../outside"), nil)
		if len(layers[0]) > 32<<10 {
			continue
		}
		seeds = append(seeds, [2][]byte{layers[0], layers[1]})
	}
	plain := imagetest.Archive(t, imagetest.Directory("d"), imagetest.File("d/f", "content"), imagetest.Symlink("l", "d"), imagetest.Hardlink("h", "d/f"))
	return append(seeds, [2][]byte{plain, imagetest.Gzip(t, plain)}, [2][]byte{zstandard(t, plain), plain}, [2][]byte{[]byte("none"), nil})
}

func TestUnpackSeeds(t *testing.T) {
	if seeds := unpackSeeds(t); len(seeds) < 40 {
		t.Fatalf("the fuzz target has %d seeds", len(seeds))
	}
}

// Whatever two layers of any bytes contain, nothing outside the tree changes,
// no limit is passed, and the tree is valid and can be removed.
func FuzzUnpack(f *testing.F) {
	for _, s := range unpackSeeds(f) {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, low, high []byte) {
		base := t.TempDir()
		outside, dir := filepath.Join(base, "outside"), filepath.Join(base, "tree")
		err := errors.Join(os.Mkdir(outside, 0o700), os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600))
		must(t, err)
		before := listing(t, outside)
		done, err := unpackAll(t, dir, tight, anyLayer(low), anyLayer(high))
		layerErr := &Error{}
		if err != nil && !errors.As(err, &layerErr) && !errors.Is(err, images.ErrDigest) {
			t.Errorf("an error of no class: %v", err)
		}
		if after := listing(t, outside); !slices.Equal(before, after) {
			t.Errorf("outside changed: %q became %q", before, after)
		}
		if entries, err := os.ReadDir(base); err != nil || len(entries) != 2 {
			t.Errorf("beside the tree are now %v, %v", entries, err)
		}
		checkTree(t, dir, err != nil)
		if done.Bytes > tight.Bytes {
			t.Errorf("%d bytes", done.Bytes)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("the tree can't be removed: %v", err)
		}
	})
}

// checkTree finds what may not be in a tree. stopped says that its last file
// may be incomplete.
func checkTree(t *testing.T, dir string, stopped bool) {
	t.Helper()
	count := 0
	meets(dir, func(p string, info os.FileInfo) bool {
		count++
		mode := info.Mode()
		switch {
		case p == dir:
		case mode.IsDir() && mode != os.ModeDir|0o755,
			mode.IsRegular() && mode != 0o644 && mode != 0o755 && (!stopped || mode != 0o600),
			!mode.IsDir() && !mode.IsRegular() && mode.Type() != os.ModeSymlink:
			t.Errorf("%s has the mode %v", p, mode)
		case mode.IsRegular() && info.Size() > tight.FileBytes:
			t.Errorf("%s has %d bytes", p, info.Size())
		}
		return false
	})
	if count > tight.Entries+1 {
		t.Errorf("%d entries", count)
	}
}

// anyLayer gives a layer the right digests if they can be told.
func anyLayer(data []byte) Layer {
	l := layerOf(data, data)
	if r, err := openLayer(context.Background(), l, tight, tight.Bytes, nil); err == nil {
		var plain bytes.Buffer
		if _, err := plain.ReadFrom(r); err == nil {
			l.DiffID = sum(plain.Bytes())
		}
		r.Close()
	}
	return l
}
