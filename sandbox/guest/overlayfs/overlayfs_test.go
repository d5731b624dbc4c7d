package overlayfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openLayers makes layers with a file in each lower one, and a file "same" in
// all.
func openLayers(t *testing.T, lowers int) Layers {
	t.Helper()
	if os.Getuid() != 0 {
		if strings.TrimSpace(os.Getenv("REQUIRE_BACKENDS")) != "" {
			t.Fatal("mounting an overlay needs root, and REQUIRE_BACKENDS is set")
		}
		t.Skip("mounting an overlay needs root")
	}
	root := t.TempDir()
	open := func(name string) *os.File {
		path := filepath.Join(root, name)
		err := os.Mkdir(path, 0o755)
		if err == nil && name != "upper" && name != "work" {
			err = errors.Join(os.WriteFile(filepath.Join(path, name), nil, 0o644), os.WriteFile(filepath.Join(path, "same"), []byte(name), 0o644))
		}
		f, openErr := os.Open(path)
		if err := errors.Join(err, openErr); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	l := Layers{Upper: open("upper"), Work: open("work")}
	for i := range lowers {
		l.Lowers = append(l.Lowers, open(fmt.Sprint("l", i)))
	}
	return l
}

// TestMountByPath mounts as many layers as a session may have in the way that
// all kernels know, and more than fit.
func TestMountByPath(t *testing.T) {
	const most = 20 + 1 // frozen layers and the original
	l := openLayers(t, 100)
	// Four-digit descriptors, as in a process with many sandboxes.
	for i, f := range l.Lowers {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 9000)
		if err != nil {
			t.Skipf("descriptors above 9000: %v", err)
		}
		high := os.NewFile(uintptr(fd), f.Name())
		t.Cleanup(func() { high.Close() })
		l.Lowers[i] = high
	}
	if mount, err := Mount(l, ByPath); !errors.Is(err, ErrTooManyLayers) {
		t.Errorf("100 layers: %v, %v", mount, err)
	}
	l.Lowers = l.Lowers[:most]
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	mount, err := Mount(l, ByPath)
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	dir, err := OpenDir(mount)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil || len(names) != most+1 {
		t.Errorf("%d files, %v", len(names), err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/same", dir.Fd()))
	if err != nil || string(text) != "l0" {
		t.Errorf("the top layer is %q, %v", text, err)
	}
	if now, err := os.Getwd(); err != nil || now != here {
		t.Errorf("the working directory is %s, %v", now, err)
	}
}
