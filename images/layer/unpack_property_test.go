package layer

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// TestUnpackProperty draws entries from few names, so that they meet: links
// below links, whiteouts of links' targets, hard links to replaced files.
// Nothing outside may change, an error must be a refusal, and the tree must be
// valid.
func TestUnpackProperty(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	must(t, errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "a"), []byte("secret"), 0o644), os.Mkdir(filepath.Join(outside, "b"), 0o755)))
	before := imagetest.Snapshot(t, outside)
	component := rapid.SampledFrom([]string{"a", "b", "c", "d", "a", "b", ".wh.a", ".wh.b", ".wh..wh..opq", ".", ".."})
	plain := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	targets := rapid.SampledFrom([]string{"a", "b", "/", "..", "../..", "/a", "/b/c", "../outside", outside, outside + "/a", "a/../../outside", "/proc/self/root" + outside})
	kinds := rapid.SampledFrom([]byte{tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar})
	refused, done := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		var archives [][]byte
		for range rapid.IntRange(1, 3).Draw(r, "layers") {
			var list []imagetest.Item
			for range rapid.IntRange(0, 12).Draw(r, "entries") {
				from := plain
				if rapid.IntRange(0, 9).Draw(r, "odd") == 0 {
					from = component
				}
				it := imagetest.Item{Header: tar.Header{
					Name:     strings.Join(rapid.SliceOfN(from, 1, 4).Draw(r, "name"), "/"),
					Typeflag: kinds.Draw(r, "kind"), Mode: rapid.Int64Range(0, 0o7777).Draw(r, "mode"),
				}}
				switch it.Typeflag {
				case tar.TypeReg:
					it.Content = "content"
					if strings.HasSuffix(it.Name, ".") {
						continue // the writer refuses it as a file
					}
				case tar.TypeSymlink:
					it.Linkname = targets.Draw(r, "target")
				case tar.TypeLink:
					it.Linkname = strings.Join(rapid.SliceOfN(plain, 1, 3).Draw(r, "linked"), "/")
				}
				list = append(list, it)
			}
			archives = append(archives, imagetest.Archive(t, list...))
		}
		dir := filepath.Join(base, "tree")
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			r.Fatal(err)
		}
		_, err := unpackAll(t, dir, tight, plainLayers(archives...)...)
		layerErr := &Error{}
		switch {
		case err == nil:
			done++
		case errors.As(err, &layerErr) && errors.Is(err, images.ErrRefused):
			refused++
		default:
			r.Errorf("an error of no class: %v", err)
		}
		if after := imagetest.Snapshot(t, outside); !slices.Equal(before, after) {
			r.Fatalf("outside changed: %q became %q", before, after)
		}
		checkTree(t, dir, err != nil)
		if err := os.RemoveAll(dir); err != nil {
			r.Errorf("the tree can't be removed: %v", err)
		}
	})
	if refused == 0 || done == 0 {
		t.Errorf("%d refused, %d unpacked: the property was tried on one kind alone", refused, done)
	}
}
