package docker

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// Programs see the limit of CPU time, not the machine's processors.
func TestProcessors(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors, of which a sandbox gets one")
	}
	b := newBed(t, os.Geteuid())
	const count = `nproc; getconf _NPROCESSORS_ONLN; grep -c ^processor /proc/cpuinfo
command -v python3 >/dev/null && python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'`
	for milli, want := range map[int64]string{500: "1", int64(runtime.NumCPU()) * 1000: ""} {
		session := newSession()
		spec := b.spec(t, session)
		spec.Resources.MilliCPUs = milli
		s, err := b.backend.Create(t.Context(), spec)
		must(t, err)
		var out bytes.Buffer
		p, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", count}, Stdout: &out})
		must(t, err)
		exit, err := p.Wait()
		must(t, err)
		must(t, s.Destroy(context.Background()))
		b.nothingLeft(t, session)
		words := strings.Fields(out.String())
		if !exit.Status.Success() || len(words) < 3 {
			t.Fatalf("%v: %q", exit.Status, words)
		}
		for _, w := range words {
			if want == "" && w == "1" || want != "" && w != want { // the control sees the machine
				t.Errorf("with %d thousandths of a CPU programs see %q", milli, words)
				break
			}
		}
	}
}
