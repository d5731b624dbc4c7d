//go:build projects

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// realProject is a project as people have them. Its files are ours; its dependencies come
// from registries when the test runs.
type realProject struct {
	files map[string]string
	// prepare runs on the host, with the network, and command in the sandbox and on the
	// host.
	prepare, command string
	// times is the most that a session after the first one may take, as a multiple of the
	// host's time; 0 is not bounded.
	times map[string]float64
	// rounds are the sessions after the first one.
	rounds int
	// peers are what else is measured: runsc do runs a command on the host's root in gVisor.
	peers []string
}

// goTimes are the bounds of Go's tests and builds.
var goTimes = map[string]float64{"docker": 1.5, "runc": 1.5, "gvisor": 5}

// realProjects returns the projects, by their names.
func realProjects(t *testing.T) map[string]realProject {
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]realProject{
		"go test of one function": {
			files: map[string]string{
				"go.mod": "module example.com/one\n\ngo 1.24\n", "one.go": "package one\n\nfunc One() int { return 1 }\n",
				"one_test.go": "package one\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) {\n\tif One() != 1 {\n\t\tt.Error(One())\n\t}\n}\n",
			},
			command: "go test -count=1 ./...", times: goTimes, rounds: 5, peers: []string{"runsc do"},
		},
		"go build of caisson": {
			prepare: "git clone -q " + repository + " . && go mod download && go build -o /dev/null ./cmd/caisson",
			command: "rm -f /tmp/caisson-built; go build -o /tmp/caisson-built ./cmd/caisson", times: goTimes, rounds: 3, peers: []string{"runsc do"},
		},
		"npm test": {
			files: map[string]string{
				"package.json": `{"name": "odd", "version": "1.0.0", "scripts": {"test": "node --test"}, "dependencies": {"is-number": "7.0.0"}}`,
				"odd.test.js":  "const test = require('node:test'), assert = require('node:assert'), isNumber = require('is-number');\ntest('numbers', () => assert(isNumber('3') && !isNumber('x')));\n",
			},
			prepare: "npm install --silent --no-audit --no-fund", command: "npm test --silent", rounds: 3,
		},
		"pytest": {
			files: map[string]string{
				"pyproject.toml": "[project]\nname = \"one\"\nversion = \"1\"\n",
				"test_one.py":    "import pytest\n\n\n@pytest.mark.parametrize('n', range(20))\ndef test_square(n):\n    assert n * n >= n\n",
			},
			command: "/usr/bin/python3 -m pytest -q -p no:cacheprovider", rounds: 3,
		},
		"cargo test --offline": {
			files: map[string]string{
				"Cargo.toml": "[package]\nname = \"one\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[dependencies]\nitoa = \"1\"\n",
				"src/lib.rs": "pub fn text(n: u32) -> String {\n    itoa::Buffer::new().format(n).to_owned()\n}\n\n#[test]\nfn formats() {\n    assert_eq!(text(7), \"7\");\n}\n",
			},
			prepare: "mkdir vendor .cargo && cp -rL /usr/share/cargo/registry/itoa-* vendor/ && " +
				`printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n' > .cargo/config.toml`,
			command: "cargo test --offline --quiet", rounds: 3,
		},
	}
}

// timed matches the line that a timed command ends with.
var timed = regexp.MustCompile(`took (\d+) ms, status (\d+)`)

// timedScript returns a script that runs a command and prints its time.
func timedScript(command string) string {
	return "s=$(date +%s%N); " + command + "; r=$?; echo \"took $(( ($(date +%s%N) - s) / 1000000 )) ms, status $r\""
}

// TestProjects runs real projects in the sandbox with what caisson init writes, each session
// beside the same command on the host. It needs the toolchains, and the network for the
// host.
func TestProjects(t *testing.T) {
	caisson, runsc := filepath.Join(binaries(t), "caisson"), filepath.Join(binaries(t), "runsc")
	backends := []string{"docker", "runc", "gvisor"}
	if one := os.Getenv("BACKEND"); one != "" {
		backends = []string{one}
	}
	projects := realProjects(t)
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(projects)) {
		if only := os.Getenv("PROJECT"); only != "" && !strings.Contains(name, only) {
			continue
		}
		p := projects[name]
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			workspace := filepath.Join(root, "project")
			for file, text := range p.files {
				file = filepath.Join(workspace, file)
				writeFile(t, file, text, 0o644)
			}
			if err := os.MkdirAll(workspace, 0o755); err != nil {
				t.Fatal(err)
			}
			run := func(args ...string) string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Dir = workspace
				cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(root, "state"), "XDG_CONFIG_HOME="+filepath.Join(root, "config"), "CAISSON_COMMAND_TIME=20m")
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%q: %v\n%s%s", args, err, out, stderr.String())
				}
				return string(out)
			}
			if p.prepare != "" {
				run("sh", "-c", p.prepare)
			}
			t.Logf("caisson init:\n%s", run(caisson, "init", "--write"))
			arguments, err := json.Marshal(map[string]any{"command": timedScript(p.command), "timeout_seconds": 1200})
			if err != nil {
				t.Fatal(err)
			}
			milliseconds := func(out string) float64 {
				t.Helper()
				m := timed.FindStringSubmatch(out)
				if m == nil || m[2] != "0" {
					t.Fatalf("the command failed:\n%s", out)
				}
				n, err := strconv.Atoi(m[1])
				if err != nil {
					t.Fatal(err)
				}
				return float64(n)
			}
			host := func() float64 { return milliseconds(run("sh", "-c", timedScript(p.command))) }
			host()
			for _, backend := range slices.Concat(backends, p.peers) {
				session := func() float64 {
					if backend == "runsc do" {
						return milliseconds(run(runsc, "-network", "none", "-ignore-cgroups", "do", "-force-overlay=false", "-cwd", workspace, "sh", "-c", timedScript(p.command)))
					}
					return milliseconds(run(caisson, "tools", "call", "shell", string(arguments), "--policy", "sandboxed", "--backend", backend))
				}
				first := session()
				var ours, theirs []float64
				for range p.rounds {
					theirs, ours = append(theirs, host()), append(ours, session())
				}
				ratio := median(ours) / median(theirs)
				fmt.Fprintf(&table, "| %s | %s | %.0f | %.0f | %.0f | %.2f |\n", name, backend, first, median(ours), median(theirs), ratio)
				if most := p.times[backend]; most != 0 && ratio > most {
					t.Errorf("%s on %s: %.2f × the host's time, at most %.1f", name, backend, ratio, most)
				}
			}
		})
	}
	load := readFile(t, "/proc/loadavg")
	t.Logf("\n| project | backend | first session, ms | later ones, ms | host, ms | ratio |\n|---|---|---|---|---|---|\n%sload when it was over: %s", table.String(), load)
}

// median returns the middle one of an odd number of values.
func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }
