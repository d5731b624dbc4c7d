package sessiondir

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unicode"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
	"github.com/caisson-run/caisson/runner/redact"
)

// TestLogHasNoSecret writes operators' log entries with secrets.
func TestLogHasNoSecret(t *testing.T) {
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	values := []string{"pass\"word\\with\nall", "an ordinary one"}
	secrets := []redact.Secret{{Name: "KEY", Value: values[0]}, {Name: "OTHER", Value: values[1]}}
	f, err := Create(state, secrets)
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
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := Create(state, nil)
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
