package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/dockerfile"
	"github.com/caisson-run/caisson/limits"
)

// buildOutside builds the Dockerfile in ref's directory with the options'
// builder, into a docker archive below temp. The builder decides what the steps
// may do on this machine; they have no network. It gets a copy of the
// Dockerfile that was checked.
func buildOutside(ctx context.Context, ref images.Reference, o *Options, temp string, progress io.Writer) (archive string, err error) {
	dir := ref.Path()
	archive = filepath.Join(temp, "image.tar")
	checked, err := checkDockerfile(dir, temp)
	if err != nil {
		return "", fmt.Errorf("image %s: its Dockerfile: %w", ref, err)
	}
	switch {
	case o.Buildctl != "":
		return archive, runBuilder(ctx, o, progress, o.Buildctl, "build", "--frontend", "dockerfile.v0",
			"--local", "context="+dir, "--local", "dockerfile="+filepath.Dir(checked),
			"--opt", "platform="+o.Platform, "--opt", "force-network-mode=none",
			"--progress", "plain", "--output", "type=docker,dest="+archive)
	case o.Buildah != "":
		id := filepath.Join(temp, "id")
		err := runBuilder(ctx, o, progress, o.Buildah, "build", "--network", "none", "--platform", o.Platform, "--iidfile", id, "--file", checked, dir)
		if err != nil {
			return "", err
		}
		built, err := os.ReadFile(id)
		if err != nil {
			return "", fmt.Errorf("read the image id of %s: %w", o.Buildah, err)
		}
		return archive, runBuilder(ctx, o, progress, o.Buildah, "push", strings.TrimSpace(string(built)), "docker-archive:"+archive)
	}
	return "", fmt.Errorf("image %s: %w: no builder found: want a Docker engine, buildctl with a buildkitd, or buildah: "+
		"install one, or build elsewhere and use docker-archive:FILE", ref, images.ErrUnsupported)
}

// checkDockerfile copies dir's Dockerfile below temp and returns the copy's
// path. It fails if a builder might use its own network for an instruction.
func checkDockerfile(dir, temp string) (file string, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }() // only read
	text, err := dockerfile.ReadFile(root, "Dockerfile", dockerfile.MaxBytes)
	if err != nil {
		return "", fmt.Errorf("%w: %w", images.ErrInvalid, err)
	}
	if err := dockerfile.Check(text); err != nil {
		return "", fmt.Errorf("%w: %w", images.ErrUnsupported, err)
	}
	file = filepath.Join(temp, "build", "Dockerfile")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return file, os.WriteFile(file, text, 0o600)
}

// runBuilder runs a builder and copies its output to progress. Its error has
// the end of the output. On cancellation the builder gets SIGINT, and SIGKILL
// after 10 s.
func runBuilder(ctx context.Context, o *Options, progress io.Writer, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = o.BuilderEnv
	cmd.Dir = "/"
	last := &limits.Tail{Size: 2048}
	cmd.Stdout = io.MultiWriter(progress, last)
	cmd.Stderr = cmd.Stdout
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("build: %w", context.Cause(ctx))
		}
		return fmt.Errorf("build: %w: %s %s: %w: %q", images.ErrInvalid, filepath.Base(program), args[0], err, strings.TrimSpace(last.String()))
	}
	return nil
}

// lineWriter calls line for each line written to it, cut at 4 KiB.
type lineWriter struct {
	line func(text string)
	rest []byte
}

func (l *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		head, after, whole := bytes.Cut(p, []byte{'\n'})
		if room := 4096 - len(l.rest); room > 0 {
			l.rest = append(l.rest, head[:min(room, len(head))]...)
		}
		if whole {
			l.line(string(l.rest))
			l.rest = l.rest[:0]
		}
		p = after
	}
	return n, nil
}
