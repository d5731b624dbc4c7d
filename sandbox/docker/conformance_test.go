//go:build linux

package docker

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

// TestConformance holds the backend to the contract, by the suite that every
// backend passes.
func TestConformance(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the suite's workspaces belong to several users")
	}
	b := newBed(t, 0)
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	sandboxtest.Run(t, b.target())
}

// TestConformanceRunsc is the same with gVisor as the engine's runtime.
func TestConformanceRunsc(t *testing.T) {
	e := privateengine.New(t, "--add-runtime", "runsc="+findRunsc(t))
	target := privateBed(t, e, Options{Runtime: "runsc", Logger: zap.NewNop()}).target()
	target.LimitsKillSandbox, target.PIDsSpareSandbox, target.OwnKernel, target.FloodBytes = true, true, true, 64<<20
	sandboxtest.Run(t, target)
}

func (b *bed) target() sandboxtest.Target {
	return sandboxtest.Target{
		Backend: inState{b.backend, b.state}, Image: images.Reference{Scheme: images.SchemeHost},
		Kill: func(ctx context.Context, sb sandbox.Sandbox) error {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return err
			}
			return r.engine.ContainerRemove(ctx, sb.ID(), container.RemoveOptions{Force: true})
		},
		Pause: func(ctx context.Context, sb sandbox.Sandbox) error {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return err
			}
			return r.engine.(*client.Client).ContainerPause(ctx, sb.ID())
		},
		HostProcess: func(ctx context.Context, sb sandbox.Sandbox) (int, error) {
			r, _, err := b.backend.connect(ctx)
			if err != nil {
				return 0, err
			}
			got, err := r.engine.ContainerInspect(ctx, sb.ID())
			if err != nil {
				return 0, err
			}
			return got.State.Pid, nil
		},
		Leftovers: b.leftovers,
		Programs:  []string{b.backend.options.GuestPath},
	}
}

// inState gives each session of the suite a folder below the backend's state
// folder, as Caisson does.
type inState struct {
	*Backend
	state string
}

func (b inState) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	spec.Dir = filepath.Join(b.state, "sessions", spec.Session)
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, err
	}
	return b.Backend.Create(ctx, spec)
}
