package docker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// ownUntilKilled starts a container on dir/workspace, with its state in
// dir/state, runs a long command in it, says so and waits.
func ownUntilKilled(dir string) error {
	state, session := filepath.Join(dir, "state"), os.Getenv(ownerHelper+"_SESSION")
	b, err := New(Options{GuestPath: os.Getenv(ownerHelper + "_GUEST"), StateDir: state})
	if err != nil {
		return err
	}
	held, err := os.Open(filepath.Join(dir, "workspace"))
	if err != nil {
		return err
	}
	own := filepath.Join(state, "sessions", session)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := b.Create(ctx, sandbox.Spec{
		Session: session, Image: images.Reference{Scheme: images.SchemeHost}, Dir: own,
		Workspace: sandbox.Workspace{Path: held.Name(), Dir: held}, Resources: limits.DefaultResources(),
	})
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	if _, err := s.Start(ctx, sandbox.Command{Argv: []string{"sh", "-c", "echo started; sleep 1000"}, Stdout: write}); err != nil {
		return err
	}
	if _, err := bufio.NewReader(read).ReadString('\n'); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready", s.ID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
