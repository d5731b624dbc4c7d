package docker

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/mount"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// TestHardening compares the engine's answer about the container, and the view
// from inside, with the design's table.
func TestHardening(t *testing.T) {
	b := newBed(t, os.Geteuid())
	b.backend = b.open(t, Options{Logger: zap.NewNop()})
	sandboxtest.RunHardening(t, b.target(), b.readSettings)
}

func (b *bed) readSettings(ctx context.Context, sb sandbox.Sandbox) (sandboxtest.Settings, error) {
	r, _, err := b.backend.connect(ctx)
	if err != nil {
		return sandboxtest.Settings{}, err
	}
	got, err := r.engine.ContainerInspect(ctx, sb.ID())
	if err != nil {
		return sandboxtest.Settings{}, err
	}
	h, c := got.HostConfig, got.Config
	out := sandboxtest.Settings{
		Runtime: h.Runtime, Args: append(append([]string{}, c.Entrypoint...), c.Cmd...), Env: c.Env, User: c.User, Hostname: c.Hostname,
		Privileged: h.Privileged, ReadOnlyRoot: h.ReadonlyRootfs, Network: string(h.NetworkMode), Masked: h.MaskedPaths, ReadOnly: h.ReadonlyPaths,
		Tmpfs: h.Tmpfs, Rlimits: map[string]int64{}, PIDs: *h.PidsLimit, Memory: h.Memory, MemorySwap: h.MemorySwap, MilliCPUs: h.NanoCPUs / 1e6,
		NoOOMKill: h.OomKillDisable != nil && *h.OomKillDisable, OOMScore: h.OomScoreAdj, Restart: string(h.RestartPolicy.Name),
		Logging: h.LogConfig.Type, AutoRemove: h.AutoRemove, Init: h.Init != nil && *h.Init, Labels: map[string]string{},
	}
	for name := range h.Sysctls {
		out.Sysctls = append(out.Sysctls, name)
	}
	for _, d := range h.Devices {
		out.Devices = append(out.Devices, d.PathOnHost)
	}
	for _, name := range h.CapAdd {
		out.Capabilities = append(out.Capabilities, "CAP_"+strings.TrimPrefix(name, "CAP_"))
	}
	for _, l := range h.Ulimits {
		out.Rlimits[l.Name] = l.Hard
	}
	for name, value := range c.Labels {
		out.Labels[strings.TrimPrefix(name, "io.caisson.")] = value
	}
	for _, m := range got.Mounts {
		if m.Type == mount.TypeBind {
			out.Binds = append(out.Binds, m.Source+":"+m.Destination+":"+string(m.Propagation))
		}
	}
	// The engine's defaults, and what it is told.
	for name, host := range map[string]bool{
		"mount": false, "pid": h.PidMode.IsHost(), "uts": h.UTSMode.IsHost(), "ipc": !h.IpcMode.IsPrivate(), "cgroup": !h.CgroupnsMode.IsPrivate(),
		"network": h.NetworkMode.IsHost() || h.NetworkMode.IsContainer(),
	} {
		if !host {
			out.Namespaces = append(out.Namespaces, name)
		}
	}
	for _, o := range h.SecurityOpt {
		profile, ok := strings.CutPrefix(o, seccompOption)
		switch {
		case o == noNewPrivileges:
			out.NoNewPrivs = true
		case ok:
			out.Seccomp = &specs.LinuxSeccomp{}
			if err := json.Unmarshal([]byte(profile), out.Seccomp); err != nil {
				return out, err
			}
		default:
			out.Security = append(out.Security, o)
		}
	}
	return out, nil
}
