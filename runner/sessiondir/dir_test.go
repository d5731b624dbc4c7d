package sessiondir

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
	"github.com/caisson-run/caisson/runner/redact"
)

// TestLogHasNoSecret writes entries as they are written for operators.
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
