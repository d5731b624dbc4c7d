package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// buildGreeter returns the program of testdata/greeter.
func buildGreeter(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "greeter")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/greeter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program := readFile(t, path)
	return program
}

// greeterImage makes a layout at dir whose image starts a server and has a check of it, and returns the reference.
func greeterImage(t *testing.T, dir string, greeter []byte, test ...string) string {
	t.Helper()
	files := userland(t)
	files["bin/greeter"], files["srv/app/file"] = greeter, nil
	made := imageOf(t, files, func(c *v1.ConfigFile) {
		c.Config.Entrypoint, c.Config.Cmd, c.Config.WorkingDir = []string{"/bin/greeter", "serve"}, []string{"127.0.0.1:8000"}, "/srv/app"
		c.Config.Healthcheck = &v1.HealthConfig{Test: test, Retries: 2, Interval: 50_000_000}
	})
	l, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = l.AppendImage(made)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "oci-layout:" + dir
}

// TestService starts the program of an image, and one of the configuration, beside commands, which reach it as soon as they run. One whose check
// fails ends the start, with its output. All hold for root and for an ordinary user.
func TestService(t *testing.T) {
	greeter := buildGreeter(t)
	users := map[string]uint32{"own": uint32(os.Getuid())}
	if os.Getuid() == 0 {
		users["ordinary"] = ordinary
	}
	for user, uid := range users {
		t.Run(user, func(t *testing.T) {
			onBackendsAtOnce(t, func(t *testing.T, backend string) {
				m := newMachine(t)
				m.become(t, uid, uid, engineGroups(t, backend)...)
				base := filepath.Dir(m.home)
				healthy := greeterImage(t, filepath.Join(base, "healthy"), greeter, "CMD", "greeter", "get", "127.0.0.1:8000")
				sick := greeterImage(t, filepath.Join(base, "sick"), greeter, "CMD-SHELL", "echo not yet; exit 3")
				chownTree(t, base, int(uid))
				get := func(image, port string, args ...string) outcome {
					args = append([]string{"exec", "--backend", backend, "--workspace", m.workspace, "--image", image}, args...)
					return m.run(t, append(args, "--", "/bin/sh", "-c", "id -u; greeter get 127.0.0.1:"+port)...)
				}
				out := get(healthy, "8000", "--service", "image")
				out.want(t, 0)
				lines := strings.Fields(out.stdout)
				if len(lines) != 6 || lines[5] != "/srv/app" {
					t.Fatalf("greeted with %q", out.stdout)
				}
				if single := backend == "runc" && uid != 0; (lines[0] == lines[3]) != single {
					t.Errorf("commands are %s, and the service is %s", lines[0], lines[3])
				}
				if out := get(healthy, "8000"); out.status != 1 || !strings.Contains(out.stderr, "refused") {
					t.Errorf("without the service: %d, %s", out.status, out.stderr)
				}
				out = get(sick, "8000", "--service", "image")
				if out.status != 125 || !strings.Contains(out.stderr, "not yet") || !strings.Contains(out.stderr, "greeter listens") || out.stdout != "" {
					t.Errorf("a check that fails: %d, %q\n%s", out.status, out.stdout, out.stderr)
				}

				config := filepath.Join(m.home, ".config", "caisson", "config.yaml")
				text := "service:\n  run: command\n  command: [greeter, serve, '127.0.0.1:9000']\n  dir: /data\n  health_check: {test: [CMD, greeter, get, '127.0.0.1:9000'], interval: 50ms}\n"
				writeFile(t, config, text, 0o644)
				chownTree(t, filepath.Join(m.home, ".config"), int(uid))
				out = m.runTask(t, append([]string{"--backend", backend, "--image", sick}, m.playing(t, []scriptCall{shell("greeter get 127.0.0.1:9000")})...)...)
				out.want(t, 0)
				if got := out.records.results(t)[0].text(); !strings.Contains(got, " in /data\n") {
					t.Errorf("the service of the configuration: %s", got)
				}
				if s := out.records.attestation(t).Service; s == nil || s.Program != "greeter" || !s.Healthy || s.Tests < 1 {
					t.Errorf("attested %+v", s)
				}
				m.wantNothingLeft(t, out.records[0].Session)
			})
		})
	}
}
