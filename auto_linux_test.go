package caisson

import (
	"context"
	"errors"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// incapable is a backend that can't run commands as root.
type incapable struct {
	sandboxtest.Fake
	name string
}

func (b *incapable) Name() string { return b.name }

func (b *incapable) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.User == sandbox.UserRoot {
		return nil, &sandbox.IncapableError{Request: "user root", Reason: "it is " + b.name, Hint: "use another"}
	}
	return b.Fake.Create(ctx, spec)
}

// TestAutoFallsBack: auto takes another backend for a sandbox that docker can't
// hold, and reports it; a backend that was named is never replaced.
func TestAutoFallsBack(t *testing.T) {
	for name, tt := range map[string]struct {
		backend   string
		allowed   []string
		incapable bool // error
	}{
		"auto":            {backend: "auto"},
		"docker":          {backend: "docker", incapable: true},
		"auto, alone":     {backend: "auto", allowed: []string{"docker"}, incapable: true},
		"auto, with runc": {backend: "auto", allowed: []string{"docker", "runc"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost(HostOptions{
				StateDir: t.TempDir(), Environ: []string{"HOME=" + t.TempDir()}, Backends: tt.allowed, Guest: "/bin/sh", Runsc: "/bin/sh", Runc: "/bin/sh",
				NewBackend: func(b BackendSettings) (sandbox.Backend, error) {
					if b.Name == "docker" {
						return &incapable{name: b.Name}, nil
					}
					return &sandboxtest.Fake{}, nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			told := ""
			b, _, err := h.Choose(t.Context(), tt.backend, func(text string) { told = text })
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Create(t.Context(), sandbox.Spec{User: sandbox.UserRoot})
			if got := errors.As(err, new(*sandbox.IncapableError)); got != tt.incapable || (told != "") == tt.incapable {
				t.Errorf("error %v, told %q", err, told)
			}
		})
	}
}

// TestSweepWithoutEngine: an engine that was looked for and is absent leaves nothing to
// sweep, unless a session of the state directory has noted something there.
func TestSweepWithoutEngine(t *testing.T) {
	state := t.TempDir()
	h, err := NewHost(HostOptions{StateDir: state, Environ: []string{"HOME=" + t.TempDir()}, Backends: []string{"docker"}, Guest: "/bin/sh", DockerHost: "unix:///nonexistent"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Backend("docker"); err != nil {
		t.Fatal(err)
	}
	if left, err := h.Sweep(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
