package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/docker"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/workspace"
)

// The benchmarks of `make bench`: each reports its medians, and .ci/benchtable
// prints the ratios. What is compared takes turns in one loop, so that the
// machine's load hits all of it alike.

// side is one of the things that are compared.
type side struct {
	name string // the prefix of its unit; empty for ours
	op   func() error
	// before is done before each op and not timed.
	before func()
	// every says that it takes its turn in each n-th round only, because it
	// takes so much longer; zero means 1.
	every int
	// used is the processor time so far, [processorTime] if it is nil.
	used func() time.Duration
}

// compare runs the sides in turns until the benchmark has enough, and reports
// the median of each as NAMEp50-ns, and of the processor time that this process
// and those that it waited for took, which load hardly changes, as NAMEcpu-ns.
func compare(b *testing.B, sides ...side) {
	b.Helper()
	took, used := make([][]time.Duration, len(sides)), make([][]time.Duration, len(sides))
	for round := 0; b.Loop(); round++ {
		for i, s := range sides {
			if round%max(s.every, 1) != 0 {
				continue
			}
			if s.before != nil {
				s.before()
			}
			processorTime := processorTime
			if s.used != nil {
				processorTime = s.used
			}
			start, startUsed := time.Now(), processorTime()
			if err := s.op(); err != nil {
				b.Fatalf("%s: %v", cmp.Or(s.name, "ours"), err)
			}
			took[i], used[i] = append(took[i], time.Since(start)), append(used[i], processorTime()-startUsed)
		}
	}
	b.ReportMetric(0, "ns/op") // of all sides together: means nothing
	for i, s := range sides {
		slices.Sort(took[i])
		slices.Sort(used[i])
		b.ReportMetric(float64(took[i][len(took[i])/2]), s.name+"p50-ns")
		b.ReportMetric(float64(used[i][len(used[i])/2]), s.name+"cpu-ns")
	}
}

// processorTime returns the processor time of this process and of those that it
// waited for.
func processorTime() time.Duration {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}

// slower is how many rounds a peer is left out of that takes 25 times as long.
const slower = 10

// BenchmarkExec is the round trip of one trivial command, request to exit
// status, in a sandbox that runs, beside the same on the host and by what the
// engine or the runtime itself offers, in the same container.
func BenchmarkExec(b *testing.B) {
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			bench := benchSandbox(b, name)
			box := bench.start(b)
			sides := []side{
				{op: func() error { return runIn(b.Context(), box, nil, "sh", "-c", "true") }},
				{name: "host-", op: func() error { return exec.CommandContext(b.Context(), "sh", "-c", "true").Run() }},
			}
			if name == "docker" {
				api := engine(b)
				sides = append(sides, side{name: "engine-api-", every: slower, op: func() error {
					return engineExec(b.Context(), api, box.Attestation().Container)
				}})
			} else {
				root := filepath.Join(bench.state, "oci", name)
				sides = append(sides, side{name: "runtime-", every: slower, op: func() error {
					out, err := exec.CommandContext(b.Context(), bench.runtime, "--root", root, "exec", box.Attestation().Container, "/bin/sh", "-c", "true").CombinedOutput()
					if err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				}})
			}
			compare(b, sides...)
			b.ReportMetric(1, "killed-by-"+box.Attestation().KillMethod)
		})
	}
}

// outputMiB is what the throughput benchmark writes.
const outputMiB = 256

// BenchmarkOutput is a command that writes 256 MiB to a reader that throws them
// away; in a sandbox they are counted, hashed and streamed on their way. It
// also reports by how much this process's memory grew meanwhile.
func BenchmarkOutput(b *testing.B) {
	command := []string{"sh", "-c", fmt.Sprintf("dd if=/dev/zero bs=1M count=%d 2>/dev/null | cat", outputMiB)}
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			box := benchSandbox(b, name).start(b)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			compare(b,
				side{op: func() error {
					process, err := box.Start(b.Context(), sandbox.Command{Argv: command, Stdout: io.Discard, Output: sandbox.OutputLimits{Live: outputMiB << 20}})
					if err != nil {
						return err
					}
					exit, err := process.Wait()
					if err == nil && exit.Stdout.Live != outputMiB<<20 {
						err = fmt.Errorf("%s, %d bytes streamed", exit.Status, exit.Stdout.Live)
					}
					return err
				}},
				side{name: "drained-", op: func() error { return runIn(b.Context(), box, io.Discard, command...) }},
				side{name: "host-", op: func() error {
					c := exec.CommandContext(b.Context(), command[0], command[1:]...)
					c.Stdout = struct{ io.Writer }{io.Discard}
					return c.Run()
				}})
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(int64(after.Sys)-int64(before.Sys))/(1<<20), "MiB-grown")
		})
	}
}

// BenchmarkRead is a read of a file of 4 KiB through the workspace API.
func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	path := filepath.Join(dir, "file")
	writeFile(b, path, make([]byte, 4096), 0o600)
	root, err := workspace.OpenDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = root.Close() })
	reader, err := workspace.NewReader(root, workspace.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	compare(b,
		side{op: func() error {
			_, err := reader.ReadFile(b.Context(), "file", 0, 0)
			return err
		}},
		side{name: "os-", op: func() error {
			_, err := os.ReadFile(path)
			return err
		}})
}

// bench makes sandboxes of one backend on a workspace of its own.
type bench struct {
	backend sandbox.Backend
	runtime string
	state   string
	dir     *os.File
}

func benchSandbox(b testing.TB, name string) *bench {
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
func (s *bench) start(b testing.TB) sandbox.Sandbox {
	b.Helper()
	return s.startSpec(b, func(*sandbox.Spec) {})
}

// startSpec is start with a spec that change has changed.
func (s *bench) startSpec(b testing.TB, change func(*sandbox.Spec)) sandbox.Sandbox {
	b.Helper()
	session := "ses_" + ulid.Make().String()
	dir := filepath.Join(s.state, "sessions", session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	spec := s.spec(session, dir)
	change(&spec)
	box, err := s.backend.Create(b.Context(), spec)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = box.Destroy(context.WithoutCancel(b.Context())) })
	return box
}

func (s *bench) spec(session, dir string) sandbox.Spec {
	return sandbox.Spec{
		Session:   session,
		Setup:     sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()},
		Workspace: sandbox.Workspace{Path: s.dir.Name(), Dir: s.dir},
		Dir:       dir,
	}
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
