package programs

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

func TestCheckExec(t *testing.T) {
	if err := CheckExec(t.TempDir()); err != nil {
		t.Errorf("directory of tests: %v", err)
	}
	worktest.RunOnNoExec(t, func(dir string) {
		err := CheckExec(dir)
		if e, ok := errors.AsType[*NoExecError](err); !ok || e.Path != dir || !strings.Contains(err.Error(), "mounted noexec") {
			t.Errorf("error %v", err)
		}
		if err := CheckExec(dir + "/absent"); err != nil {
			t.Errorf("absent path: %v", err)
		}
	})
}
