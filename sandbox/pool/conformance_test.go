//go:build linux

package pool

import (
	"context"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// TestConformance runs the suite through a pool: pooled sandboxes behave like
// others.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	state := t.TempDir()
	fake := &sandboxtest.Fake{StateDir: state}
	p, err := New(fake, Options{Size: 2, StateDir: state})
	must(t, err)
	inner := func(sb sandbox.Sandbox) sandbox.Sandbox {
		if g, ok := sb.(*pooledSandbox); ok {
			return g.Sandbox
		}
		return sb
	}
	sandboxtest.Run(t, sandboxtest.Target{
		Backend: p, Image: images.Reference{Scheme: images.SchemeHost}, Probe: sandboxtest.BuildProbe(t), StateDir: state,
		FloodBytes: 4 << 20, LimitsKillSandbox: true, OwnKernel: true, NoOverlay: true, Copies: true, NoPrograms: true,
		Kill:        func(ctx context.Context, sb sandbox.Sandbox) error { return fake.Kill(ctx, inner(sb)) },
		Pause:       func(ctx context.Context, sb sandbox.Sandbox) error { return fake.Pause(ctx, inner(sb)) },
		HostProcess: func(ctx context.Context, sb sandbox.Sandbox) (int, error) { return fake.HostProcess(ctx, inner(sb)) },
		Leftovers:   fake.Leftovers,
	})
	must(t, p.Close())
}
