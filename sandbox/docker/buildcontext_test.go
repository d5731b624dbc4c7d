package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
)

// contextOf returns the type, and the content or target, of each entry that is
// sent for a directory.
func contextOf(t *testing.T, dir string) (map[string]string, error) {
	t.Helper()
	c, err := openContext(dir)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var buffer bytes.Buffer
	if err := c.writeTar(t.Context(), &buffer); err != nil {
		return nil, err
	}
	got := map[string]string{}
	r := tar.NewReader(&buffer)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || len(h.Xattrs) > 0 { //nolint:staticcheck // what an old reader would see
			t.Errorf("%s belongs to %d:%d %s", h.Name, h.Uid, h.Gid, h.Uname)
		}
		data, err := io.ReadAll(r)
		must(t, err)
		got[h.Name] = string(h.Typeflag) + string(data) + h.Linkname
	}
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return dir
}

func TestBuildContext(t *testing.T) {
	outside := tree(t, map[string]string{"canary": "secret"})
	for name, tt := range map[string]struct {
		files map[string]string
		make  func(t *testing.T, dir string)
		want  map[string]string
	}{
		"files and directories": {
			files: map[string]string{"Dockerfile": "FROM scratch", "a/b/c": "x"},
			want:  map[string]string{"Dockerfile": "0FROM scratch", "a/": "5", "a/b/": "5", "a/b/c": "0x"},
		},
		"links are sent, not followed": {
			files: map[string]string{"Dockerfile": ""},
			make: func(t *testing.T, dir string) {
				must(t, os.Symlink(filepath.Join(outside, "canary"), filepath.Join(dir, "out")))
				must(t, os.Symlink(outside, filepath.Join(dir, "directory")))
				must(t, os.Symlink("../x", filepath.Join(dir, "up")))
			},
			want: map[string]string{"Dockerfile": "0", "out": "2" + filepath.Join(outside, "canary"), "directory": "2" + outside, "up": "2../x"},
		},
		"pipes and sockets are left out": {
			files: map[string]string{"Dockerfile": ""},
			make: func(t *testing.T, dir string) {
				must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
				fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
				must(t, err)
				defer syscall.Close(fd)
				must(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: "socket"}))
			},
			want: map[string]string{"Dockerfile": "0"},
		},
		"what is ignored": {
			files: map[string]string{"Dockerfile": "", ".dockerignore": "# comment\nsecrets\n**/*.key\n/top\n", "secrets/a": "1", "x/y.key": "2", "x/y.txt": "3", "top": "4", "sub/top": "5"},
			want:  map[string]string{"Dockerfile": "0", ".dockerignore": "0# comment\nsecrets\n**/*.key\n/top\n", "x/": "5", "x/y.txt": "03", "sub/": "5", "sub/top": "05"},
		},
		"exceptions": {
			files: map[string]string{"Dockerfile": "", ".dockerignore": "*\n!kept\n!deep/in/it\n", "kept": "1", "not": "2", "deep/in/it": "3", "deep/in/other": "4"},
			want:  map[string]string{"Dockerfile": "0", ".dockerignore": "0*\n!kept\n!deep/in/it\n", "kept": "01", "deep/in/it": "03"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, tt.files)
			if tt.make != nil {
				t.Chdir(dir)
				tt.make(t, dir)
			}
			got, err := contextOf(t, dir)
			must(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("context (-want +got):\n%s", diff)
			}
		})
	}
	// Control: a reader that follows symlinks would have sent the canary.
	if data, err := os.ReadFile(filepath.Join(outside, "canary")); err != nil || string(data) != "secret" {
		t.Errorf("control: %q %v", data, err)
	}
}

func TestBuildContextFails(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		make  func(t *testing.T, dir string)
		want  error
		says  string
	}{
		"no Dockerfile":          {files: map[string]string{"x": ""}, want: images.ErrNotFound, says: "Dockerfile"},
		"Dockerfile elsewhere":   {make: func(t *testing.T, dir string) { must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "Dockerfile"))) }, want: images.ErrNotFound, says: "Dockerfile"},
		"Dockerfile a directory": {files: map[string]string{"Dockerfile/x": ""}, want: images.ErrInvalid, says: "Dockerfile"},
		"bad pattern":            {files: map[string]string{"Dockerfile": "", ".dockerignore": "[a\n"}, want: images.ErrInvalid, says: ".dockerignore"},
		"ignore file a pipe": {files: map[string]string{"Dockerfile": ""}, make: func(t *testing.T, dir string) {
			must(t, syscall.Mkfifo(filepath.Join(dir, ".dockerignore"), 0o644))
		}, want: images.ErrInvalid, says: ".dockerignore"},
		"ignore file of a megabyte": {files: map[string]string{"Dockerfile": "", ".dockerignore": strings.Repeat("#\n", maxIgnoreBytes)}, want: images.ErrInvalid, says: ".dockerignore"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, tt.files)
			if tt.make != nil {
				tt.make(t, dir)
			}
			if _, err := contextOf(t, dir); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %v that says %q", err, tt.want, tt.says)
			}
		})
	}
	if _, err := openContext(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent directory: %v", err)
	}
}

// A directory that is too large is refused before all of it is read.
func TestBuildContextIsBounded(t *testing.T) {
	dir := tree(t, map[string]string{"Dockerfile": "", "large": ""})
	must(t, os.Truncate(filepath.Join(dir, "large"), maxContextBytes+1))
	if _, err := contextOf(t, dir); !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), ".dockerignore") {
		t.Errorf("%v, want one that names .dockerignore", err)
	}
}
