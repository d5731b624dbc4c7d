package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// naive unpacks without checks. It is the control of the table below: what
// doesn't harm it proves nothing.
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

type hostile struct {
	layers func(t testing.TB, outside string) [][]byte
	// refused is part of the error, or empty if it is unpacked harmlessly.
	refused string
	// harmed checks what naive left. Without it, a change outside counts.
	harmed func(dir string, written int64) bool
}

func items(list ...imagetest.Item) func(testing.TB, string) [][]byte {
	return func(t testing.TB, _ string) [][]byte { return [][]byte{imagetest.Archive(t, list...)} }
}

// meets reports whether ok accepts an entry below dir.
func meets(dir string, ok func(p string, info fs.FileInfo) bool) bool {
	hit := false
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error { // best effort
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

func many(n int, each func(i int) imagetest.Item) func(testing.TB, string) [][]byte {
	return func(t testing.TB, _ string) [][]byte {
		var list []imagetest.Item
		for i := range n {
			list = append(list, each(i))
		}
		return [][]byte{imagetest.Archive(t, list...)}
	}
}

// sparse is an archive with an old GNU sparse file of size bytes without data.
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
	suid := imagetest.File("su", "x")
	suid.Mode = 0o4755
	shut := imagetest.Directory("shut")
	shut.Mode = 0
	return map[string]hostile{
		"a name that goes up":        {layers: items(imagetest.File("../outside/new", "x")), refused: "goes up"},
		"up in the middle":           {layers: items(imagetest.Directory("a"), imagetest.File("a/../../outside/new", "x")), refused: "goes up"},
		"up behind an absolute name": {layers: items(imagetest.File("/../outside/new", "x")), refused: "goes up"},
		"a directory that goes up":   {layers: items(imagetest.Directory("../outside/new")), refused: "goes up"},
		"a link that goes up":        {layers: items(imagetest.Symlink("../outside/new", "x")), refused: "goes up"},
		"a file below an absolute link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside), imagetest.File("l/new", "x"))}
		}},
		"a file below a link up": {layers: items(imagetest.Symlink("l", "../outside"), imagetest.File("l/new", "x"))},
		"a file below a link in a lower layer": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside)), imagetest.Archive(t, imagetest.File("l/secret", "x"))}
		}},
		"a file through a link in its place": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside+"/secret"), imagetest.File("l", "x"))}
		}},
		"a directory below two links": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("a", outside), imagetest.Symlink("b", "a"), imagetest.Directory("b/new"))}
		}},
		"a mode through a link": {layers: func(t testing.TB, outside string) [][]byte {
			d := imagetest.Directory("l")
			d.Mode = 0o777
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside), d)}
		}},
		"a hard link up": {layers: items(imagetest.Hardlink("h", "../outside/secret"), imagetest.File("h", "x")), refused: "goes up"},
		"a hard link through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside), imagetest.Hardlink("h", "l/secret"), imagetest.File("h", "x"))}
		}, refused: "missing file"},
		"a hard link to a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside+"/secret"), imagetest.Hardlink("h", "l"), imagetest.File("h", "x"))}
		}, refused: "other than a regular file"},
		"a hard link to a directory": {
			layers: items(imagetest.Directory("d"), imagetest.Hardlink("h", "d"), imagetest.File("mark", "x")), refused: "other than a regular file", harmed: holds("mark"),
		},
		"a hard link below itself": {
			layers: items(imagetest.Directory("d"), imagetest.File("d/f", "x"), imagetest.Hardlink("d", "d/f")), refused: "missing file", harmed: holds("d/f"),
		},
		"a whiteout of the parent": {
			layers: func(t testing.TB, _ string) [][]byte {
				return [][]byte{imagetest.Archive(t, imagetest.File("a/b", "x")), imagetest.Archive(t, imagetest.File("a/.wh...", ""))}
			}, refused: "whiteout of nothing", harmed: func(dir string, _ int64) bool { return !holds("a/b")(dir, 0) },
		},
		"a whiteout of its directory": {
			layers: func(t testing.TB, _ string) [][]byte {
				return [][]byte{imagetest.Archive(t, imagetest.File("a/b", "x")), imagetest.Archive(t, imagetest.File("a/.wh..", ""))}
			}, refused: "whiteout of nothing", harmed: func(dir string, _ int64) bool { return true },
		},
		"a whiteout of nothing": {
			layers: items(imagetest.File("a/b", "x"), imagetest.File("a/.wh.", "")), refused: "whiteout of nothing",
			harmed: func(dir string, _ int64) bool { return !holds("a/b")(dir, 0) },
		},
		"a whiteout through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside)), imagetest.Archive(t, imagetest.File("l/.wh.secret", ""))}
		}},
		"an opaque directory through a link": {layers: func(t testing.TB, outside string) [][]byte {
			return [][]byte{imagetest.Archive(t, imagetest.Symlink("l", outside)), imagetest.Archive(t, imagetest.File("l/.wh..wh..opq", ""), imagetest.File("l/new", "x"))}
		}},
		"a directory named like a whiteout": {
			layers: items(imagetest.File("a", "x"), imagetest.File(".wh.a/b", "x")), refused: "named like a whiteout", harmed: holds(".wh.a/b"),
		},
		"a loop of links": {
			layers: items(imagetest.Symlink("a", "b"), imagetest.Symlink("b", "a"), imagetest.File("a/c", "x"), imagetest.File("mark", "x")), refused: "symlinks", harmed: holds("mark"),
		},
		"a name below a file": {
			layers: items(imagetest.File("a", "x"), imagetest.File("a/b", "x"), imagetest.File("mark", "x")), refused: "other than a directory", harmed: holds("mark"),
		},
		"links that lead ever deeper": {layers: func(t testing.TB, _ string) [][]byte {
			deep := strings.Repeat("d/", 15)
			return [][]byte{imagetest.Archive(t, imagetest.Directory(deep), imagetest.Symlink("l", deep), imagetest.Directory("l/"+deep), imagetest.Symlink("m", "l/"+deep), imagetest.Directory("m/"+deep), imagetest.File("m/"+deep+"f", "x"))}
		}, refused: "too deep", harmed: func(dir string, _ int64) bool {
			return meets(dir, func(p string, _ fs.FileInfo) bool { return strings.Count(p[len(dir):], "/") > 30 })
		}},
		"deep directories": {
			layers: items(imagetest.Directory(strings.Repeat("d/", 30))), refused: "components",
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(p string, _ fs.FileInfo) bool { return strings.Count(p[len(dir):], "/") > 25 })
			},
		},
		"a long name": {
			layers: items(imagetest.File(strings.Repeat("d/", 600)+"f", "x")), refused: "a name of",
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(p string, _ fs.FileInfo) bool { return len(p)-len(dir) > 1100 })
			},
		},
		"a long component": {layers: items(imagetest.File(strings.Repeat("x", 256), "x"), imagetest.File("mark", "x")), refused: "a component of", harmed: holds("mark")},
		"setuid": {
			layers: items(suid),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool {
					return info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0
				})
			},
		},
		"a directory that can't be removed": {
			layers: items(shut, imagetest.File("shut/f", "x")),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool { return info.IsDir() && info.Mode()&0o700 != 0o700 })
			},
		},
		"a pipe": {
			layers: items(imagetest.Special(tar.TypeFifo, "p")),
			harmed: func(dir string, _ int64) bool {
				return meets(dir, func(_ string, info fs.FileInfo) bool { return !info.IsDir() && !info.Mode().IsRegular() })
			},
		},
		"the root as a link": {layers: items(imagetest.Symlink("./", "outside"), imagetest.File("mark", "x")), refused: "root as something other", harmed: holds("mark")},
		"an empty link's target": {
			layers: items(imagetest.Symlink("l", ""), imagetest.File("mark", "x")), refused: "without a target", harmed: holds("mark"),
		},
		"too many entries": {
			layers: many(500, func(i int) imagetest.Item { return imagetest.Directory(fmt.Sprint("d", i)) }), refused: "more than 400 entries", harmed: holds("d499"),
		},
		"too many parents": {
			layers:  many(60, func(i int) imagetest.Item { return imagetest.Directory(fmt.Sprintf("%d/2/3/4/5/6/7/8/9", i)) }),
			refused: "more than 400 entries", harmed: holds("59/2/3/4/5/6/7/8/9"),
		},
		"one name too often": {
			layers: many(500, func(int) imagetest.Item { return imagetest.File("f", "x") }), refused: "more than 400 entries", harmed: wrote(400),
		},
		"a large file":     {layers: items(imagetest.File("f", strings.Repeat("x", 300<<10))), refused: "a file of", harmed: wrote(256 << 10)},
		"many large files": {layers: many(8, func(i int) imagetest.Item { return imagetest.File(fmt.Sprint(i), strings.Repeat("x", 200<<10)) }), refused: "more than", harmed: wrote(1 << 20)},
		"a bomb": {layers: func(t testing.TB, _ string) [][]byte {
			return [][]byte{imagetest.Gzip(t, imagetest.Archive(t, imagetest.File("zeros", zeros)))}
		}, refused: "expands to", harmed: wrote(150 << 10)},
		"a sparse file": {layers: func(testing.TB, string) [][]byte { return [][]byte{sparse(200 << 10)} }, refused: "expands to", harmed: wrote(150 << 10)},
		"a sparse file of a terabyte": {
			layers: func(testing.TB, string) [][]byte { return [][]byte{sparse(8 << 30 >> 1)} }, refused: "a file of", harmed: wrote(1 << 20),
		},
		"bytes after the archive's end": {layers: func(t testing.TB, _ string) [][]byte {
			return [][]byte{append(imagetest.Archive(t, imagetest.File("f", strings.Repeat("x", 100))), make([]byte, 2<<20)...)}
		}, refused: "more than", harmed: wrote(0)},
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
				must(t, errors.Join(os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600)))
			}
			fill()
			layers := tt.layers(t, outside)
			before := imagetest.Snapshot(t, outside)

			// The control.
			control := filepath.Join(base, "control")
			must(t, os.Mkdir(control, 0o755))
			written := naive(control, layers, 2<<20)
			harmed := !slices.Equal(before, imagetest.Snapshot(t, outside))
			if tt.harmed != nil {
				harmed = tt.harmed(control, written)
			}
			if !harmed {
				t.Error("the naive unpacker was not harmed: the case shows nothing")
			}
			must(t, errors.Join(os.RemoveAll(outside), os.RemoveAll(control)))

			fill()
			dir := filepath.Join(base, "control") // where the control was: the links fit
			must(t, os.Mkdir(dir, 0o755))
			before = imagetest.Snapshot(t, outside)
			_, err := unpackAll(t, dir, tight, layersFrom(t, layers)...)
			if diff := cmp.Diff(before, imagetest.Snapshot(t, outside)); diff != "" {
				t.Errorf("outside changed (-before +after):\n%s", diff)
			}
			layerErr := &Error{}
			switch {
			case tt.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.refused != "" && (!errors.As(err, &layerErr) || !errors.Is(err, images.ErrRefused) || !strings.Contains(err.Error(), tt.refused)):
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
