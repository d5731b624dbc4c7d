package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// BenchmarkStart compares a sandbox's start and first command with a bare `run`
// of the same bundle by the stock runtime. They take turns, so that the
// machine's load affects both. The results are the medians.
func BenchmarkStart(b *testing.B) {
	for _, k := range []Kind{GVisor, Runc} {
		b.Run(string(k), func(b *testing.B) { benchmarkStart(b, k) })
	}
}

func benchmarkStart(b *testing.B, k Kind) {
	bed := newBed(b, k, os.Geteuid())
	bed.backend.lifecycle.Probe, bed.backend.lifecycle.Logger = false, zap.NewNop()
	bare, stock := bed.bareBundle(b), bed.stockRuntime(b)
	var ours, theirs, destroy []time.Duration
	for i := 0; b.Loop(); i++ {
		session := fmt.Sprintf("ses_bench%d", i)
		spec := bed.spec(b, session)
		began := time.Now()
		sb, err := bed.backend.Create(b.Context(), spec)
		must(b, err)
		p, err := sb.Start(b.Context(), sandbox.Command{Argv: []string{"/bin/true"}})
		must(b, err)
		if exit, err := p.Wait(); err != nil || !exit.Status.Success() {
			b.Fatalf("true: %v, %v", exit.Status, err)
		}
		ours = append(ours, time.Since(began))
		began = time.Now()
		must(b, sb.Destroy(context.Background()))
		destroy = append(destroy, time.Since(began))

		if stock == "" {
			continue
		}
		began = time.Now()
		bed.bareRun(b, stock, bare, session)
		theirs = append(theirs, time.Since(began))
	}
	b.ReportMetric(0, "ns/op")
	for name, times := range map[string][]time.Duration{"": ours, "bare-": theirs, "destroy-": destroy} {
		if len(times) == 0 {
			continue
		}
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2]), name+"p50-ns")
	}
}

// bareBundle is a sandbox's bundle with /bin/true as its program and no
// workspace.
func (b *bed) bareBundle(t testing.TB) string {
	t.Helper()
	sb, err := b.backend.Create(t.Context(), b.spec(t, "ses_model"))
	must(t, err)
	p := containerOf(sb).plan
	p.workspace = nil
	dir := t.TempDir()
	p.further = slices.Clone(p.further)
	for i := range p.further { // the home
		p.further[i].Source = filepath.Join(dir, "home")
		must(t, os.MkdirAll(p.further[i].Source, 0o700))
	}
	config := p.spec()
	config.Process.Args = []string{"/bin/true"}
	nonce := filepath.Join(dir, "nonce")
	must(t, os.WriteFile(nonce, nil, 0o644))
	for i, m := range config.Mounts {
		if m.Destination == wire.NoncePath {
			config.Mounts[i].Source = nonce
		}
	}
	data, err := json.Marshal(config)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600))
	must(t, sb.Destroy(context.Background()))
	return dir
}

// stockRuntime returns the runtime that a start is compared with. gVisor's is
// its own build, from `make bench`; the result is "" without it.
func (b *bed) stockRuntime(t testing.TB) string {
	t.Helper()
	if b.backend.Name() != string(GVisor) {
		return b.backend.runtime.path
	}
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", "runsc-stock"))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Logf("the peer is missing: %v", err)
		return ""
	}
	return path
}

func (b *bed) bareRun(t testing.TB, runtime, dir, id string) {
	t.Helper()
	r := b.backend.runtime
	args := append(r.flags(runtimeFlags{root: filepath.Join(dir, "root"), log: filepath.Join(dir, "log"), cgroups: !b.backend.rootless}),
		"run", "--bundle", dir, id)
	if out, err := exec.CommandContext(t.Context(), runtime, args...).CombinedOutput(); err != nil {
		t.Fatalf("bare run: %v: %s", err, out)
	}
}
