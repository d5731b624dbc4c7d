package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Neither the sentry nor the gofer compiles a seccomp filter with Caisson's
// flags. As the control, the gofer does with another option.
func TestPrecompiledFilters(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", "runsc"))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE_BACKENDS"), ","), string(GVisor)) {
			t.Fatalf("REQUIRE_BACKENDS has gvisor: %v", err)
		}
		t.Skipf("needs the runsc that `make build` makes: %v", err)
	}
	b := newBed(t, GVisor, os.Geteuid())
	bundle := b.bareBundle(t)
	tests := []struct {
		name                  string
		flags                 []string
		precompiled, compiled int
	}{
		{"Caisson's flags", nil, 2, 0},
		{"another option of the gofer", []string{"--host-uds=open"}, 1, 1},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			logs := t.TempDir()
			flags := append(runscFlags(runtimeFlags{
				root: filepath.Join(logs, "root"), log: filepath.Join(logs, "log.json"), cgroups: !b.backend.rootless,
			}), "--debug", "--debug-log="+logs+"/")
			args := append(append(flags, test.flags...), "run", "--bundle", bundle, "filters"+string(rune('0'+i)))
			if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
				t.Fatalf("run: %v: %s", err, out)
			}
			precompiled, compiled := countFilters(t, logs)
			if precompiled != test.precompiled || compiled != test.compiled {
				t.Errorf("%d filters were precompiled and %d compiled, want %d and %d", precompiled, compiled, test.precompiled, test.compiled)
			}
		})
	}
}

func countFilters(t *testing.T, dir string) (precompiled, compiled int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	must(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(t, err)
		precompiled += strings.Count(string(data), "Loaded precompiled seccomp instructions")
		compiled += strings.Count(string(data), "No precompiled program found")
	}
	return precompiled, compiled
}
