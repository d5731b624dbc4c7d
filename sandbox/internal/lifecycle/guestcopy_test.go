package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// TestCopyGuestToNoExec checks that a guest that could not be executed is
// refused with the cause, at each call.
func TestCopyGuestToNoExec(t *testing.T) {
	source := filepath.Join(t.TempDir(), "guest")
	must(t, os.WriteFile(source, []byte("#!/bin/false\n"), 0o755))
	worktest.RunOnNoExec(t, func(dir string) {
		b := Backend{Options: Options{BackendOptions: workmount.BackendOptions{StateDir: dir}, GuestPath: source}}
		for range 2 {
			_, err := b.copyGuest()
			if !errors.Is(err, sandbox.ErrUnavailable) || !errors.As(err, new(*programs.NoExecError)) {
				t.Errorf("error %v", err)
			}
		}
	})
}
