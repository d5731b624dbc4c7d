package images

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
)

// item is one entry of an archive: a header with the content that follows.
type item struct {
	tar.Header
	content string
}

func file(name, content string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func folder(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func symlink(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hardlink(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func special(kind byte, name string) item {
	return item{tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

// archive writes items as a tar archive.
func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, it := range items {
		h := it.Header
		h.Size, h.ModTime = int64(len(it.content)), time.Unix(1_000_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, it.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(s[:])
}

// layerOf is a layer that is stored as data and has plain as its archive.
func layerOf(data, plain []byte) layer {
	return layer{
		digest: sum(data), diffID: sum(plain), size: int64(len(data)), known: true,
		open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
	}
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// tight are limits that tests can reach.
var tight = Limits{
	Bytes: 1 << 20, FileBytes: 256 << 10, Entries: 400, Ratio: 100, RatioFloor: 64 << 10, PathBytes: 1024, Depth: 20, Layers: 8, Top: 20, MetadataBytes: 64 << 10,
}

func unpackAll(t testing.TB, dir string, limits Limits, layers ...layer) (unpacked, error) {
	t.Helper()
	return unpack(context.Background(), dir, layers, limits.withDefaults(), func(layer, int64) {})
}

// plainLayers are layers that are stored uncompressed.
func plainLayers(archives ...[]byte) (layers []layer) {
	for _, a := range archives {
		layers = append(layers, layerOf(a, a))
	}
	return layers
}

// listing is a tree as sorted lines: mode, name, links' targets, small content.
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
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestUnpack(t *testing.T) {
	suid := file("bin/su", "s")
	suid.Mode = 0o6755
	private := file("etc/shadow", "root:*")
	private.Mode = 0
	caps := file("bin/ping", "p")
	caps.Mode = 0o700
	caps.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.overlay.opaque": "y"}
	closed := folder("root")
	closed.Mode = 0
	tests := map[string]struct {
		layers  [][]item
		want    []string
		skipped []string
	}{
		"owners, bits and attributes are dropped": {
			layers: [][]item{{suid, private, caps, closed}},
			want: []string{
				"drwxr-xr-x bin", "-rwxr-xr-x bin/ping = p", "-rwxr-xr-x bin/su = s", "drwxr-xr-x etc", "-rw-r--r-- etc/shadow = root:*", "drwxr-xr-x root",
			},
		},
		"absolute and odd names": {
			layers: [][]item{{file("/a//b/./c", "x"), file("./d", "y"), folder("./")}},
			want:   []string{"drwxr-xr-x a", "drwxr-xr-x a/b", "-rw-r--r-- a/b/c = x", "-rw-r--r-- d = y"},
		},
		"links are kept as they are": {
			layers: [][]item{{symlink("a", "/etc/passwd"), symlink("b", "../../../x"), symlink("c", "loop/../c")}},
			want:   []string{"Lrwxrwxrwx a -> /etc/passwd", "Lrwxrwxrwx b -> ../../../x", "Lrwxrwxrwx c -> loop/../c"},
		},
		"a name below a link ends in the tree": {
			layers: [][]item{
				{folder("usr/lib"), symlink("lib", "usr/lib"), symlink("abs", "/usr/lib"), symlink("up", "../../../usr")},
				{file("lib/one", "1"), file("abs/two", "2"), file("up/lib/three", "3")},
			},
			want: []string{
				"Lrwxrwxrwx abs -> /usr/lib", "Lrwxrwxrwx lib -> usr/lib", "Lrwxrwxrwx up -> ../../../usr", "drwxr-xr-x usr",
				"drwxr-xr-x usr/lib", "-rw-r--r-- usr/lib/one = 1", "-rw-r--r-- usr/lib/three = 3", "-rw-r--r-- usr/lib/two = 2",
			},
		},
		"a link in place of what it is itself is replaced": {
			layers: [][]item{
				{folder("d"), file("d/f", "1"), symlink("l", "d"), symlink("g", "d/f")},
				{file("g", "2"), folder("l"), file("l/x", "3")},
			},
			want: []string{"drwxr-xr-x d", "-rw-r--r-- d/f = 1", "-rw-r--r-- g = 2", "drwxr-xr-x l", "-rw-r--r-- l/x = 3"},
		},
		"the last of one name wins": {
			layers: [][]item{{file("a", "1"), file("a", "2"), folder("b"), file("b/c", "3"), symlink("b", "a"), folder("e"), folder("e")}},
			want:   []string{"-rw-r--r-- a = 2", "Lrwxrwxrwx b -> a", "drwxr-xr-x e"},
		},
		"whiteouts hide lower layers": {
			layers: [][]item{
				{file("a", "1"), file("d/x", "1"), file("d/y", "1"), file("o/x", "1"), file("o/s/x", "1"), file("o/s/y", "1")},
				{file(".wh.a", ""), file("d/.wh.x", ""), file("d/.wh.absent", ""), file("none/.wh.x", ""), file("o/s/new", "2"), file("o/.wh..wh..opq", "")},
			},
			want: []string{"drwxr-xr-x d", "-rw-r--r-- d/y = 1", "drwxr-xr-x o", "drwxr-xr-x o/s", "-rw-r--r-- o/s/new = 2"},
		},
		"and not their own, in whatever order": {
			layers: [][]item{
				{file("a", "1"), file("d/old", "1")},
				{file("a", "2"), file(".wh.a", ""), file("d/new", "2"), file(".wh.d", "")},
			},
			want: []string{"-rw-r--r-- a = 2", "drwxr-xr-x d", "-rw-r--r-- d/new = 2"},
		},
		"a whiteout through a link": {
			layers: [][]item{
				{file("usr/lib/x", "1"), symlink("lib", "usr/lib")},
				{file("lib/.wh.x", "")},
			},
			want: []string{"Lrwxrwxrwx lib -> usr/lib", "drwxr-xr-x usr", "drwxr-xr-x usr/lib"},
		},
		"an opaque root": {
			layers: [][]item{{file("a/b", "1")}, {file("c", "2"), file(".wh..wh..opq", "")}},
			want:   []string{"-rw-r--r-- c = 2"},
		},
		"a whiteout of a device of its own layer": {
			layers:  [][]item{{file("a", "1")}, {special(tar.TypeFifo, "a"), file(".wh.a", "")}},
			skipped: []string{"/a"},
		},
		"a whiteout in the first layer, and AUFS's own": {
			layers: [][]item{{file("a", "1"), file(".wh.a", ""), file(".wh..wh.plnk/1.2", "x"), folder(".wh..wh.orph")}},
			want:   []string{"-rw-r--r-- a = 1"},
		},
		"hard links share a file, and replacing one leaves the other": {
			layers: [][]item{{file("a", "1"), hardlink("b", "a"), hardlink("c", "/b"), hardlink("a", "a")}, {file("b", "2")}},
			want:   []string{"-rw-r--r-- a = 1", "-rw-r--r-- b = 2", "-rw-r--r-- c = 1"},
		},
		"devices and the like are skipped, and replace what was there": {
			layers:  [][]item{{file("a", "1")}, {special(tar.TypeChar, "a"), special(tar.TypeBlock, "dev/sda"), special(tar.TypeFifo, "f")}},
			want:    []string{"drwxr-xr-x dev"},
			skipped: []string{"/a", "/dev/sda", "/f"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for form, encode := range map[string]func(testing.TB, []byte) []byte{
				"plain": func(_ testing.TB, b []byte) []byte { return b }, "gzip": gzipped, "zstd": zstandard,
			} {
				dir := t.TempDir()
				var layers []layer
				for _, items := range tt.layers {
					plain := archive(t, items...)
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
	old, late := file("old", "x"), file("late", "x")
	data := archive(t, old, late)
	if _, err := unpackAll(t, dir, tight, plainLayers(data)...); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "old"))
	if err != nil {
		t.Fatal(err)
	}
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

// naive unpacks as one would who trusts archives. It is the control of the
// table below: what harms nothing here proves nothing there.
func naive(dir string, layers [][]byte, stop int64) (written int64) {
	for _, data := range layers {
		var in io.Reader = bytes.NewReader(data)
		if z, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
			in = z
		}
		r := tar.NewReader(in)
		for {
			h, err := r.Next()
			if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
				break
			}
			p := filepath.Join(dir, h.Name)
			os.MkdirAll(filepath.Dir(p), 0o755)
			if base, ok := strings.CutPrefix(filepath.Base(h.Name), ".wh."); ok {
				os.RemoveAll(filepath.Dir(p) + "/" + base)
				continue
			}
			switch h.Typeflag {
			case tar.TypeDir:
				os.Mkdir(p, 0o700)
			case tar.TypeReg, tar.TypeGNUSparse:
				if f, err := os.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
					n, _ := io.Copy(f, io.LimitReader(r, stop))
					written += n
					f.Close()
				}
			case tar.TypeSymlink:
				os.Symlink(h.Linkname, p)
				continue
			case tar.TypeLink:
				os.Link(filepath.Join(dir, h.Linkname), p)
				continue
			case tar.TypeFifo:
				syscall.Mkfifo(p, 0o600)
			}
			mode := fs.FileMode(h.Mode & 0o777)
			if h.Mode&0o4000 != 0 {
				mode |= fs.ModeSetuid
			}
			os.Chmod(p, mode)
			if written > stop {
				return written
			}
		}
	}
	return written
}

// A hostile image: what it is made of, how it must end, and what tells that a
// naive unpacker was harmed.
type hostile struct {
	layers func(t testing.TB, outside string) [][]byte
	// refused is a part of the reason; empty where it is unpacked harmlessly.
	refused string
	// harmed looks at what the naive one left; nil looks for a change outside.
	harmed func(dir string, written int64) bool
}

func items(list ...item) func(testing.TB, string) [][]byte {
	return func(t testing.TB, _ string) [][]byte { return [][]byte{archive(t, list...)} }
}

// meets says whether a walk below dir meets what ok takes.
func meets(dir string, ok func(p string, info fs.FileInfo) bool) bool {
	hit := false
	filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error { //nolint:errcheck // best effort
		if e != nil {
			if info, err := e.Info(); err == nil && ok(p, info) {
				hit = true
			}
		}
		return nil
	})
	return hit
}

func holds(name string) func(string, int64) bool {
	return func(dir string, _ int64) bool { _, err := os.Lstat(filepath.Join(dir, name)); return err == nil }
}

func wrote(more int64) func(string, int64) bool {
	return func(_ string, written int64) bool { return written > more }
}

// many makes n entries.
func many(n int, each func(i int) item) func(testing.TB, string) [][]byte {
	return func(t testing.TB, _ string) [][]byte {
		var list []item
		for i := range n {
			list = append(list, each(i))
		}
		return [][]byte{archive(t, list...)}
	}
}

// sparse is an archive with one old GNU sparse file of size bytes that holds
// none of them.
func sparse(size int64) []byte {
	block := make([]byte, 512)
	copy(block, "hole")
	copy(block[100:], "0000644\x00")
	copy(block[124:], "00000000000\x00")
	copy(block[136:], "00000000000\x00")
	block[156] = 'S'
	copy(block[257:], "ustar  \x00")
	copy(block[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(block[483:], fmt.Sprintf("%011o\x00", size))
	copy(block[148:], "        ")
	total := 0
	for _, c := range block {
		total += int(c)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", total))
	return append(block, make([]byte, 1024)...)
}

func hostileImages() map[string]hostile {
	zeros := strings.Repeat("\x00", 200<<10)
	suid := file("su", "x")
	suid.Mode = 0o4755
	shut := folder("shut")
	shut.Mode = 0
	return map[string]hostile{
		"a name that goes up":        {layers: items(file("../outside/new", "x")), refused: "goes up"},
		"up in the middle":           {layers: items(folder("a"), file("a/../../outside/new", "x")), refused: "goes up"},
		"up behind an absolute name": {layers: items(file("/../outside/new", "x")), refused: "goes up"},
		"a folder that goes up":      {layers: items(folder("../outside/new")), refused: "goes up"},
		"a link that goes up":        {layers: items(symlink("../outside/new", "x")), refused: "goes up"},
		"a file below an absolute link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside), file("l/new", "x"))}
		}},
		"a file below a link up": {layers: items(symlink("l", "../outside"), file("l/new", "x"))},
		"a file below a link in a lower layer": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside)), archive(t, file("l/secret", "x"))}
		}},
		"a file through a link in its place": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside+"/secret"), file("l", "x"))}
		}},
		"a folder below two links": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("a", outside), symlink("b", "a"), folder("b/new"))}
		}},
		"a mode through a link": {layers: func(t testing.TB, outside string) [][]byte {
			d := folder("l")
			d.Mode = 0o777
			return [][]byte{archive(t, symlink("l", outside), d)}
		}},
		"a hard link up": {layers: items(hardlink("h", "../outside/secret"), file("h", "x")), refused: "goes up"},
		"a hard link through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside), hardlink("h", "l/secret"), file("h", "x"))}
		}, refused: "not there"},
		"a hard link to a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside+"/secret"), hardlink("h", "l"), file("h", "x"))}
		}, refused: "no regular file"},
		"a hard link to a folder": {
			layers: items(folder("d"), hardlink("h", "d"), file("mark", "x")), refused: "no regular file", harmed: holds("mark"),
		},
		"a hard link below itself": {
			layers: items(folder("d"), file("d/f", "x"), hardlink("d", "d/f")), refused: "not there", harmed: holds("d/f"),
		},
		"a whiteout of the parent": {
			layers: func(t testing.TB, _ string) [][]byte {
				return [][]byte{archive(t, file("a/b", "x")), archive(t, file("a/.wh...", ""))}
			}, refused: "whiteout of nothing", harmed: func(dir string, _ int64) bool { return !holds("a/b")(dir, 0) },
		},
		"a whiteout of its folder": {
			layers: func(t testing.TB, _ string) [][]byte {
				return [][]byte{archive(t, file("a/b", "x")), archive(t, file("a/.wh..", ""))}
			}, refused: "whiteout of nothing", harmed: func(dir string, _ int64) bool { return true },
		},
		"a whiteout of nothing": {
			layers: items(file("a/b", "x"), file("a/.wh.", "")), refused: "whiteout of nothing",
			harmed: func(dir string, _ int64) bool { return !holds("a/b")(dir, 0) },
		},
		"a whiteout through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside)), archive(t, file("l/.wh.secret", ""))}
		}},
		"an opaque folder through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{archive(t, symlink("l", outside)), archive(t, file("l/.wh..wh..opq", ""), file("l/new", "x"))}
		}},
		"a folder named like a whiteout": {
			layers: items(file("a", "x"), file(".wh.a/b", "x")), refused: "named like a whiteout", harmed: holds(".wh.a/b"),
		},
		"a loop of links": {
			layers: items(symlink("a", "b"), symlink("b", "a"), file("a/c", "x"), file("mark", "x")), refused: "links", harmed: holds("mark"),
		},
		"a name below a file": {
			layers: items(file("a", "x"), file("a/b", "x"), file("mark", "x")), refused: "no folder", harmed: holds("mark"),
		},
		"links that lead ever deeper": {layers: func(t testing.TB, _ string) [][]byte {
			deep := strings.Repeat("d/", 15)
			return [][]byte{archive(t, folder(deep), symlink("l", deep), folder("l/"+deep), symlink("m", "l/"+deep), folder("m/"+deep), file("m/"+deep+"f", "x"))}
		}, refused: "too deep", harmed: func(dir string, _ int64) bool {
			return meets(dir, func(p string, _ fs.FileInfo) bool { return strings.Count(p[len(dir):], "/") > 30 })
		}},
		"deep folders": {
			layers: items(folder(strings.Repeat("d/", 30))), refused: "components",
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(p string, _ fs.FileInfo) bool { return strings.Count(p[len(dir):], "/") > 25 })
			},
		},
		"a long name": {
			layers: items(file(strings.Repeat("d/", 600)+"f", "x")), refused: "a name of",
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(p string, _ fs.FileInfo) bool { return len(p)-len(dir) > 1100 })
			},
		},
		"a long component": {layers: items(file(strings.Repeat("x", 256), "x"), file("mark", "x")), refused: "a component of", harmed: holds("mark")},
		"setuid": {
			layers: items(suid),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool {
					return info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0
				})
			},
		},
		"a folder that can't be removed": {
			layers: items(shut, file("shut/f", "x")),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool { return info.IsDir() && info.Mode()&0o700 != 0o700 })
			},
		},
		"a pipe": {
			layers: items(special(tar.TypeFifo, "p")),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool { return !info.IsDir() && !info.Mode().IsRegular() })
			},
		},
		"the root as a link": {layers: items(symlink("./", "outside"), file("mark", "x")), refused: "root as something else", harmed: holds("mark")},
		"an empty link's target": {
			layers: items(symlink("l", ""), file("mark", "x")), refused: "without a target", harmed: holds("mark"),
		},
		"too many entries": {
			layers: many(500, func(i int) item { return folder(fmt.Sprint("d", i)) }), refused: "more than 400 entries", harmed: holds("d499"),
		},
		"too many parents": {
			layers:  many(60, func(i int) item { return folder(fmt.Sprintf("%d/2/3/4/5/6/7/8/9", i)) }),
			refused: "more than 400 entries", harmed: holds("59/2/3/4/5/6/7/8/9"),
		},
		"one name too often": {
			layers: many(500, func(int) item { return file("f", "x") }), refused: "more than 400 entries", harmed: wrote(400),
		},
		"a large file":     {layers: items(file("f", strings.Repeat("x", 300<<10))), refused: "a file of", harmed: wrote(256 << 10)},
		"many large files": {layers: many(8, func(i int) item { return file(fmt.Sprint(i), strings.Repeat("x", 200<<10)) }), refused: "over the limit", harmed: wrote(1 << 20)},
		"a bomb": {layers: func(t testing.TB, _ string) [][]byte {
			return [][]byte{gzipped(t, archive(t, file("zeros", zeros)))}
		}, refused: "times as large", harmed: wrote(150 << 10)},
		"a sparse file": {layers: func(testing.TB, string) [][]byte { return [][]byte{sparse(200 << 10)} }, refused: "times as large", harmed: wrote(150 << 10)},
		"a sparse file of a terabyte": {
			layers: func(testing.TB, string) [][]byte { return [][]byte{sparse(8 << 30 >> 1)} }, refused: "a file of", harmed: wrote(1 << 20),
		},
		"bytes after the archive's end": {layers: func(t testing.TB, _ string) [][]byte {
			return [][]byte{append(archive(t, file("f", strings.Repeat("x", 100))), make([]byte, 2<<20)...)}
		}, refused: "over the limit", harmed: wrote(0)},
	}
}

func TestHostileLayers(t *testing.T) {
	cases := hostileImages()
	if len(cases) < 40 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			outside := filepath.Join(base, "outside")
			fill := func() {
				if err := errors.Join(os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			fill()
			layers := tt.layers(t, outside)
			before := snapshot(t, outside)

			// The control.
			control := filepath.Join(base, "control")
			if err := os.Mkdir(control, 0o755); err != nil {
				t.Fatal(err)
			}
			written := naive(control, layers, 2<<20)
			harmed := !slices.Equal(before, snapshot(t, outside))
			if tt.harmed != nil {
				harmed = tt.harmed(control, written)
			}
			if !harmed {
				t.Error("the naive unpacker was not harmed: the case shows nothing")
			}
			if err := errors.Join(os.RemoveAll(outside), os.RemoveAll(control)); err != nil {
				t.Fatal(err)
			}

			fill()
			dir := filepath.Join(base, "control") // where the control was: the links fit
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			before = snapshot(t, outside)
			_, err := unpackAll(t, dir, tight, layersFrom(t, layers)...)
			if diff := cmp.Diff(before, snapshot(t, outside)); diff != "" {
				t.Errorf("outside changed (-before +after):\n%s", diff)
			}
			made := &LayerError{}
			switch {
			case tt.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.refused != "" && (!errors.As(err, &made) || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.refused)):
				t.Errorf("error %v, want a LayerError that says %q", err, tt.refused)
			}
			if tt.harmed != nil && tt.refused == "" && tt.harmed(dir, 0) {
				t.Error("the same harm as to the naive unpacker")
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// layersFrom are layers whose digests are right, so that nothing but their
// content can be refused.
func layersFrom(t *testing.T, data [][]byte) (layers []layer) {
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
	good := archive(t, file("a", strings.Repeat("x", 4000)))
	packed := gzipped(t, good)
	wrong := layerOf(good, good)
	wrong.diffID = sum([]byte("other"))
	other := layerOf(packed, good)
	other.digest = sum([]byte("other"))
	long := layerOf(good, good)
	long.size--
	broken := layerOf(good, good)
	broken.open = func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(good[:1000]), failing{})), nil
	}
	bad := slices.Clone(good)
	bad[200] ^= 0xff
	for name, tt := range map[string]struct {
		layer layer
		is    error
	}{
		"another archive than the configuration says": {wrong, ErrDigest},
		"other bytes than the manifest says":          {other, ErrDigest},
		"longer than the manifest says":               {long, ErrDigest},
		"a header that is damaged":                    {layerOf(bad, bad), ErrRefused},
		"cut in a file":                               {layerOf(good[:1000], good[:1000]), ErrRefused},
		"a cut gzip stream":                           {layerOf(packed[:len(packed)-9], good), ErrRefused},
		"gzip and then something else":                {layerOf(append(slices.Clone(packed), "tail"...), good), ErrRefused},
		"a cut zstd stream":                           {layerOf(zstandard(t, good)[:40], good), ErrRefused},
		"xz":                                          {layerOf([]byte("\xfd7zXZ\x00"), nil), ErrRefused},
		"no archive":                                  {layerOf([]byte(strings.Repeat("no archive", 200)), nil), ErrRefused},
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
	if _, err := unpack(ctx, t.TempDir(), plainLayers(good), Limits{}.withDefaults(), func(layer, int64) {}); !errors.Is(err, errBroken) {
		t.Errorf("cancelled: %v", err)
	}
}

var errBroken = errors.New("the line is broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }
