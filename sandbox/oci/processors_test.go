package oci

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// countProcessors asks programs for the number of processors in several ways.
const countProcessors = `nproc; getconf _NPROCESSORS_ONLN; grep -c ^processor /proc/cpuinfo
command -v python3 >/dev/null && python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'`

// Programs see the limit of CPU time, not the machine's processors.
func TestProcessors(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two processors, of which a sandbox gets one")
	}
	for _, k := range []Kind{Runc, GVisor} {
		t.Run(string(k), func(t *testing.T) {
			b := newBed(t, k, os.Geteuid())
			spec := b.spec(t, "ses_processors")
			for milli, want := range map[int64]string{500: "1", 1000: "1"} {
				spec.Resources.MilliCPUs = milli
				words := b.output(t, spec, countProcessors)
				if len(words) < 3 {
					t.Fatalf("only %q is said", words)
				}
				for _, w := range words {
					if w != want {
						t.Errorf("with %d thousandths of a CPU programs see %q", milli, words)
						break
					}
				}
			}
			// The control: without a limit they see the machine's.
			spec.Resources.MilliCPUs = int64(runtime.NumCPU()) * 1000
			out, err := exec.Command("nproc").Output()
			must(t, err)
			if words := b.output(t, spec, "nproc"); words[0] != strings.TrimSpace(string(out)) {
				t.Errorf("with all CPUs they see %q, the host says %s", words, out)
			}
		})
	}
}

func (b *bed) output(t *testing.T, spec sandbox.Spec, script string) []string {
	t.Helper()
	s, err := b.backend.Create(t.Context(), spec)
	must(t, err)
	defer func() { must(t, s.Destroy(context.Background())) }()
	var out, errs bytes.Buffer
	p, err := s.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs})
	must(t, err)
	if exit, err := p.Wait(); err != nil || !exit.Status.Success() {
		t.Fatalf("%v, %v: %s", exit.Status, err, errs.String())
	}
	return strings.Fields(out.String())
}

// Files, even sparse ones, don't grow beyond the limit.
func TestFileSize(t *testing.T) {
	for _, k := range []Kind{Runc, GVisor} {
		t.Run(string(k), func(t *testing.T) {
			b := newBed(t, k, os.Geteuid())
			words := b.output(t, b.spec(t, "ses_filesize"), "truncate -s 60G f && echo small; trap '' XFSZ; truncate -s 70G f 2>/dev/null || echo refused; rm f")
			if strings.Join(words, " ") != "small refused" {
				t.Errorf("a file of 60 and one of 70 GiB: %q", words)
			}
		})
	}
}
