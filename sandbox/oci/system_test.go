package oci

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// Where namespaces are forbidden, the cause precedes the runtime's error.
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
	if err := b.checkNamespaces(); !errors.Is(err, sandbox.ErrNoNamespaces) || !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("an ordinary user's check: %v", err)
	}
}

// Root in a container gets the error before anything starts. A runtime's
// refused /proc is recognised.
func TestRootThatMayNotMount(t *testing.T) {
	t.Cleanup(func() { tryMount, tryUserNamespace = TryMount, TryUserNamespace })
	b := &Backend{}
	tryMount = func() error { return nil }
	if err := b.checkNamespaces(); err != nil {
		t.Errorf("where root may mount: %v", err)
	}
	tryMount = func() error { return unix.ENOSYS } // before Linux 5.12
	if err := b.checkNamespaces(); err != nil {
		t.Errorf("on an old kernel: %v", err)
	}
	tryMount = func() error { return unix.EPERM }
	if err := b.checkNamespaces(); !errors.Is(err, sandbox.ErrNoNamespaces) || !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("where root may not mount: %v", err)
	}
	tryUserNamespace = func() error { return nil }
	for _, text := range []string{`error mounting "proc" to rootfs: operation not permitted`, "error setting up chroot: pivot_root failed, make sure that the root mount has a parent: operation not permitted"} {
		if err := explainFailure(fmt.Errorf("%w: %s", sandbox.ErrUnavailable, text)); !errors.Is(err, sandbox.ErrNoNamespaces) {
			t.Errorf("%s: %v", text, err)
		}
	}
	raw := fmt.Errorf("%w: error mounting \"/x\" to rootfs", sandbox.ErrUnavailable)
	if err := explainFailure(raw); errors.Is(err, sandbox.ErrNoNamespaces) {
		t.Errorf("another mount: %v", err)
	}
}

// TestChooseIsolation: gVisor without namespaces is taken where none can be made,
// with the reason, or if it is forced. Otherwise the start fails.
func TestChooseIsolation(t *testing.T) {
	t.Cleanup(func() { tryMount = TryMount })
	for _, tt := range []struct {
		kind   Kind
		forced sandbox.Isolation
		mounts error
		want   sandbox.Isolation
		why    string
	}{
		{GVisor, "", nil, sandbox.IsolationNamespaces, ""},
		{GVisor, "", unix.EPERM, sandbox.IsolationProcess, "this process may not make any (operation not permitted)"},
		{GVisor, sandbox.IsolationProcess, nil, sandbox.IsolationProcess, ""},
		{GVisor, sandbox.IsolationNamespaces, unix.EPERM, "", ""},
		{Runc, "", unix.EPERM, "", ""},
	} {
		tryMount = func() error { return tt.mounts }
		b := &Backend{options: Options{Kind: tt.kind, Isolation: tt.forced}}
		got, why, err := b.chooseIsolation()
		if tt.want == "" {
			if !errors.Is(err, sandbox.ErrNoNamespaces) {
				t.Errorf("%+v: error %v", tt, err)
			}
		} else if err != nil || got != tt.want || why != tt.why {
			t.Errorf("%+v: %q, %q, %v", tt, got, why, err)
		}
	}
}

func TestOOMScore(t *testing.T) {
	for own, want := range map[string]int{"0": 500, "": 500, "-997": -497, "3": 503, "967": 1000, "1000": 1000} {
		if got := oomScore(own); got != want {
			t.Errorf("beside %q: %d, want %d", own, got, want)
		}
	}
}
