// Package imagetest makes archives for the tests of images.
package imagetest

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
	"testing"
	"time"

	"github.com/caisson-run/caisson/images/internal/digest"
)

// Item is an entry of an archive.
type Item struct {
	tar.Header
	Content string
}

// File returns a regular file.
func File(name, content string) Item {
	return Item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

// Directory returns a directory.
func Directory(name string) Item {
	return Item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

// Symlink returns a symlink to target.
func Symlink(name, target string) Item {
	return Item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

// Hardlink returns a hard link to target.
func Hardlink(name, target string) Item {
	return Item{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

// Special returns an entry of another kind, such as a device or pipe.
func Special(kind byte, name string) Item {
	return Item{tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

// Archive writes items as a tar archive.
func Archive(t testing.TB, items ...Item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, it := range items {
		h := it.Header
		h.Size, h.ModTime = int64(len(it.Content)), time.Unix(1_000_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, it.Content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Gzip compresses data.
func Gzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// WithShell returns a root filesystem's entries with a shell, and more.
func WithShell(more ...Item) []Item {
	sh := File("bin/sh", "#!")
	sh.Mode = 0o755
	return append([]Item{sh, File("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:33:33::/app:/bin/sh\n")}, more...)
}

// DockerArchive returns a docker archive of an image with a shell, or of
// entries. If config is "", it fits the image.
func DockerArchive(t testing.TB, config string, entries ...Item) []byte {
	t.Helper()
	sh := Archive(t, WithShell()...)
	if config == "" {
		config = fmt.Sprintf(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[%q]}}`, digest.Of(sh))
	}
	if entries == nil {
		entries = []Item{File("manifest.json", `[{"Config":"c.json","Layers":["a/layer.tar"]}]`), File("c.json", config), File("a/layer.tar", string(sh))}
	}
	return Archive(t, entries...)
}

// Snapshot lists the entries below dir with mode, size, modification time and a
// symlink's target, so that tests can see whether anything has changed.
func Snapshot(t testing.TB, dir string) []string {
	t.Helper()
	var entries []string
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(p); err != nil {
				return err
			}
		}
		entries = append(entries, fmt.Sprintf("%s %v %d %d %s", p[len(dir):], info.Mode(), info.Size(), info.ModTime().UnixNano(), target))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// Zeros is an endless reader of zero bytes.
type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
