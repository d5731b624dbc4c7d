package docker

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
)

// benchBed has the image and binds of a running session for plain containers,
// for comparison.
type benchBed struct {
	*bed
	engine *client.Client
	host   *container.HostConfig
	image  string
}

func newBenchBed(b *testing.B) *benchBed {
	b.Helper()
	bed := newBed(b, 0)
	bed.backend = bed.open(b, Options{Logger: zap.NewNop()})
	sb, _ := bed.start(b)
	r, _, err := bed.backend.connect(b.Context())
	must(b, err)
	engine, ok := r.engine.(*client.Client)
	if !ok {
		b.Fatalf("engine is a %T", r.engine)
	}
	got, err := engine.ContainerInspect(b.Context(), sb.ID())
	must(b, err)
	host := &container.HostConfig{NetworkMode: "none"}
	for _, m := range got.HostConfig.Mounts {
		if strings.HasPrefix(m.Target, "/usr") || strings.HasPrefix(m.Target, "/etc") {
			host.Mounts = append(host.Mounts, m)
		}
	}
	return &benchBed{bed: bed, engine: engine, host: host, image: got.Image}
}

// plain creates and starts a container by the engine's API alone.
func (b *benchBed) plain(t *testing.B) string {
	t.Helper()
	made, err := b.engine.ContainerCreate(t.Context(), &container.Config{Image: b.image, Entrypoint: []string{"/usr/bin/sleep", "1000"}}, b.host, nil, nil, "")
	must(t, err)
	must(t, b.engine.ContainerStart(t.Context(), made.ID, container.StartOptions{}))
	return made.ID
}

// exec runs `sh -c true` by the engine's exec API.
func (b *benchBed) exec(t *testing.B, id string) {
	t.Helper()
	made, err := b.engine.ContainerExecCreate(t.Context(), id, container.ExecOptions{Cmd: []string{"/bin/sh", "-c", "true"}, AttachStdout: true, AttachStderr: true})
	must(t, err)
	stream, err := b.engine.ContainerExecAttach(t.Context(), made.ID, container.ExecAttachOptions{})
	must(t, err)
	_, err = io.Copy(io.Discard, stream.Reader)
	stream.Close()
	must(t, err)
	end, err := b.engine.ContainerExecInspect(t.Context(), made.ID)
	must(t, err)
	if end.Running || end.ExitCode != 0 {
		t.Fatalf("exec ended with %+v", end)
	}
}

func (b *benchBed) remove(t *testing.B, id string) {
	t.Helper()
	must(t, b.engine.ContainerRemove(context.WithoutCancel(t.Context()), id, container.RemoveOptions{Force: true}))
}

func runTrue(t *testing.B, s sandbox.Sandbox) {
	t.Helper()
	exit, err := sandbox.Run(t.Context(), s, sandbox.Command{Argv: []string{"/bin/sh", "-c", "true"}})
	must(t, err)
	if !exit.Status.Success() {
		t.Fatal(exit.Status)
	}
}

func timed(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

func report(b *testing.B, ours, theirs []time.Duration) {
	b.Helper()
	o, t := median(ours), median(theirs)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(o), "p50-ns")
	b.ReportMetric(float64(t), "engine-p50-ns")
	b.ReportMetric(float64(o)/float64(t), "x-engine")
}

// BenchmarkStart compares the time to a first command's result with the
// engine's own create, start and exec. They take turns, so that a loaded
// machine slows both. The ratio counts.
func BenchmarkStart(b *testing.B) {
	bed := newBenchBed(b)
	var ours, theirs []time.Duration
	for b.Loop() {
		spec := bed.spec(b, newSession())
		var s sandbox.Sandbox
		ours = append(ours, timed(func() {
			var err error
			s, err = bed.backend.Create(b.Context(), spec)
			must(b, err)
			runTrue(b, s)
		}))
		must(b, s.Destroy(b.Context()))
		var id string
		theirs = append(theirs, timed(func() {
			id = bed.plain(b)
			bed.exec(b, id)
		}))
		bed.remove(b, id)
	}
	report(b, ours, theirs)
}
