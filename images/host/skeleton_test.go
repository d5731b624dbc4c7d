package host

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

var small = images.RootFS{
	Dirs:     []images.Dir{{Path: "/a", Mode: 0o755}, {Path: "/a-b", Mode: 0o700}, {Path: "/a/c", Mode: 0o1777}},
	Symlinks: []images.Symlink{{Path: "/bin", Target: "usr/bin"}},
	Files:    []images.File{{Path: "/a/f", Content: []byte("hello\n")}},
	Binds:    []images.Bind{{Source: "/x", Path: "/a-b", IsDir: true}, {Source: "/y", Path: "/a/bound", IsDir: false}, {Source: "/z", Path: "/a-b/inner", IsDir: false}},
}

func TestWriteSkeleton(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := t.TempDir()
	must(t, WriteSkeleton(&small, dir))
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := e.Info()
		got[p[len(dir):]] = info.Mode().String()
		return err
	})
	must(t, err)
	want := map[string]string{
		"/a": "drwxr-xr-x", "/a-b": "drwx------", "/a/c": "dtrwxrwxrwx", "/bin": "Lrwxrwxrwx", "/a/f": "-rw-r--r--", "/a/bound": "-rw-r--r--",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("skeleton (-want +got):\n%s", diff)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "a/f")); err != nil || string(data) != "hello\n" {
		t.Errorf("file holds %q, %v", data, err)
	}
	if err := WriteSkeleton(&small, dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second skeleton over the first: %v, want fs.ErrExist", err)
	}
}

func TestSkeletonTar(t *testing.T) {
	var one, two bytes.Buffer
	must(t, WriteSkeletonTar(&small, &one))
	must(t, WriteSkeletonTar(&small, &two))
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two archives of one skeleton differ")
	}
	var got []string
	r := tar.NewReader(&one)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, err)
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname+string(data))
	}
	want := []string{
		"drwxr-xr-x a/ ", "-rw-r--r-- a/bound ", "dtrwxrwxrwx a/c/ ", "-rw-r--r-- a/f hello\n", "drwx------ a-b/ ", "Lrwxrwxrwx bin usr/bin",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
}

func TestDirectory(t *testing.T) {
	dir := machine(t, "usr/bin/sh", "bin -> usr/bin", "etc/passwd", "home/user/secret", "dev/null", "var/lib/x", "tmp/left", ".dockerenv")
	before := imagetest.Snapshot(t, dir)
	r, err := Directory(t.Context(), dir)
	must(t, err)
	want := map[string]string{"/usr": "/usr", "/etc": "/etc", "/var": "/var", "/.dockerenv": "/.dockerenv"}
	if diff := cmp.Diff(want, binds(r, dir)); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	if err := WriteSkeleton(r, t.TempDir()); err != nil {
		t.Errorf("skeleton of a directory: %v", err)
	}
	if diff := cmp.Diff(before, imagetest.Snapshot(t, dir)); diff != "" {
		t.Errorf("the directory changed (-before +after):\n%s", diff)
	}
	must(t, os.WriteFile(filepath.Join(dir, "usr/bin/sh"), []byte("other"), 0o755))
	if again, err := Directory(t.Context(), dir); err != nil || again.Digest == r.Digest {
		t.Errorf("another content has the same digest (%v)", err)
	}
}

func TestDirectoryErrors(t *testing.T) {
	if _, err := Directory(t.Context(), filepath.Join(t.TempDir(), "absent")); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
	if _, err := Directory(t.Context(), machine(t, "etc/passwd")); !errors.Is(err, images.ErrInvalid) {
		t.Errorf("no shell: %v", err)
	}
	if _, err := Directory(t.Context(), filepath.Join(machine(t, "file"), "file")); !errors.Is(err, images.ErrInvalid) {
		t.Errorf("a file: %v", err)
	}
}

func BenchmarkHost(b *testing.B) {
	for b.Loop() {
		if _, err := RootFS(b.Context(), Options{}); err != nil {
			b.Skip("needs a host image: ", err)
		}
	}
}
