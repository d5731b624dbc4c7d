package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

// TestPatchAndReportHaveNoSecret checks the files beside the trace.
func TestPatchAndReportHaveNoSecret(t *testing.T) {
	secret := redact.Secret{Name: "KEY", Value: `a<b>&c"d-secret`}
	secrets := []redact.Secret{secret}
	diff := "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+key = " + secret.Value + "\n"
	r := Report{Dir: t.TempDir(), Patch: diff, SessionEnded: record.SessionEnded{Answer: "the key is " + secret.Value, Problem: &record.Problem{Cause: secret.Value}}}
	if err := r.writePatch(secrets); err != nil {
		t.Fatal(err)
	}
	if err := r.writeReport(secrets); err != nil {
		t.Fatal(err)
	}
	patch, err := os.ReadFile(filepath.Join(r.Dir, "workspace.patch"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "# keys were left out of this diff: it does not apply as it is\n" + strings.Replace(diff, secret.Value, "[redacted:KEY]", 1); string(patch) != want {
		t.Errorf("patch %q, want %q", patch, want)
	}
	if sum := sha256.Sum256(patch); r.PatchSHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("hash %q", r.PatchSHA256)
	}
	if r.Patch != diff {
		t.Error("the user's own patch was changed")
	}
	var got Report
	text, err := os.ReadFile(filepath.Join(r.Dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Answer != "the key is [redacted:KEY]" || got.Problem.Cause != "[redacted:KEY]" {
		t.Errorf("report %s, %v", text, err)
	}
	// Without a secret, both are unchanged.
	r.Patch = "-a\n+b\n"
	if err := r.writePatch(secrets); err != nil {
		t.Fatal(err)
	}
	if patch, _ := os.ReadFile(filepath.Join(r.Dir, "workspace.patch")); string(patch) != r.Patch {
		t.Errorf("patch %q", patch)
	}
	// A resumed session that takes its changes back leaves no patch.
	r = Report{Dir: r.Dir}
	if err := r.writePatch(secrets); err != nil || r.PatchSHA256 != "" {
		t.Errorf("%v, hash %q", err, r.PatchSHA256)
	}
	if _, err := os.Stat(filepath.Join(r.Dir, "workspace.patch")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
