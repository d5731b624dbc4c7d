package deploy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
)

const password = "secret"

// program returns the path of caisson.
func program() string { return filepath.Join(cmp.Or(os.Getenv("E2E_BIN"), "../../bin"), "caisson") }

// caisson parses arguments with the flags of the command that they name. It runs nothing.
func caisson(t *testing.T, args []string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(), append(slices.Clone(args), "--help")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if usage := "caisson " + strings.Join(args[:2], " "); args[0] == "batch" && !strings.HasPrefix(args[1], "-") && !strings.Contains(string(out), usage) {
		return fmt.Errorf("not the help of %s:\n%s", usage, out)
	}
	return nil
}

// TestCommands checks the arguments of every caisson.
func TestCommands(t *testing.T) {
	var commands [][]string
	for _, p := range readAll(t).pods {
		for _, c := range p.Spec.Containers {
			switch c.Command[0] {
			case "caisson":
				commands = append(commands, c.Args)
			case "sh":
				line := c.Command[2][strings.Index(c.Command[2], "caisson batch")+len("caisson "):]
				line, _, _ = strings.Cut(line, " &")
				commands = append(commands, strings.Fields(line))
			}
		}
	}
	for _, s := range loadCompose(t, "").Services {
		if s.Image == "caisson-batch:1" {
			commands = append(commands, s.Command)
		}
	}
	if len(commands) != 6 {
		t.Errorf("%d commands: %q", len(commands), commands)
	}
	for _, args := range commands {
		if err := caisson(t, args); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if err := caisson(t, append(slices.Clone(args), "--resultz=x")); err == nil || !strings.Contains(err.Error(), "--resultz") {
			t.Errorf("%q with an unknown flag: %v", args, err)
		}
	}
}

// parseNATS returns the options that a server reads from a configuration.
func parseNATS(t *testing.T, text string) (*server.Options, error) {
	t.Helper()
	t.Setenv("SERVER_NAME", "nats-0")
	t.Setenv("NATS_PASSWORD", password)
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return server.ProcessConfigFile(file)
}

// TestNATS checks the configuration of the queue, which compose and Kubernetes have in common.
func TestNATS(t *testing.T) {
	file, err := os.ReadFile(filepath.Join(examples, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	m := readAll(t)
	if len(m.configMaps) != 1 || strings.TrimSpace(m.configMaps[0].Data["nats.conf"]) != strings.TrimSpace(string(file)) {
		t.Error("the config map is not nats.conf")
	}
	o, err := parseNATS(t, string(file))
	if err != nil {
		t.Fatal(err)
	}
	if !o.SyncAlways || !o.JetStream || o.StoreDir != "/data" || o.ServerName != "nats-0" || o.Password != password {
		t.Errorf("options %+v", o)
	}
	s := m.statefulSets[0]
	var want, got []string
	for i := range *s.Spec.Replicas {
		want = append(want, fmt.Sprintf("%s-%d.%s:%d", s.Name, i, s.Spec.ServiceName, o.Cluster.Port))
	}
	for _, r := range o.Routes {
		got = append(got, r.Host)
	}
	if !slices.Equal(got, want) {
		t.Errorf("routes %q, want %q", got, want)
	}
	for name, port := range map[string]int{"client": o.Port, "cluster": o.Cluster.Port, "monitor": o.HTTPPort} {
		for _, p := range s.Spec.Template.Spec.Containers[0].Ports {
			if p.Name == name && int(p.ContainerPort) != port {
				t.Errorf("port %s is %d, and %d in nats.conf", name, p.ContainerPort, port)
			}
		}
	}
	if _, err := parseNATS(t, strings.Replace(string(file), "sync_interval", "sync_intervall", 1)); err == nil {
		t.Error("an unknown option is accepted")
	}
}

// loadCompose decodes compose.yaml, after the text was replaced by a broken one unless that is "".
func loadCompose(t *testing.T, broken string) *types.Project {
	t.Helper()
	p, err := parseCompose(t, broken)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parseCompose(t *testing.T, broken string) (*types.Project, error) {
	t.Helper()
	file := types.ConfigFile{Filename: filepath.Join(examples, "compose.yaml")}
	if broken != "" {
		file.Content = []byte(broken)
	}
	return loader.LoadWithContext(context.WithoutCancel(t.Context()), types.ConfigDetails{
		WorkingDir: examples, ConfigFiles: []types.ConfigFile{file}, Environment: types.Mapping{"NATS_PASSWORD": password},
	})
}

// TestCompose checks the services of the compose file.
func TestCompose(t *testing.T) {
	p := loadCompose(t, "")
	if got := slices.Sorted(maps.Keys(p.Services)); !slices.Equal(got, []string{"coordinator", "nats-0", "nats-1", "nats-2", "worker"}) {
		t.Errorf("services %q", got)
	}
	m := readAll(t)
	image := m.statefulSets[0].Spec.Template.Spec.Containers[0].Image
	for name, s := range p.Services {
		if !slices.Equal(s.CapDrop, []string{"ALL"}) || !s.ReadOnly || s.Privileged || len(s.CapAdd) > 0 || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s: %q without %q, %q, read-only %v", name, s.CapAdd, s.CapDrop, s.SecurityOpt, s.ReadOnly)
		}
		if strings.HasPrefix(name, "nats-") {
			if s.Image != image || s.Environment["SERVER_NAME"] == nil || *s.Environment["SERVER_NAME"] != name || !slices.Contains(s.Networks["default"].Aliases, name+".nats") {
				t.Errorf("%s: image %s, environment %v", name, s.Image, s.Environment)
			}
			if probe := m.statefulSets[0].Spec.Template.Spec.Containers[0].ReadinessProbe.HTTPGet.Path; !strings.HasSuffix(s.HealthCheck.Test[len(s.HealthCheck.Test)-1], probe) {
				t.Errorf("%s: health check %q, want that of the manifest", name, s.HealthCheck.Test)
			}
		} else if len(s.DependsOn) != 3 || !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == "/results" && v.Source == "results" }) {
			t.Errorf("%s depends on %v, volumes %v", name, s.DependsOn, s.Volumes)
		}
	}
	version := "nats:" + moduleVersion(t, "github.com/nats-io/nats-server/v2") + "-alpine"
	if image != version {
		t.Errorf("image %s, and the tests use %s", image, version)
	}
	text, err := os.ReadFile(filepath.Join(examples, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseCompose(t, strings.Replace(string(text), "  pids_limit:", "  pid_limit:", 1)); err == nil || !strings.Contains(err.Error(), "pid_limit") {
		t.Errorf("an unknown key is accepted: %v", err)
	}
}

// moduleVersion returns the version of a module that Caisson uses, without its v.
func moduleVersion(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == path {
			return strings.TrimPrefix(fields[1], "v")
		}
	}
	t.Fatalf("no %s in go.mod", path)
	return ""
}
