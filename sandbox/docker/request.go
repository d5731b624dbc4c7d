package docker

import (
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	units "github.com/docker/go-units"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/harden"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

type request struct {
	name   string
	config *container.Config
	host   *container.HostConfig
}

// plan is the input for a request.
type plan struct {
	spec        sandbox.Spec
	image       rootImage
	volumes     []harden.Tmpfs // replacing the image's VOLUMEs
	work        *workmount.Mounts
	tmpfs       []harden.Tmpfs // of the container and the session
	files       []images.Bind
	hostsPath   string
	remote      bool // nothing on this machine is mounted
	seccomp     harden.Seccomp
	runtime     runtimeFacts
	cpus        int
	noSwapLimit bool
	// coverCgroups hides /sys/fs/cgroup, which root in the container could
	// write to.
	coverCgroups bool
	labels       map[string]string
}

const (
	seccompOption    = "seccomp="
	noNewPrivileges  = "no-new-privileges"
	noNetwork        = "none"
	privateNamespace = "private"
)

// buildRequest builds the request. It must be a pure function, so that the
// engine's answer can be compared with it.
func (p plan) buildRequest() request {
	stopNow := 1 // seconds; waiting for PID 1 gains nothing
	return request{
		name: lifecycle.ContainerName(p.spec.Session),
		config: &container.Config{
			Image:      p.image.id,
			User:       "0:0",
			Entrypoint: []string{sandbox.GuestPath},
			Env:        harden.GuestEnv(),
			WorkingDir: "/",
			Hostname:   images.Hostname,
			// Skip the engine's network setup, which takes longer than starting
			// the container (docs/design/guest.md#how-a-sandbox-starts). Either
			// way, the container has only loopback. Without that setup, the
			// engine writes no /etc/hosts. Remote containers and containers
			// that join this namespace need that file, so don't skip it for
			// them.
			NetworkDisabled: !p.remote && !p.sharesNetwork(),
			Labels:          p.labels,
			AttachStdin:     true,
			AttachStdout:    true,
			AttachStderr:    true,
			OpenStdin:       true,
			StdinOnce:       true,
			Healthcheck:     &container.HealthConfig{Test: []string{"NONE"}},
			StopSignal:      "SIGKILL",
			StopTimeout:     &stopNow,
		},
		host: p.hostConfig(),
	}
}

func (p plan) sharesNetwork() bool { return p.spec.Egress != nil && p.spec.Egress.Shared }

func (p plan) hostConfig() *container.HostConfig {
	r := p.spec.Resources
	pids, off := harden.HostPIDs(r.PIDs, p.runtime.ownKernel()), false
	return &container.HostConfig{
		AutoRemove:     true,
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:      container.LogConfig{Type: "none"},
		NetworkMode:    noNetwork,
		IpcMode:        privateNamespace,
		CgroupnsMode:   privateNamespace,
		ReadonlyRootfs: p.spec.Root != sandbox.RootEphemeral,
		CapDrop:        []string{"ALL"},
		CapAdd:         capabilityNames(p.spec.User == sandbox.UserRoot),
		SecurityOpt:    []string{noNewPrivileges, seccompOption + string(p.seccomp.JSON)},
		MaskedPaths:    harden.MaskedPaths(),
		ReadonlyPaths:  harden.ReadonlyPaths(),
		// Use nothing from the host's resolver: the container has no network.
		ExtraHosts: p.extraHosts(),
		DNS:        []string{"127.0.0.1"}, DNSSearch: []string{"."}, DNSOptions: []string{},
		ShmSize:     p.shmBytes(),
		Tmpfs:       p.tmpfsMounts(),
		Mounts:      p.mounts(),
		Runtime:     p.runtime.name,
		OomScoreAdj: harden.OOMScore,
		Init:        &off,
		Resources: container.Resources{
			Memory:     r.MemoryBytes,
			MemorySwap: p.memorySwap(),
			PidsLimit:  &pids,
			NanoCPUs:   p.milliCPUs() * 1e6,
			Ulimits:    ulimits(p),
		},
	}
}

// extraHosts returns the sandbox's host name for the /etc/hosts that the engine
// writes. Without a network, that file has only localhost.
func (p plan) extraHosts() []string {
	if !p.remote {
		return nil
	}
	return []string{images.Hostname + ":127.0.0.1"}
}

// memorySwap returns the limit for memory plus swap: the memory limit, so swap
// adds nothing. It returns -1 if the engine can't count swap: such an engine
// reports -1 for any request.
func (p plan) memorySwap() int64 {
	if p.noSwapLimit {
		return -1
	}
	return p.spec.Resources.MemoryBytes
}

// milliCPUs returns at most the processors of the engine's machine: an engine
// refuses more.
func (p plan) milliCPUs() int64 {
	if p.cpus <= 0 {
		return p.spec.Resources.MilliCPUs
	}
	return min(p.spec.Resources.MilliCPUs, int64(p.cpus)*1000)
}

func capabilityNames(root bool) []string {
	var names []string
	for _, c := range harden.ContainerCapabilities(root) {
		names = append(names, strings.TrimPrefix(c, "CAP_"))
	}
	return names
}

func ulimits(p plan) []*units.Ulimit {
	var list []*units.Ulimit
	for _, l := range harden.Rlimits(p.spec.Resources, p.runtime.ownKernel()) {
		list = append(list, &units.Ulimit{Name: l.Name, Soft: l.Soft, Hard: l.Hard})
	}
	return list
}

// tmpfsMounts returns the tmpfs mounts, except /dev/shm, which the engine makes
// by ShmSize.
func (p plan) tmpfsMounts() map[string]string {
	list := map[string]string{}
	for _, t := range slices.Concat(p.tmpfs, p.volumes) {
		if t.Path != "/dev/shm" {
			list[t.Path] = strings.Join(t.Options(), ",")
		}
	}
	return list
}

func (p plan) shmBytes() int64 {
	for _, t := range p.tmpfs {
		if t.Path == "/dev/shm" {
			return t.Bytes
		}
	}
	return 0
}

func (p plan) mounts() []mount.Mount {
	var list []mount.Mount
	for _, b := range p.image.binds {
		if !slices.ContainsFunc(p.volumes, func(t harden.Tmpfs) bool { return t.Path == b.Path }) {
			list = append(list, bind(b.Source, b.Path, true))
		}
	}
	for _, f := range p.files {
		list = append(list, bind(f.Source, f.Path, true))
	}
	// The engine empties /etc/hosts in its images, even in skeletons. Other
	// images are mounted with theirs.
	if !p.remote && (len(p.image.binds) == 0 || p.spec.Image.Scheme == images.SchemeHost) {
		list = append(list, bind(p.hostsPath, "/etc/hosts", true))
	}
	for i, b := range p.work.Binds {
		if i == 0 && p.work.Mode == sandbox.ModeCopy {
			continue // one of the tmpfs mounts
		}
		if i == 0 && p.work.Volume != nil {
			// By default an engine copies the image's files into an empty volume.
			list = append(list, mount.Mount{Type: mount.TypeVolume, Source: volumeName(p.spec.Session), Target: b.Target, VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
			continue
		}
		list = append(list, bind(b.Source, b.Target, b.ReadOnly))
	}
	for _, b := range p.work.Further {
		list = append(list, bind(b.Source, b.Target, b.ReadOnly))
	}
	masks := p.image.masks
	if p.coverCgroups {
		masks = append(slices.Clone(masks), "/sys/fs/cgroup")
	}
	for _, m := range masks {
		list = append(list, mount.Mount{
			Type: mount.TypeTmpfs, Target: m, ReadOnly: true, TmpfsOptions: &mount.TmpfsOptions{SizeBytes: 4096, Mode: 0o555},
		})
	}
	return list
}

func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true},
	}
}

// labels returns the owner's labels, plus some for people who run `docker ps`.
func (b *Backend) labels(spec sandbox.Spec) map[string]string {
	labels := b.self.WithNewLease().Labels(spec.Session)
	labels[labelWorkspace] = spec.Workspace.Path
	labels[labelImage] = spec.Image.String()
	return labels
}

// Labels for people; they decide nothing.
const (
	labelWorkspace = "io.caisson.workspace"
	labelImage     = "io.caisson.image"
)
