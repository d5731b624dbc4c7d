package docker

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

var update = flag.Bool("update", false, "rewrite golden files")

func testPlan() plan {
	p := plan{
		spec: sandbox.Spec{Session: "ses_1", Setup: sandbox.Setup{Resources: limits.DefaultResources()}},
		image: rootImage{
			id: "sha256:11", binds: []images.Bind{{Source: "/usr", Path: "/usr", IsDir: true}}, masks: []string{"/usr/secret"},
			config: images.Config{Volumes: []string{"/data", "/data/", "/tmp", "/workspace"}},
		},
		work: &workmount.Mounts{CommandUID: 10001, CommandGID: 10001, Binds: []workmount.Bind{
			{Source: "/state/mounts/1", Target: "/workspace", Dir: true},
			{Source: "/state/mounts/2", Target: "/workspace/.git", ReadOnly: true, Dir: true},
		}},
		files:   []images.Bind{{Source: "/opt/guest", Path: sandbox.GuestPath}, {Source: "/state/nonce", Path: wire.NoncePath}},
		seccomp: harden.Seccomp{JSON: []byte(`{"a":1}`)},
		runtime: runtimeFacts{name: "runc"}, cpus: 1, labels: map[string]string{"io.caisson.session": "ses_1"},
	}
	prep := lifecycle.Preparation{Spec: p.spec, Identity: lifecycle.Identity{CommandUID: 10001, CommandGID: 10001}}
	own, further := prep.Tmpfs()
	p.tmpfs = slices.Concat(own, further)
	p.volumes, _ = prep.VolumeMounts(p.image.config.Volumes) // the golden file shows them
	return p
}

// The whole request, so that a review sees every change.
func TestRequestGolden(t *testing.T) {
	r := testPlan().buildRequest()
	got, err := json.MarshalIndent(map[string]any{"name": r.name, "config": r.config, "host": r.host}, "", "  ")
	must(t, err)
	golden := filepath.Join("testdata", "request.json")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(golden, append(got, '\n'), 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("request (-want +got), run with -update if it is meant:\n%s", diff)
	}
}

// made returns the engine's answer about a container that was made as
// requested.
func made(t *testing.T, r request) container.InspectResponse {
	t.Helper()
	data, err := json.Marshal(container.CreateRequest{Config: r.config, HostConfig: r.host})
	must(t, err)
	c := &fakeContainer{id: "x", name: r.name}
	must(t, json.Unmarshal(data, &c.config))
	return c.inspect()
}

func TestReadBack(t *testing.T) {
	asked := testPlan().buildRequest()
	// The control.
	if err := readBack(asked, made(t, asked)); err != nil {
		t.Fatalf("control: %v", err)
	}
	for name, weaken := range map[string]func(*container.InspectResponse){
		"another image":       func(c *container.InspectResponse) { c.Image = "sha256:22" },
		"another runtime":     func(c *container.InspectResponse) { c.HostConfig.Runtime = "crun" },
		"user":                func(c *container.InspectResponse) { c.Config.User = "" },
		"privileged":          func(c *container.InspectResponse) { c.HostConfig.Privileged = true },
		"writable root":       func(c *container.InspectResponse) { c.HostConfig.ReadonlyRootfs = false },
		"host network":        func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "host" },
		"default network":     func(c *container.InspectResponse) { c.HostConfig.NetworkMode = "default" },
		"a network":           func(c *container.InspectResponse) { c.Config.NetworkDisabled = false },
		"host pids":           func(c *container.InspectResponse) { c.HostConfig.PidMode = "host" },
		"host ipc":            func(c *container.InspectResponse) { c.HostConfig.IpcMode = "shareable" },
		"host uts":            func(c *container.InspectResponse) { c.HostConfig.UTSMode = "host" },
		"host users":          func(c *container.InspectResponse) { c.HostConfig.UsernsMode = "host" },
		"host cgroups":        func(c *container.InspectResponse) { c.HostConfig.CgroupnsMode = "host" },
		"cgroup parent":       func(c *container.InspectResponse) { c.HostConfig.CgroupParent = "/x" },
		"one capability more": func(c *container.InspectResponse) { c.HostConfig.CapAdd = append(c.HostConfig.CapAdd, "SYS_ADMIN") },
		"nothing dropped":     func(c *container.InspectResponse) { c.HostConfig.CapDrop = nil },
		"no seccomp":          func(c *container.InspectResponse) { c.HostConfig.SecurityOpt = c.HostConfig.SecurityOpt[:1] },
		"another seccomp":     func(c *container.InspectResponse) { c.HostConfig.SecurityOpt[1] = "seccomp=unconfined" },
		"apparmor off": func(c *container.InspectResponse) {
			c.HostConfig.SecurityOpt = append(c.HostConfig.SecurityOpt, "apparmor=unconfined")
		},
		"may gain privileges": func(c *container.InspectResponse) { c.HostConfig.SecurityOpt = c.HostConfig.SecurityOpt[1:] },
		"path not masked":     func(c *container.InspectResponse) { c.HostConfig.MaskedPaths = c.HostConfig.MaskedPaths[1:] },
		"path writable":       func(c *container.InspectResponse) { c.HostConfig.ReadonlyPaths = []string{} },
		"no memory limit":     func(c *container.InspectResponse) { c.HostConfig.Memory = 0 },
		"swap":                func(c *container.InspectResponse) { c.HostConfig.MemorySwap = -1 },
		"no pids limit":       func(c *container.InspectResponse) { c.HostConfig.PidsLimit = nil },
		"no cpu limit":        func(c *container.InspectResponse) { c.HostConfig.NanoCPUs = 0 },
		"process limit":       func(c *container.InspectResponse) { c.HostConfig.Ulimits = c.HostConfig.Ulimits[1:] },
		"larger tmpfs":        func(c *container.InspectResponse) { c.HostConfig.Tmpfs["/tmp"] = "rw" },
		"another tmpfs":       func(c *container.InspectResponse) { c.HostConfig.Tmpfs["/x"] = "" },
		"logs":                func(c *container.InspectResponse) { c.HostConfig.LogConfig.Type = "json-file" },
		"restarts":            func(c *container.InspectResponse) { c.HostConfig.RestartPolicy.Name = "always" },
		"stays":               func(c *container.InspectResponse) { c.HostConfig.AutoRemove = false },
		"a volume": func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: mount.TypeVolume, Destination: "/data2", RW: true})
		},
		"a bind more":        func(c *container.InspectResponse) { c.HostConfig.Binds = []string{"/:/host"} },
		"writable bind":      func(c *container.InspectResponse) { c.Mounts[0].RW = true },
		"another source":     func(c *container.InspectResponse) { c.Mounts[0].Source = "/etc" },
		"bind missing":       func(c *container.InspectResponse) { c.Mounts = c.Mounts[1:] },
		"shared propagation": func(c *container.InspectResponse) { c.Mounts[0].Propagation = mount.PropagationShared },
		"recursive bind":     func(c *container.InspectResponse) { c.HostConfig.Mounts[0].BindOptions.NonRecursive = false },
		"a device": func(c *container.InspectResponse) {
			c.HostConfig.Devices = []container.DeviceMapping{{PathOnHost: "/dev/kvm"}}
		},
		"a group more":            func(c *container.InspectResponse) { c.HostConfig.GroupAdd = []string{"0"} },
		"engine's init":           func(c *container.InspectResponse) { on := true; c.HostConfig.Init = &on },
		"another program":         func(c *container.InspectResponse) { c.Config.Entrypoint = []string{"/bin/sh"} },
		"arguments":               func(c *container.InspectResponse) { c.Config.Cmd = []string{"-c"} },
		"an answer without parts": func(c *container.InspectResponse) { c.ContainerJSONBase = nil },
	} {
		t.Run(name, func(t *testing.T) {
			got := made(t, asked)
			weaken(&got)
			if err := readBack(asked, got); err == nil || !strings.Contains(err.Error(), sandbox.ErrUnavailable.Error()) {
				t.Errorf("accepted: %v", err)
			}
		})
	}
}
