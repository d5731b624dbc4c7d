//go:build linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/workspace"
)

// The benchmarks of `make bench`: each reports its median as p50-ns, and
// .ci/benchtable prints the ratios between ours and the peers'.

// timed runs op until the benchmark has enough and reports the median.
func timed(b *testing.B, op func() error) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := op(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
}

// BenchmarkExec is the round trip of one trivial command, request to exit
// status, in a sandbox that runs; the peers do the same in the same container.
func BenchmarkExec(b *testing.B) {
	b.Run("host", func(b *testing.B) {
		timed(b, func() error { return exec.CommandContext(b.Context(), "sh", "-c", "true").Run() })
	})
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			box := benchSandbox(b, name).start(b)
			timed(b, func() error { return runIn(b.Context(), box, nil, "sh", "-c", "true") })
		})
	}
	b.Run("engine-api", func(b *testing.B) {
		box := benchSandbox(b, "docker").start(b)
		api := engine(b)
		timed(b, func() error { return engineExec(b.Context(), api, box.Attestation().Container) })
	})
	for _, peer := range []struct{ name, backend, runtime string }{
		{"runc-exec", "runc", "runc"}, {"runsc-exec", "gvisor", "runsc"},
	} {
		b.Run(peer.name, func(b *testing.B) {
			bench := benchSandbox(b, peer.backend)
			box := bench.start(b)
			program := bench.runtime
			root := filepath.Join(bench.state, "oci", peer.backend)
			timed(b, func() error {
				out, err := exec.CommandContext(b.Context(), program, "--root", root, "exec", box.Attestation().Container, "/bin/sh", "-c", "true").CombinedOutput()
				if err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
				return nil
			})
		})
	}
}

// outputBytes is what the throughput benchmark writes.
const outputBytes = 64 << 20

// BenchmarkOutput is a command that writes 64 MiB; in a sandbox it is counted
// and hashed on its way.
func BenchmarkOutput(b *testing.B) {
	command := []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero | cat", outputBytes)}
	b.Run("host", func(b *testing.B) {
		timed(b, func() error {
			c := exec.CommandContext(b.Context(), command[0], command[1:]...)
			c.Stdout = struct{ io.Writer }{io.Discard}
			return c.Run()
		})
	})
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			box := benchSandbox(b, name).start(b)
			timed(b, func() error { return runIn(b.Context(), box, io.Discard, command...) })
		})
	}
}

// BenchmarkRead is a read of a file of 4 KiB through the workspace API.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("os", func(b *testing.B) {
		timed(b, func() error {
			_, err := os.ReadFile(path)
			return err
		})
	})
	b.Run("workspace", func(b *testing.B) {
		root, err := workspace.OpenDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = root.Close() })
		reader, err := workspace.NewReader(root, workspace.ReaderOptions{})
		if err != nil {
			b.Fatal(err)
		}
		timed(b, func() error {
			_, err := reader.ReadFile(b.Context(), "file", 0, 0)
			return err
		})
	})
}

// bench makes sandboxes of one backend on a workspace of its own.
type bench struct {
	backend sandbox.Backend
	runtime string
	state   string
	dir     *os.File
}

func benchSandbox(b *testing.B, name string) *bench {
	b.Helper()
	needBackend(b, name)
	root := b.TempDir()
	s := &bench{state: filepath.Join(root, "state")}
	work := filepath.Join(root, "workspace")
	for _, dir := range []string{s.state, work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
	}
	var err error
	if s.dir, err = os.Open(work); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.dir.Close() })
	guest := filepath.Join(binaries(b), "caisson-guest")
	switch name {
	case "docker":
		s.backend, err = docker.New(docker.Options{GuestPath: guest, StateDir: s.state})
	case "gvisor":
		s.runtime = filepath.Join(binaries(b), "runsc")
		s.backend, err = oci.New(oci.Options{Kind: oci.GVisor, RuntimePath: s.runtime, GuestPath: guest, StateDir: s.state})
	case "runc":
		if s.runtime, err = exec.LookPath("runc"); err == nil {
			s.backend, err = oci.New(oci.Options{Kind: oci.Runc, RuntimePath: s.runtime, GuestPath: guest, StateDir: s.state})
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// start makes a sandbox that is destroyed with the benchmark.
func (s *bench) start(b *testing.B) sandbox.Sandbox {
	b.Helper()
	session := "ses_" + ulid.Make().String()
	dir := filepath.Join(s.state, "sessions", session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	box, err := s.backend.Create(b.Context(), sandbox.Spec{
		Session:   session,
		Image:     images.Reference{Scheme: images.SchemeHost},
		Workspace: sandbox.Workspace{Path: s.dir.Name(), Dir: s.dir},
		Resources: limits.DefaultResources(),
		Dir:       dir,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = box.Destroy(context.WithoutCancel(b.Context())) })
	return box
}

// runIn runs a command to its end; another exit status than 0 is an error.
func runIn(ctx context.Context, box sandbox.Sandbox, stdout io.Writer, argv ...string) error {
	process, err := box.Start(ctx, sandbox.Command{Argv: argv, Stdout: stdout})
	if err != nil {
		return err
	}
	exit, err := process.Wait()
	if err != nil {
		return err
	}
	if !exit.Status.Success() {
		return fmt.Errorf("%s", exit.Status)
	}
	return nil
}

// engineExec is the way that an engine itself offers.
func engineExec(ctx context.Context, api *client.Client, id string) error {
	created, err := api.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: []string{"/bin/sh", "-c", "true"}, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	attached, err := api.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer attached.Close()
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, attached.Reader); err != nil {
		return err
	}
	inspected, err := api.ContainerExecInspect(ctx, created.ID)
	if err == nil && inspected.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", inspected.ExitCode)
	}
	return err
}
