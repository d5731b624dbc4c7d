package sessiondir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox/overlay"
)

func TestWhatWasAppliedMeanwhileDoesNotExpire(t *testing.T) {
	dir, work := filepath.Join(t.TempDir(), OverlayDir), t.TempDir()
	opened, err := os.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	made, err := overlay.Create(dir, overlay.CreateOptions{Session: "ses_01JD0000000000000000000000", Path: work, Workspace: opened})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(made.Record(t.Context(), opened), made.Close()); err != nil {
		t.Fatal(err)
	}
	stale, err := overlay.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := overlay.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Lock(), other.End(overlay.Applied), other.Close()); err != nil {
		t.Fatal(err)
	}
	if state, err := expire(stale); err != nil || state != "" {
		t.Errorf("ended as %q, %v", state, err)
	}
	if now, err := overlay.Open(dir); err != nil || now.Info().State != overlay.Applied {
		t.Errorf("it is %+v, %v", now, err)
	}
}
