package oci

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// TestExplainFailure: what a runtime says where namespaces are forbidden is
// preceded by the cause, and nothing of it is lost.
func TestExplainFailure(t *testing.T) {
	raw := errors.Join(sandbox.ErrUnavailable, errors.New("fork/exec /proc/self/exe: operation not permitted"))
	if err := explainFailure(raw); TryUserNamespace() == nil && err.Error() != raw.Error() {
		t.Errorf("where namespaces can be made: %v", err)
	}
	tryUserNamespace = func() error { return unix.EPERM }
	t.Cleanup(func() { tryUserNamespace = TryUserNamespace })
	err := explainFailure(raw)
	if !errors.Is(err, sandbox.ErrNoNamespaces) || !errors.Is(err, unix.EPERM) || !strings.HasSuffix(err.Error(), raw.Error()) {
		t.Errorf("where they can't: %v", err)
	}
	if again := explainFailure(err); again.Error() != err.Error() {
		t.Errorf("explained twice: %v", again)
	}
	if other := errors.New("a full disk"); explainFailure(other).Error() != other.Error() {
		t.Error("a failure of another kind is explained by namespaces")
	}
	b := &Backend{rootless: true}
	if err := b.checkSystem(); !errors.Is(err, sandbox.ErrNoNamespaces) || !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("an ordinary user's check: %v", err)
	}
}
