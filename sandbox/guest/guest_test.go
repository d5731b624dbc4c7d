package guest_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

func clean() { guesttest.Clean() }

func dial(t testing.TB, o guesttest.Options, change ...func(*guest.Options)) (*guest.Conn, *guesttest.Guest) {
	t.Helper()
	g := guesttest.Start(t, o)
	spec := sandbox.Spec{Setup: sandbox.Setup{Resources: limits.DefaultResources()}}
	spec.Workspace.Path = g.Workspace
	options := guest.Options{Conn: g.Conn, Config: guest.NewConfig(spec)}
	for _, f := range change {
		f(&options)
	}
	c, err := guest.Dial(t.Context(), options)
	if err != nil {
		t.Fatalf("dial: %v\n%s", err, g.Stderr)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c, g
}

type result struct {
	sandbox.Exit
	stdout, stderr string
}

// start starts a command and collects its output; wait ends it.
func start(ctx context.Context, t testing.TB, c *guest.Conn, cmd sandbox.Command) (wait func() result) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	p, err := c.Start(ctx, cmd)
	if err != nil {
		t.Fatalf("start %q: %v", cmd.Argv, err)
	}
	return func() result {
		t.Helper()
		exit, err := p.Wait()
		if err != nil {
			t.Fatalf("wait for %q: %v", cmd.Argv, err)
		}
		return result{exit, stdout.String(), stderr.String()}
	}
}

func sh(t testing.TB, c *guest.Conn, script string) result {
	t.Helper()
	return start(t.Context(), t, c, sandbox.Command{Argv: []string{"sh", "-c", script}})()
}
