package sessiondir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

func TestStateFolderMustBeOurs(t *testing.T) {
	root := t.TempDir()
	open := filepath.Join(root, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(root, "real")
	if err := os.Mkdir(real, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{open, link, file} {
		_, err := Create(dir, nil)
		if !errors.As(err, new(*state.DirError)) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	f, err := Create(filepath.Join(real, "new"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error("a folder without a session is left")
	}
}

// TestStateDirectories: if a session's directory can't be made, or others could change it, the error
// names the configuration to change.
func TestStateDirectories(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"ours": 0o700, "group": 0o720} {
		if err := errors.Join(os.Mkdir(filepath.Join(root, name), 0o700), os.Chmod(filepath.Join(root, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"file": "can't be made", "group": "other users", "ours": ""} {
		dir, err := makeSessionDir(filepath.Join(root, name), "ses_1")
		if e, ok := errors.AsType[*state.DirError](err); ok != (want != "") || ok && !strings.Contains(e.Error(), want) || !ok && dir != filepath.Join(root, "ours/sessions/ses_1") {
			t.Errorf("%s: %q, %v", name, dir, err)
		}
	}
	if _, err := makeSessionDir(filepath.Join(root, "ours"), "ses_1"); err == nil {
		t.Error("a session's directory is made twice")
	}
}

// TestHeldLogs: one process holds a session's log, and asking does not hold it.
func TestHeldLogs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	owner, other, asker := open(), open(), open()
	defer other.Close()
	defer asker.Close()
	if held(asker) || held(other) {
		t.Error("one without a holder")
	}
	asker.Close()
	other.Close()
	other = open()
	if err := hold(owner); err != nil || hold(other) == nil || !held(other) {
		t.Errorf("held once: %v", err)
	}
	time.AfterFunc(state.ReleaseTime/10, func() { owner.Close() })
	if err := hold(other); err != nil {
		t.Errorf("it is held after its process: %v", err)
	}
}
