package caisson

import (
	"context"
	"errors"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// refusing is a backend that makes no sandbox.
type refusing struct {
	sandbox.Backend // nil: nothing else is called
	name            string
	err             error
}

func (b *refusing) Name() string { return b.name }

func (b *refusing) Check(context.Context) (sandbox.Info, error) {
	return sandbox.Info{Local: true}, nil
}

func (b *refusing) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, b.err }

// TestAutoFallsBack: auto uses another backend for a sandbox that docker can't provide,
// and reports it. A named backend is never replaced.
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
					if b.Name == "docker" { // which can't run commands as root
						return &refusing{name: b.Name, err: &sandbox.IncapableError{Request: "user root", Reason: "it is " + b.Name, Hint: "use another"}}, nil
					}
					return &refusing{name: b.Name, err: sandbox.ErrInvalid}, nil
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
			_, err = b.Create(t.Context(), sandbox.Spec{Setup: sandbox.Setup{User: sandbox.UserRoot}})
			if got := errors.As(err, new(*sandbox.IncapableError)); got != tt.incapable || (told != "") == tt.incapable {
				t.Errorf("error %v, told %q", err, told)
			}
		})
	}
}

// TestSweepWithoutEngine: an absent engine leaves nothing to sweep, unless a session of
// the state directory has noted something there.
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
