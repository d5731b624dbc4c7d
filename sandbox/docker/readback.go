package docker

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/caisson-run/caisson/sandbox"
)

// readBack compares the container that the engine made with the request, and
// returns every way in which it is weaker or different. An engine may ignore
// what it does not know or can't do, at most with a warning.
func readBack(asked request, got container.InspectResponse) error {
	if got.ContainerJSONBase == nil || got.HostConfig == nil || got.Config == nil || got.State == nil {
		return fmt.Errorf("%w: the engine's answer about the container is incomplete", sandbox.ErrUnavailable)
	}
	var errs []error
	want, have := asked.host, got.HostConfig
	for _, c := range []struct {
		name       string
		want, have any
	}{
		{"image", asked.config.Image, got.Image},
		{"user", asked.config.User, got.Config.User},
		{"runtime", want.Runtime, have.Runtime},
		{"privileged", false, have.Privileged},
		{"read-only root", want.ReadonlyRootfs, have.ReadonlyRootfs},
		{"network disabled", asked.config.NetworkDisabled, got.Config.NetworkDisabled},
		{"network mode", string(want.NetworkMode), string(have.NetworkMode)},
		{"ipc mode", string(want.IpcMode), string(have.IpcMode)},
		{"cgroup namespace", string(want.CgroupnsMode), string(have.CgroupnsMode)},
		{"pid mode", "", string(have.PidMode)},
		{"uts mode", "", string(have.UTSMode)},
		{"user namespace mode", "", string(have.UsernsMode)},
		{"cgroup parent", "", have.CgroupParent},
		{"log driver", "none", have.LogConfig.Type},
		{"restart policy", want.RestartPolicy.Name, have.RestartPolicy.Name},
		{"automatic removal", true, have.AutoRemove},
		{"publish all ports", false, have.PublishAllPorts},
		{"memory", want.Memory, have.Memory},
		{"memory and swap", want.MemorySwap, have.MemorySwap},
		{"cpus", want.NanoCPUs, have.NanoCPUs},
		{"shared memory", want.ShmSize, have.ShmSize},
		{"pids", valueOf(want.PidsLimit), valueOf(have.PidsLimit)},
		{"out-of-memory killer off", false, have.OomKillDisable != nil && *have.OomKillDisable},
		{"out-of-memory score", want.OomScoreAdj, have.OomScoreAdj},
		{"engine's init", false, have.Init != nil && *have.Init},
		{"entry point", strings.Join(asked.config.Entrypoint, " "), strings.Join(got.Config.Entrypoint, " ")},
		{"arguments", "", strings.Join(got.Config.Cmd, " ")},
		{"capabilities", capabilitySet(want.CapAdd), capabilitySet(have.CapAdd)},
		{"extra hosts", strings.Join(want.ExtraHosts, " "), strings.Join(have.ExtraHosts, " ")},
		{"dropped capabilities", capabilitySet(want.CapDrop), capabilitySet(have.CapDrop)},
	} {
		if c.want != c.have {
			errs = append(errs, fmt.Errorf("%s: requested %v, the engine has %v", c.name, c.want, c.have))
		}
	}
	errs = append(errs, checkExtras(have)...)
	errs = append(errs, checkSecurity(want, have)...)
	errs = append(errs, checkLimits(want, have)...)
	errs = append(errs, checkMounts(want, got)...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: the engine made another container than was requested: %w", sandbox.ErrUnavailable, err)
	}
	return nil
}

func valueOf(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// capabilitySet returns a list in one spelling: engines return names with or
// without CAP_.
func capabilitySet(list []string) string {
	var names []string
	for _, n := range list {
		names = append(names, strings.TrimPrefix(strings.ToUpper(n), "CAP_"))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func checkExtras(have *container.HostConfig) []error {
	var errs []error
	for name, count := range map[string]int{
		"devices": len(have.Devices), "device requests": len(have.DeviceRequests), "device rules": len(have.DeviceCgroupRules),
		"binds": len(have.Binds), "volumes of other containers": len(have.VolumesFrom), "added groups": len(have.GroupAdd),
		"links": len(have.Links), "ports": len(have.PortBindings), "sysctls": len(have.Sysctls),
	} {
		if count > 0 {
			errs = append(errs, fmt.Errorf("%s: requested none, the engine has %d", name, count))
		}
	}
	return errs
}

// checkSecurity compares options and paths. The engine must have all that were
// requested, and no other options.
func checkSecurity(want, have *container.HostConfig) []error {
	var errs []error
	for _, o := range want.SecurityOpt {
		if !slices.Contains(have.SecurityOpt, o) {
			errs = append(errs, fmt.Errorf("security option %.40s is missing", o))
		}
	}
	for _, o := range have.SecurityOpt {
		if !slices.Contains(want.SecurityOpt, o) {
			errs = append(errs, fmt.Errorf("security option %.40s was added", o))
		}
	}
	for name, pair := range map[string][2][]string{
		"masked path": {want.MaskedPaths, have.MaskedPaths}, "read-only path": {want.ReadonlyPaths, have.ReadonlyPaths},
	} {
		for _, p := range pair[0] {
			if !slices.Contains(pair[1], p) {
				errs = append(errs, fmt.Errorf("%s %s is missing", name, p))
			}
		}
	}
	return errs
}

func checkLimits(want, have *container.HostConfig) []error {
	var errs []error
	for _, l := range want.Ulimits {
		i := slices.IndexFunc(have.Ulimits, func(h *container.Ulimit) bool { return h.Name == l.Name })
		if i < 0 || have.Ulimits[i].Soft != l.Soft || have.Ulimits[i].Hard != l.Hard {
			errs = append(errs, fmt.Errorf("process limit %s is not %d:%d", l.Name, l.Soft, l.Hard))
		}
	}
	for path, options := range want.Tmpfs {
		if have.Tmpfs[path] != options {
			errs = append(errs, fmt.Errorf("tmpfs %s: requested %s, the engine has %s", path, options, have.Tmpfs[path]))
		}
	}
	for path := range have.Tmpfs {
		if _, ok := want.Tmpfs[path]; !ok {
			errs = append(errs, fmt.Errorf("tmpfs %s was added", path))
		}
	}
	return errs
}

// checkMounts requires exactly the requested mounts.
func checkMounts(want *container.HostConfig, got container.InspectResponse) []error {
	type place struct {
		kind                mount.Type
		source, destination string
		writable            bool
	}
	asked := map[place]bool{}
	for _, m := range want.Mounts {
		asked[place{m.Type, m.Source, m.Target, !m.ReadOnly}] = true
	}
	var errs []error
	for _, m := range got.Mounts {
		p := place{m.Type, m.Source, m.Destination, m.RW}
		if m.Type == mount.TypeVolume { // its source is the engine's mount point
			p.source = m.Name
		}
		if !asked[p] {
			errs = append(errs, fmt.Errorf("mount of %s %q at %s (writable: %v) was not requested", m.Type, m.Source, m.Destination, m.RW))
		}
		if m.Type == mount.TypeBind && m.Propagation != mount.PropagationRPrivate {
			errs = append(errs, fmt.Errorf("mount at %s has propagation %q", m.Destination, m.Propagation))
		}
		delete(asked, p)
	}
	for p := range asked {
		errs = append(errs, fmt.Errorf("mount at %s is missing", p.destination))
	}
	for _, m := range got.HostConfig.Mounts {
		if m.Type == mount.TypeBind && (m.BindOptions == nil || !m.BindOptions.NonRecursive) {
			errs = append(errs, fmt.Errorf("bind at %s is recursive", m.Target))
		}
	}
	return errs
}
