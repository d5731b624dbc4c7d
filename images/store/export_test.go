package store

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

func TestExport(t *testing.T) {
	setuid := imagetest.File("app/run", "#!/bin/sh\n")
	setuid.Header.Mode = 0o4755
	im := makeImage(t, imageSpec{
		layers: [][]byte{imagetest.Archive(t, imagetest.WithShell(
			imagetest.Directory("app"), imagetest.Directory("app/sub"), imagetest.File("app/sub/file", "content"), setuid,
			imagetest.Symlink("app/out", "/etc"), imagetest.Symlink("app/up", "../../../../etc/passwd"), imagetest.Symlink("link", "/etc"), imagetest.Symlink("up", ".."),
			imagetest.Special(tar.TypeFifo, "app/pipe"), imagetest.File("file", "x"),
		)...)},
		config: v1.Config{WorkingDir: "/app/"},
	})
	reg := newRegistry(t)
	reg.push(t, "x:1", im)
	s, ref := openStore(t, storeDir(t)), reg.ref(t, "x:1")
	dir := filepath.Join(t.TempDir(), "work")
	got, err := s.Export(t.Context(), ref, "", dir)
	if err != nil || got.Path != "/app" || got.Entries != 5 || got.Bytes != int64(len("content#!/bin/sh\n")) {
		t.Fatalf("%+v, %v", got, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "sub/file")); err != nil || string(data) != "content" {
		t.Errorf("sub/file holds %q, %v", data, err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "run")); err != nil || info.Mode() != 0o755 {
		t.Errorf("run is %v, %v, want 0755 without set-user-ID", info.Mode(), err)
	}
	for name, want := range map[string]string{"out": "/etc", "up": "../../../../etc/passwd"} {
		if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != want {
			t.Errorf("%s leads to %q, %v", name, target, err)
		}
	}
	if _, err := s.Export(t.Context(), ref, "", dir); !errors.Is(err, images.ErrInvalid) {
		t.Errorf("into a directory with files: %v, want ErrInvalid", err)
	}
	for name, want := range map[string]error{
		"/": images.ErrInvalid, "app": images.ErrInvalid, "/app/../etc": images.ErrInvalid, "/app/..": images.ErrInvalid, "/link": images.ErrInvalid, "/up": images.ErrInvalid,
		"/app/out": images.ErrInvalid, "/file": images.ErrInvalid, "/none": images.ErrNotFound, "/app/sub/file": images.ErrInvalid,
	} {
		other := filepath.Join(t.TempDir(), "other")
		if _, err := s.Export(t.Context(), ref, name, other); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if entries, _ := os.ReadDir(other); len(entries) > 0 {
			t.Errorf("%s: %d entries were copied", name, len(entries))
		}
	}
	s.o.Limits.Bytes = 10
	if _, err := s.Export(t.Context(), ref, "/app", filepath.Join(t.TempDir(), "small")); !errors.Is(err, images.ErrRefused) {
		t.Errorf("beyond the bound: %v, want ErrRefused", err)
	}
}
