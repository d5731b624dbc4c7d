package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// TestHardening compares the runtime's bundle, and the view from inside, with
// the design's table.
func TestHardening(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		sandboxtest.RunHardening(t, conformanceTarget(b), b.readBack)
	})
}

func (b *bed) readBack(_ context.Context, sb sandbox.Sandbox) (sandboxtest.Settings, error) {
	c := containerOf(sb)
	data, err := os.ReadFile(filepath.Join(c.bundle.dir, "config.json"))
	if err != nil {
		return sandboxtest.Settings{}, err
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		return sandboxtest.Settings{}, err
	}
	caps := s.Process.Capabilities
	out := sandboxtest.Settings{
		Runtime: sb.Attestation().Runtime, Args: s.Process.Args, Env: s.Process.Env, Hostname: s.Hostname,
		User: fmt.Sprintf("%d:%d", s.Process.User.UID, s.Process.User.GID), ReadOnlyRoot: s.Root.Readonly, NoNewPrivs: s.Process.NoNewPrivileges,
		Capabilities: caps.Bounding, Inherited: slices.Concat(caps.Inheritable, caps.Ambient), Seccomp: s.Linux.Seccomp,
		Masked: s.Linux.MaskedPaths, ReadOnly: s.Linux.ReadonlyPaths, Tmpfs: map[string]string{}, Rlimits: map[string]int64{},
		// A runtime keeps no log, and restarts and outlives nothing.
		Network: "none", Restart: "no", Logging: "none", AutoRemove: true,
	}
	for name := range s.Linux.Sysctl {
		out.Sysctls = append(out.Sysctls, name)
	}
	for _, d := range s.Linux.Devices {
		out.Devices = append(out.Devices, d.Path)
	}
	for _, n := range s.Linux.Namespaces {
		if n.Path != "" && n.Type == specs.NetworkNamespace {
			out.Network = n.Path
		} else if n.Path == "" {
			out.Namespaces = append(out.Namespaces, string(n.Type))
		}
	}
	for _, m := range s.Mounts {
		switch m.Type {
		case "bind":
			out.Binds = append(out.Binds, m.Source+":"+m.Destination+":"+strings.Join(m.Options, ","))
		case "tmpfs":
			out.Tmpfs[m.Destination] = strings.Join(m.Options, ",")
		}
	}
	for _, l := range s.Process.Rlimits {
		out.Rlimits[strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_"))] = int64(l.Hard)
	}
	if s.Process.OOMScoreAdj != nil {
		out.OOMScore = *s.Process.OOMScoreAdj
	}
	if r := s.Linux.Resources; r != nil && r.Memory != nil && r.Pids != nil && r.CPU != nil {
		out.Memory, out.PIDs = *r.Memory.Limit, *r.Pids.Limit
		out.MilliCPUs = *r.CPU.Quota * 1000 / int64(*r.CPU.Period)
		if r.Memory.Swap != nil {
			out.MemorySwap = *r.Memory.Swap
		}
	}
	out.Labels, err = b.journalWords(c.prep.Spec.Session)
	return out, err
}

// journalWords returns a session's owner from its cleanup list, by the names of
// labels.
func (b *bed) journalWords(session string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(b.state, "cleanup", "*"+session+"*.json"))
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("cleanup lists %q: %w", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	var journal struct {
		Version int
		Session string
		Owner   struct {
			Instance  string
			Boot      string `json:"boot_id"`
			PID       int
			StartTime uint64 `json:"start_time"`
			Lease     string
		}
	}
	if err := json.Unmarshal(data, &journal); err != nil {
		return nil, err
	}
	o := journal.Owner
	return map[string]string{
		"schema": strconv.Itoa(journal.Version), "session": journal.Session, "instance": o.Instance, "boot": o.Boot,
		"pid": strconv.Itoa(o.PID), "start": strconv.FormatUint(o.StartTime, 10), "lease": o.Lease,
	}, nil
}
