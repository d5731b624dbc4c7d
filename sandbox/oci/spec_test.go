package oci

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// plans returns this package's bundles: each kind as root and as an ordinary
// user, and gVisor without namespaces as an ordinary user.
func plans(t *testing.T) map[string]plan {
	t.Helper()
	profile, err := harden.SeccompFor("amd64")
	must(t, err)
	image := &images.RootFS{
		Binds: []images.Bind{{Source: "/usr", Path: "/usr", IsDir: true}, {Source: "/etc/ld.so.cache", Path: "/etc/ld.so.cache"}},
		Masks: []string{"/usr/share/private"},
	}
	base := plan{
		image: image, rootfs: "/state/cache/rootfs-4567", resources: limits.DefaultResources(), files: []images.Bind{{Source: "/state/cache/guest-0123", Path: sandbox.GuestPath}, {Source: "/state/ses_1/container/nonce", Path: wire.NoncePath}},
		tmpfs: harden.TmpfsMounts(limits.DefaultResources(), 10001, 10001),
		further: []workmount.Bind{
			{Source: "/state/ses_1/mounts/cache", Target: "/home/agent/.cache", Dir: true},
			{Source: "/state/ses_1/mounts/data", Target: "/data", Dir: true, ReadOnly: true},
			{Source: "/state/ses_1/mounts/home", Target: sandbox.HomeDir, Dir: true},
		},
		furtherTmpfs: []harden.Tmpfs{{Path: "/data/tmp", Bytes: 1 << 20, Mode: 0o700, UID: 10001, GID: 10001, Exec: true}},
		ceiling:      func(string) int64 { return -1 }, oomScore: 500,
		workspace: []workmount.Bind{
			{Source: "/state/ses_1/mounts/workspace", Target: "/workspace", Dir: true},
			{Source: "/state/ses_1/mounts/git", Target: "/workspace/.git", Dir: true, ReadOnly: true},
		},
	}
	list := map[string]plan{}
	for name, set := range map[string]func(p *plan){
		"gvisor-root": func(p *plan) { p.identity = identity{commandUID: 10001, commandGID: 10001} },
		"gvisor-user": func(p *plan) {
			p.identity = identity{guestUID: 10001, guestGID: 10001, commandUID: 10001, commandGID: 10001, user: &idMapping{10001, 10001, 1000, 1000, 1}}
		},
		"gvisor-process": func(p *plan) {
			p.identity, p.hosted = identity{commandUID: 10001, commandGID: 10001}, true
			p.mapOwner(1000, 1000, false)
			p.workspace = slices.Clone(p.workspace)
			for i := range p.workspace {
				p.workspace[i].Maps = workmount.IDMaps{UIDs: []workmount.IDRange{{Inside: 10001, Host: 1000, Size: 1}}, GIDs: []workmount.IDRange{{Inside: 10001, Host: 1000, Size: 1}}}
			}
		},
		"runc-root": func(p *plan) { p.identity = identity{commandUID: 10001, commandGID: 10001} },
		"runc-user": func(p *plan) { p.identity = identity{single: true, user: &idMapping{0, 0, 1000, 1000, 1}} },
	} {
		p := base
		kind, who, _ := strings.Cut(name, "-")
		p.traits, _ = traitsOf(Kind(kind))
		if !p.traits.ownKernel {
			p.seccomp = profile
		}
		if who == "root" {
			p.cgroup = cgroupPlan{path: "caisson-ses_1", swap: true}
		} else {
			p.ceiling = func(name string) int64 { return map[string]int64{"nofile": 1024}[name] + 1<<20*int64(len(name)%2) }
		}
		set(&p)
		list[name] = p
	}
	return list
}

func TestSpecGolden(t *testing.T) {
	for name, p := range plans(t) {
		t.Run(name, func(t *testing.T) {
			s := p.spec()
			if s.Linux.Seccomp != nil {
				s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.LinuxSeccompAction("profile of sandbox/internal/harden")}
			}
			got, err := json.MarshalIndent(s, "", "  ")
			must(t, err)
			got = append(got, '\n')
			file := filepath.Join("testdata", name+".json")
			if *update {
				must(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			must(t, err)
			if !bytes.Equal(got, want) {
				t.Errorf("config.json (-want +got):\n%s", cmp.Diff(string(want), string(got)))
			}
		})
	}
}

// TestSpecHardening checks the hardening table's rows one by one, so that
// -update can't accept a weaker bundle.
func TestSpecHardening(t *testing.T) {
	for name, p := range plans(t) {
		s := p.spec()
		if !s.Root.Readonly || !s.Process.NoNewPrivileges || s.Process.Terminal {
			t.Errorf("%s: root read-only %v, no_new_privs %v, terminal %v", name, s.Root.Readonly, s.Process.NoNewPrivileges, s.Process.Terminal)
		}
		for _, ns := range []specs.LinuxNamespaceType{
			specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.NetworkNamespace, specs.CgroupNamespace,
		} {
			if !slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: ns}) {
				t.Errorf("%s: no new %s namespace", name, ns)
			}
		}
		if diff := cmp.Diff(harden.GuestCapabilities(), s.Process.Capabilities.Bounding); diff != "" {
			t.Errorf("%s: bounding set (-want +got):\n%s", name, diff)
		}
		if s.Hostname != "caisson" || len(s.Process.Env) != 1 || s.Hooks != nil {
			t.Errorf("%s: host name %q, environment %q, hooks %v", name, s.Hostname, s.Process.Env, s.Hooks)
		}
		if (s.Linux.Seccomp == nil) != p.traits.ownKernel {
			t.Errorf("%s: seccomp profile %v", name, s.Linux.Seccomp)
		}
		for _, m := range s.Mounts {
			if !slices.Contains(m.Options, "nosuid") {
				t.Errorf("%s: mount %s is not nosuid: %v", name, m.Destination, m.Options)
			}
			recursive, readOnly := slices.Contains(m.Options, "rbind"), "rro"
			if p.traits.ownKernel { // which has one mount, whatever is below it on the host
				readOnly = "ro"
			}
			if m.Type == "bind" && (!slices.Contains(m.Options, "nodev") || !slices.Contains(m.Options, "private") || recursive && !slices.Contains(m.Options, readOnly)) {
				t.Errorf("%s: bind %s: %v", name, m.Destination, m.Options)
			}
			writable := m.Type == "bind" && !slices.Contains(m.Options, "ro")
			if writable != slices.Contains([]string{sandbox.WorkspaceDir, sandbox.HomeDir, "/home/agent/.cache"}, m.Destination) {
				t.Errorf("%s: bind %s writable: %v", name, m.Destination, writable)
			}
			if strings.Contains(m.Source, "docker.sock") || m.Source == "/" {
				t.Errorf("%s: mount of %s", name, m.Source)
			}
		}
	}
}

// The runtime mounts an overlay's layers where the guest expects them, marks those
// that have whiteouts, and gives the guest what it needs to mount it.
func TestSpecLayered(t *testing.T) {
	p := plans(t)["gvisor-process"]
	layer := func(name, place string) workmount.Bind {
		return workmount.Bind{Source: "/state/" + name, Target: wire.LayersDir + place, Dir: true, ReadOnly: name != "upper"}
	}
	p.workspace = []workmount.Bind{
		{Target: "/workspace", Layers: []workmount.Bind{layer("upper", "/1"), layer("frozen", "/2"), layer("original", "/3")}},
		{Source: "/state/cover", Target: "/workspace/.caisson", Place: wire.LayersDir + "/4", ReadOnly: true},
	}
	s := p.spec()
	var got []string
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.Destination, "/workspace") {
			t.Errorf("the runtime mounts %s", m.Destination)
		}
		if at, ok := strings.CutPrefix(m.Destination, wire.LayersDir); ok {
			got = append(got, strings.Join(append([]string{at, m.Source}, m.Options...), " "))
		}
	}
	want := []string{
		"/1 /state/upper bind private rw nosuid nodev caisson.layer",
		"/2 /state/frozen bind private ro nosuid nodev caisson.layer",
		"/3 /state/original bind private ro nosuid nodev",
		"/4 /state/cover bind private ro nosuid nodev",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
	for _, set := range [][]string{s.Process.Capabilities.Bounding, s.Process.Capabilities.Effective, s.Process.Capabilities.Permitted} {
		if diff := cmp.Diff(append(harden.GuestCapabilities(), harden.LayerCapabilities()...), set); diff != "" {
			t.Errorf("capabilities (-want +got):\n%s", diff)
		}
	}
	p.workspace = []workmount.Bind{{Target: "/workspace", Dir: true}} // of a copy
	if i := slices.IndexFunc(p.spec().Mounts, func(m specs.Mount) bool { return m.Type == "bind" && m.Source == "" }); i >= 0 {
		t.Errorf("a bind without a source: %v", p.spec().Mounts[i])
	}
}

func TestSpecCeiling(t *testing.T) {
	p := plans(t)["gvisor-user"]
	p.ceiling = func(name string) int64 {
		return map[string]int64{"core": -1, "fsize": -1, "memlock": -1, "msgqueue": -1, "nofile": 1024, "nproc": -1, "stack": 4 << 20}[name]
	}
	got := map[string]uint64{}
	for _, l := range p.spec().Process.Rlimits {
		got[l.Type] = l.Hard
	}
	want := map[string]uint64{
		"RLIMIT_CORE": 1, "RLIMIT_FSIZE": 64 << 30, "RLIMIT_MEMLOCK": 64 << 10, "RLIMIT_MSGQUEUE": 64 << 10, "RLIMIT_NOFILE": 1024, "RLIMIT_STACK": 4 << 20, "RLIMIT_NPROC": 256,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hard limits (-want +got):\n%s", diff)
	}
}

// The images package can't import ours, so it has its own copy of the identity.
func TestImageKnowsTheContract(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "usr/lib"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, link := range [][2]string{{"usr/bin", "bin"}} {
		must(t, os.Symlink(link[0], filepath.Join(root, link[1])))
	}
	must(t, os.WriteFile(filepath.Join(root, "usr/bin/sh"), nil, 0o755))
	image, err := host.RootFS(t.Context(), host.Options{Root: root})
	must(t, err)
	have := map[string]bool{}
	for _, d := range image.Dirs {
		have[d.Path] = true
	}
	for _, f := range image.Files {
		have[f.Path] = true
		if f.Path == "/etc/passwd" && !strings.Contains(string(f.Content), "agent:x:10001:10001:agent:"+sandbox.HomeDir+":") {
			t.Errorf("passwd: %q", f.Content)
		}
	}
	for _, p := range []string{sandbox.WorkspaceDir, sandbox.HomeDir, sandbox.GuestPath, "/.caisson/nonce", "/tmp", "/proc", "/sys", "/dev", "/run"} {
		if !have[p] {
			t.Errorf("the skeleton has no %s", p)
		}
	}
}
