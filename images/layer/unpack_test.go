package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// layerOf is a layer that is stored as data and whose archive is plain.
func layerOf(data, plain []byte) Layer {
	return Layer{
		Digest: sum(data), DiffID: sum(plain), Size: int64(len(data)), Known: true,
		Open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(data, nil)
}

// tight are limits that tests can reach.
var tight = Limits{
	Bytes: 1 << 20, FileBytes: 256 << 10, Entries: 400, Ratio: 100, RatioFloor: 64 << 10, PathBytes: 1024, Depth: 20, Layers: 8, Top: 20, MetadataBytes: 64 << 10,
}

func unpackAll(t testing.TB, dir string, limits Limits, layers ...Layer) (Result, error) {
	t.Helper()
	return Unpack(context.Background(), dir, layers, limits.WithDefaults(), false, func(Layer, int64) {})
}

func plainLayers(archives ...[]byte) (layers []Layer) {
	for _, a := range archives {
		layers = append(layers, layerOf(a, a))
	}
	return layers
}

// listing returns a tree's sorted lines: mode, name, links' targets, small
// content.
func listing(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := info.Mode().String() + " " + p[len(dir)+1:]
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + target
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" = %.40s", data)
		}
		lines = append(lines, line)
		return nil
	})
	must(t, err)
	return lines
}

func TestUnpack(t *testing.T) {
	suid := imagetest.File("bin/su", "s")
	suid.Mode = 0o6755
	private := imagetest.File("etc/shadow", "root:*")
	private.Mode = 0
	caps := imagetest.File("bin/ping", "p")
	caps.Mode = 0o700
	caps.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.overlay.opaque": "y"}
	closed := imagetest.Directory("root")
	closed.Mode = 0
	tests := map[string]struct {
		layers  [][]imagetest.Item
		want    []string
		skipped []string
	}{
		"owners, bits and attributes are dropped": {
			layers: [][]imagetest.Item{{suid, private, caps, closed}},
			want: []string{
				"drwxr-xr-x bin", "-rwxr-xr-x bin/ping = p", "-rwxr-xr-x bin/su = s", "drwxr-xr-x etc", "-rw-r--r-- etc/shadow = root:*", "drwxr-xr-x root",
			},
		},
		"absolute and odd names": {
			layers: [][]imagetest.Item{{imagetest.File("/a//b/./c", "x"), imagetest.File("./d", "y"), imagetest.Directory("./")}},
			want:   []string{"drwxr-xr-x a", "drwxr-xr-x a/b", "-rw-r--r-- a/b/c = x", "-rw-r--r-- d = y"},
		},
		"links are kept as they are": {
			layers: [][]imagetest.Item{{imagetest.Symlink("a", "/etc/passwd"), imagetest.Symlink("b", "../../../x"), imagetest.Symlink("c", "loop/../c")}},
			want:   []string{"Lrwxrwxrwx a -> /etc/passwd", "Lrwxrwxrwx b -> ../../../x", "Lrwxrwxrwx c -> loop/../c"},
		},
		"a name below a link ends in the tree": {
			layers: [][]imagetest.Item{
				{imagetest.Directory("usr/lib"), imagetest.Symlink("lib", "usr/lib"), imagetest.Symlink("abs", "/usr/lib"), imagetest.Symlink("up", "../../../usr")},
				{imagetest.File("lib/one", "1"), imagetest.File("abs/two", "2"), imagetest.File("up/lib/three", "3")},
			},
			want: []string{
				"Lrwxrwxrwx abs -> /usr/lib", "Lrwxrwxrwx lib -> usr/lib", "Lrwxrwxrwx up -> ../../../usr", "drwxr-xr-x usr",
				"drwxr-xr-x usr/lib", "-rw-r--r-- usr/lib/one = 1", "-rw-r--r-- usr/lib/three = 3", "-rw-r--r-- usr/lib/two = 2",
			},
		},
		"a link in place of what it is itself is replaced": {
			layers: [][]imagetest.Item{
				{imagetest.Directory("d"), imagetest.File("d/f", "1"), imagetest.Symlink("l", "d"), imagetest.Symlink("g", "d/f")},
				{imagetest.File("g", "2"), imagetest.Directory("l"), imagetest.File("l/x", "3")},
			},
			want: []string{"drwxr-xr-x d", "-rw-r--r-- d/f = 1", "-rw-r--r-- g = 2", "drwxr-xr-x l", "-rw-r--r-- l/x = 3"},
		},
		"the last of one name wins": {
			layers: [][]imagetest.Item{{imagetest.File("a", "1"), imagetest.File("a", "2"), imagetest.Directory("b"), imagetest.File("b/c", "3"), imagetest.Symlink("b", "a"), imagetest.Directory("e"), imagetest.Directory("e")}},
			want:   []string{"-rw-r--r-- a = 2", "Lrwxrwxrwx b -> a", "drwxr-xr-x e"},
		},
		"whiteouts hide lower layers": {
			layers: [][]imagetest.Item{
				{imagetest.File("a", "1"), imagetest.File("d/x", "1"), imagetest.File("d/y", "1"), imagetest.File("o/x", "1"), imagetest.File("o/s/x", "1"), imagetest.File("o/s/y", "1")},
				{imagetest.File(".wh.a", ""), imagetest.File("d/.wh.x", ""), imagetest.File("d/.wh.absent", ""), imagetest.File("none/.wh.x", ""), imagetest.File("o/s/new", "2"), imagetest.File("o/.wh..wh..opq", "")},
			},
			want: []string{"drwxr-xr-x d", "-rw-r--r-- d/y = 1", "drwxr-xr-x o", "drwxr-xr-x o/s", "-rw-r--r-- o/s/new = 2"},
		},
		"and not their own, in whatever order": {
			layers: [][]imagetest.Item{
				{imagetest.File("a", "1"), imagetest.File("d/old", "1")},
				{imagetest.File("a", "2"), imagetest.File(".wh.a", ""), imagetest.File("d/new", "2"), imagetest.File(".wh.d", "")},
			},
			want: []string{"-rw-r--r-- a = 2", "drwxr-xr-x d", "-rw-r--r-- d/new = 2"},
		},
		"a whiteout through a link": {
			layers: [][]imagetest.Item{
				{imagetest.File("usr/lib/x", "1"), imagetest.Symlink("lib", "usr/lib")},
				{imagetest.File("lib/.wh.x", "")},
			},
			want: []string{"Lrwxrwxrwx lib -> usr/lib", "drwxr-xr-x usr", "drwxr-xr-x usr/lib"},
		},
		"an opaque root": {
			layers: [][]imagetest.Item{{imagetest.File("a/b", "1")}, {imagetest.File("c", "2"), imagetest.File(".wh..wh..opq", "")}},
			want:   []string{"-rw-r--r-- c = 2"},
		},
		"a whiteout of a device of its own layer": {
			layers:  [][]imagetest.Item{{imagetest.File("a", "1")}, {imagetest.Special(tar.TypeFifo, "a"), imagetest.File(".wh.a", "")}},
			skipped: []string{"/a"},
		},
		"a whiteout in the first layer, and AUFS's own": {
			layers: [][]imagetest.Item{{imagetest.File("a", "1"), imagetest.File(".wh.a", ""), imagetest.File(".wh..wh.plnk/1.2", "x"), imagetest.Directory(".wh..wh.orph")}},
			want:   []string{"-rw-r--r-- a = 1"},
		},
		"hard links share a file, and replacing one leaves the other": {
			layers: [][]imagetest.Item{{imagetest.File("a", "1"), imagetest.Hardlink("b", "a"), imagetest.Hardlink("c", "/b"), imagetest.Hardlink("a", "a")}, {imagetest.File("b", "2")}},
			want:   []string{"-rw-r--r-- a = 1", "-rw-r--r-- b = 2", "-rw-r--r-- c = 1"},
		},
		"devices and the like are skipped, and replace what was there": {
			layers:  [][]imagetest.Item{{imagetest.File("a", "1")}, {imagetest.Special(tar.TypeChar, "a"), imagetest.Special(tar.TypeBlock, "dev/sda"), imagetest.Special(tar.TypeFifo, "f")}},
			want:    []string{"drwxr-xr-x dev"},
			skipped: []string{"/a", "/dev/sda", "/f"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for form, encode := range map[string]func(testing.TB, []byte) []byte{
				"plain": func(_ testing.TB, b []byte) []byte { return b }, "gzip": imagetest.Gzip, "zstd": zstandard,
			} {
				dir := t.TempDir()
				var layers []Layer
				for _, items := range tt.layers {
					plain := imagetest.Archive(t, items...)
					layers = append(layers, layerOf(encode(t, plain), plain))
				}
				done, err := unpackAll(t, dir, tight, layers...)
				if err != nil {
					t.Fatalf("%s: %v", form, err)
				}
				if diff := cmp.Diff(tt.want, listing(t, dir)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", form, diff)
				}
				if diff := cmp.Diff(tt.skipped, done.Skipped); diff != "" {
					t.Errorf("%s skipped (-want +got):\n%s", form, diff)
				}
			}
		})
	}
}

func TestUnpackKeepsTimesAndOwner(t *testing.T) {
	dir := t.TempDir()
	old, late := imagetest.File("old", "x"), imagetest.File("late", "x")
	data := imagetest.Archive(t, old, late)
	if _, err := unpackAll(t, dir, tight, plainLayers(data)...); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "old"))
	must(t, err)
	if !info.ModTime().Equal(time.Unix(1_000_000_000, 0)) {
		t.Errorf("modified %v", info.ModTime())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		t.Errorf("owner %+v, want %d", info.Sys(), os.Geteuid())
	}
	for _, at := range []time.Time{time.Unix(-5, 0), time.Unix(1<<40, 0), {}} {
		if got := plainTime(at); got.Unix() != 0 {
			t.Errorf("%v becomes %v", at, got)
		}
	}
}

// layersFrom gives layers the right digests, so that only their content can be
// refused.
func layersFrom(t *testing.T, data [][]byte) (layers []Layer) {
	for _, d := range data {
		plain := d
		if z, err := gzip.NewReader(bytes.NewReader(d)); err == nil {
			if plain, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		layers = append(layers, layerOf(d, plain))
	}
	return layers
}

func TestLayersThatAreNot(t *testing.T) {
	good := imagetest.Archive(t, imagetest.File("a", strings.Repeat("x", 4000)))
	packed := imagetest.Gzip(t, good)
	wrong := layerOf(good, good)
	wrong.DiffID = sum([]byte("other"))
	other := layerOf(packed, good)
	other.Digest = sum([]byte("other"))
	long := layerOf(good, good)
	long.Size--
	broken := layerOf(good, good)
	broken.Open = func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(good[:1000]), failing{})), nil
	}
	bad := slices.Clone(good)
	bad[200] ^= 0xff
	for name, tt := range map[string]struct {
		layer Layer
		is    error
	}{
		"another archive than the configuration says": {wrong, images.ErrDigest},
		"other bytes than the manifest says":          {other, images.ErrDigest},
		"longer than the manifest says":               {long, images.ErrDigest},
		"a header that is damaged":                    {layerOf(bad, bad), images.ErrRefused},
		"cut in a file":                               {layerOf(good[:1000], good[:1000]), images.ErrRefused},
		"a cut gzip stream":                           {layerOf(packed[:len(packed)-9], good), images.ErrRefused},
		"gzip and then something else":                {layerOf(append(slices.Clone(packed), "tail"...), good), images.ErrRefused},
		"a cut zstd stream":                           {layerOf(zstandard(t, good)[:40], good), images.ErrRefused},
		"xz":                                          {layerOf([]byte("\xfd7zXZ\x00"), nil), images.ErrRefused},
		"no archive":                                  {layerOf([]byte(strings.Repeat("no archive", 200)), nil), images.ErrRefused},
		"a source that breaks":                        {broken, errBroken},
	} {
		if _, err := unpackAll(t, t.TempDir(), tight, tt.layer); !errors.Is(err, tt.is) {
			t.Errorf("%s: %v, want %v", name, err, tt.is)
		}
	}
	if _, err := unpackAll(t, t.TempDir(), tight, layerOf(nil, nil)); err != nil {
		t.Errorf("an empty layer: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBroken)
	if _, err := Unpack(ctx, t.TempDir(), plainLayers(good), Limits{}.WithDefaults(), false, func(Layer, int64) {}); !errors.Is(err, errBroken) {
		t.Errorf("cancelled: %v", err)
	}
}

var errBroken = errors.New("the line is broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
