package sessiondir

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/internal/secrettest"
	"github.com/caisson-run/caisson/runner/redact"
)

// TestStateDirMustBeOurs: if a session's directory can't be made, or others could change the
// state directory, the error is a [state.DirError] that says why.
func TestStateDirMustBeOurs(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"ours": 0o700, "group": 0o720, "all": 0o777} {
		if err := errors.Join(os.Mkdir(filepath.Join(root, name), 0o700), os.Chmod(filepath.Join(root, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("ours", filepath.Join(root, "link")), os.WriteFile(filepath.Join(root, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"file": "can't be made", "link": "symlink", "group": "other users", "all": "other users", "ours": "", "ours/new": ""} {
		f, err := Create(filepath.Join(root, name), nil)
		if e, ok := errors.AsType[*state.DirError](err); ok != (want != "") || ok && !strings.Contains(e.Error(), want) || !ok && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(f.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the directory of a session that never began is left", name)
		}
	}
	for i, want := range []bool{true, false} {
		if _, err := makeSessionDir(filepath.Join(root, "ours"), "ses_1"); (err == nil) != want {
			t.Errorf("a session's directory, made %d times before: %v", i, err)
		}
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
		t.Cleanup(func() { f.Close() })
		return f
	}
	owner, other, asker := open(), open(), open()
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

// TestLogHasNoSecret writes operators' log entries with secrets.
func TestLogHasNoSecret(t *testing.T) {
	stateDir := t.TempDir()
	if err := os.Chmod(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	values := []string{"pass\"word\\with\nall", "an ordinary one"}
	secrets := []redact.Secret{{Name: "KEY", Value: values[0]}, {Name: "OTHER", Value: values[1]}}
	f, err := Create(stateDir, secrets)
	if err != nil {
		t.Fatal(err)
	}
	f.Log.Info("the key is "+values[0], zap.String("url", "https://x/?k="+values[1]), zap.Error(errors.New(values[0])))
	text, err := os.ReadFile(filepath.Join(f.Path, LogFile))
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]any
	if err := json.Unmarshal(text, &entry); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	secrettest.VisitStrings(entry, func(s string) {
		if found := secrettest.FindLeak(s, values); found != "" {
			t.Errorf("the log has %s", found)
		}
	})
	if entry["msg"] != "the key is [redacted:KEY]" || entry["error"] != "[redacted:KEY]" {
		t.Errorf("entry %s", text)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLogHasNoControls: a log is safe to print.
func TestLogHasNoControls(t *testing.T) {
	stateDir := t.TempDir()
	if err := os.Chmod(stateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := Create(stateDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	hostile := "\x1b[2J\a\r\x7f\u009b31m\u202eevil\u200b\u2066\U000E0041"
	f.Log.Warn(hostile, zap.String("path", hostile), zap.Error(errors.New(hostile)))
	text, err := os.ReadFile(filepath.Join(f.Path, LogFile))
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	if i := bytes.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 || !bytes.Contains(text, []byte("evil")) {
		t.Errorf("the log has %q", text)
	}
	var entry struct{ Msg, Path, Error string }
	if err := json.Unmarshal(text, &entry); err != nil || entry.Msg != hostile || entry.Path != hostile || entry.Error != hostile {
		t.Errorf("the entry is %+q, %v", entry, err)
	}
}
