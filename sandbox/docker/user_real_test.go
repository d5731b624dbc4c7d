package docker

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// socketGroup returns the group that may use the engine's socket.
func socketGroup(t *testing.T) uint32 {
	t.Helper()
	info, err := os.Stat(engineSocket(t))
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Gid
}

func engineSocket(t *testing.T) string {
	t.Helper()
	e, err := resolveEndpoint("", os.Getenv)
	must(t, err)
	path, ok := strings.CutPrefix(e.host, "unix://")
	if !ok {
		t.Skipf("needs an engine on a socket, not at %s", e.host)
	}
	return path
}

// userBed returns a bed whose directories all belong to an ordinary user.
func userBed(t *testing.T, uid int) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: to become another user")
	}
	b := newBed(t, uid)
	base := filepath.Dir(b.state)
	for _, dir := range []string{base, filepath.Dir(base)} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, filepath.Walk(b.state, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 1000, 1000)
	}))
	return b
}

// A docker group member's containers make files of that user.
func TestOrdinaryUser(t *testing.T) {
	for _, mode := range []os.FileMode{0o755, 0o700} {
		t.Run(mode.String(), func(t *testing.T) {
			b := userBed(t, 1000)
			must(t, os.Chmod(b.workspace, mode))
			owner := startOwner(t, b, newSession(), &syscall.SysProcAttr{Credential: &syscall.Credential{
				Uid: 1000, Gid: 1000, Groups: []uint32{socketGroup(t)},
			}})
			if left, err := b.leftovers("none"); len(left) > 0 || err != nil {
				t.Errorf("%q %v", left, err)
			}
			info, err := os.Stat(filepath.Join(b.workspace, "made-by-the-command"))
			must(t, err)
			if st := info.Sys().(*syscall.Stat_t); st.Uid != 1000 || st.Gid != 1000 {
				t.Errorf("file belongs to %d:%d", st.Uid, st.Gid)
			}
			must(t, owner.Process.Kill())
			owner.Wait()
		})
	}
}

func TestOrdinaryUserOnAnothersWorkspace(t *testing.T) {
	b := userBed(t, 0)
	_, err := tryOwner(t, b, newSession(), &syscall.SysProcAttr{Credential: &syscall.Credential{
		Uid: 1000, Gid: 1000, Groups: []uint32{socketGroup(t)},
	}})
	if err == nil || !strings.Contains(err.Error(), "belongs to uid 0") {
		t.Errorf("error %v", err)
	}
}

// A user who may not use the engine is told what to do.
func TestNoPermissionForTheEngine(t *testing.T) {
	b := userBed(t, 1000)
	_, err := tryOwner(t, b, newSession(), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}})
	if err == nil || !strings.Contains(err.Error(), "join its group") {
		t.Errorf("error %v", err)
	}
}
