package batch

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// TestUnpackLeavesRoom: what an agent left can't fill the disk, and it is the agent's failure,
// which a full disk isn't. The control fits.
func TestUnpackLeavesRoom(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a file system of its own")
	}
	dir := t.TempDir()
	must(t, syscall.Mount("room", dir, "tmpfs", 0, "size=512m"))
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	for name, size := range map[string]int64{"fits": 100 << 20, "too large": 600 << 20} {
		to := filepath.Join(dir, name)
		must(t, os.Mkdir(to, 0o755))
		err := unpackFiltered(t.Context(), os.DevNull, to, archive.UnpackOptions{}, func(w *archive.Writer, _ *os.File) error {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o600, Size: size}); err != nil {
				return err
			}
			piece := bytes.Repeat([]byte("x"), 1<<20)
			for range size >> 20 {
				if _, err := w.Write(piece); err != nil {
					return err
				}
			}
			return nil
		})
		var limit *limits.ExceededError
		var failed *failure
		if full := name == "too large"; full != (errors.As(err, &limit) && limit.Kind == limits.KindDisk) || full != errors.As(blame(true, StateUnreadable, err), &failed) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, os.RemoveAll(to))
	}
}
