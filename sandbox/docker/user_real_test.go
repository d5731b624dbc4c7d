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

// A user who may not use the engine is told what to do.
func TestNoPermissionForTheEngine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: to become another user")
	}
	b := newBed(t, memberID)
	base := filepath.Dir(b.state)
	for _, dir := range []string{base, filepath.Dir(base)} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, filepath.Walk(b.state, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, memberID, memberID)
	}))
	_, err := tryOwner(t, b, newSession(), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: memberID, Gid: memberID}})
	if err == nil || !strings.Contains(err.Error(), "join its group") {
		t.Errorf("error %v", err)
	}
}
